#!/usr/bin/python3
"""Writes a code block of a Markdown file: the one behind the comment `<!-- example: NAME -->`.

usage: extract.py FILE.md NAME OUTPUT
"""

import re
import sys
from pathlib import Path


def extract(text, name):
    """Returns the block, or None."""
    match = re.search(rf"<!-- example: {re.escape(name)} -->\s*```\w+\n(.*?)```", text, re.DOTALL)
    return match[1] if match else None


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    source, name, output = sys.argv[1:]
    block = extract(Path(source).read_text(encoding="utf-8"), name)
    if block is None:
        sys.exit(f"{source}: there is no block behind '<!-- example: {name} -->'")
    Path(output).write_text(block, encoding="utf-8")


if __name__ == "__main__":
    main()
