#!/usr/bin/python3
"""Checks that what documents name is there.

usage: check_docs.py ROOT          status 1 and one line per finding if there is any
       check_docs.py --self-test   plants mistakes and expects each to be found
"""

import re
import sys
import tempfile
from pathlib import Path

from extract import extract

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
HEADERS = ("include", "src", "oracle", "workload", "cli", "tests")


def read(path):
    return path.read_text(encoding="utf-8")


def pages(root):
    return [path for path in sorted(root.rglob("*.md")) if path.relative_to(root).parts[0] not in ("build", ".git", ".cache")]


def sources(root, suffixes):
    for top in HEADERS:
        yield from (path for path in sorted((root / top).rglob("*")) if path.suffix in suffixes)


def check_links(root):
    for page in pages(root):
        for target in LINK.findall(re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)):
            if not re.match(r"\w+:", target) and not (page.parent / target).exists():
                yield f"{page.relative_to(root)}: the link to {target} leads nowhere"


def check_error_codes(root):
    text = read(root / "docs/errors.md")
    for name, value in re.findall(r"^  (\w+) = (\d+),", read(root / "include/moebus/error.hpp"), re.MULTILINE):
        if f"| `{name}` |" not in text:
            yield f"docs/errors.md: the error code {name} has no row"
        if f"{10 + int(value)} `{name}`" not in text:
            yield f"docs/errors.md: exit status {10 + int(value)} for {name} is not named"


def check_source_keys(root):
    text = read(root / "docs/references.md")
    for path in sources(root, {".hpp", ".cpp"}):
        for label in re.findall(r"^\s*//[/]?.*Source:(.*)$", read(path), re.MULTILINE):
            for key in re.findall(r"\[([a-z][\w-]*)\]", label):
                if f"| [{key}] |" not in text:
                    yield f"{path.relative_to(root)}: the source [{key}] is not in docs/references.md"


def check_variables(root):
    text = read(root / "docs/errors.md")
    for path in sources(root, {".hpp", ".cpp"}):
        if path.relative_to(root).parts[0] == "tests":
            continue
        for name in re.findall(r'(?:env|getenv|environment)\("(MOEBUS_\w+)"', read(path)):
            if f"`{name}`" not in text:
                yield f"{path.relative_to(root)}: the environment variable {name} is not in docs/errors.md"


def check_verbs(root):
    verbs = set(re.findall(r"^  (\w+)", read(root / "dev").split("END")[1], re.MULTILINE))
    for page in pages(root):
        for verb in re.findall(r"\./dev ([a-z]\w*)", read(page)):
            if verb not in verbs:
                yield f"{page.relative_to(root)}: ./dev has no verb '{verb}'"


def check_translation(root):
    names = re.findall(r"<!-- example: (\w+) -->", read(root / "README.md"))
    for name in names:
        if extract(read(root / "README.md"), name) != extract(read(root / "README.zh-CN.md"), name):
            yield f"README.zh-CN.md: the block '{name}' is not that of README.md"


CHECKS = [check_links, check_error_codes, check_source_keys, check_variables, check_verbs, check_translation]


def findings(root):
    return [finding for check in CHECKS for finding in check(root)]


def self_test():
    """A small tree that is right; then one file at a time is spoiled."""
    good = {
        "README.md": "<!-- example: a -->\n```cpp\nx\n```\n[d](docs/errors.md) `./dev demo`\n",
        "README.zh-CN.md": "<!-- example: a -->\n```cpp\nx\n```\n",
        "dev": "cat <<'END'\n  demo  runs\nEND\n",
        "docs/errors.md": "| `timeout` |\n15 `timeout`\n`MOEBUS_LOG`\n",
        "docs/references.md": "| [ours] |\n",
        "include/moebus/error.hpp": "  timeout = 5,\n",
        "src/a.cpp": "// Source: [ours] order.\nenv(\"MOEBUS_LOG\");\n",
    }
    spoiled = [
        ("README.md", good["README.md"] + "[x](nowhere.md)"),
        ("README.md", good["README.md"] + "`./dev fly`"),
        ("README.zh-CN.md", "<!-- example: a -->\n```cpp\ny\n```\n"),
        ("docs/errors.md", "15 `timeout`\n`MOEBUS_LOG`\n"),
        ("docs/errors.md", "| `timeout` |\n16 `timeout`\n`MOEBUS_LOG`\n"),
        ("src/a.cpp", "// Source: [theirs]\n"),
        ("src/a.cpp", "env(\"MOEBUS_NOISE\");\n"),
    ]
    num_wrong = 0
    for name, text in [("README.md", good["README.md"]), *spoiled]:
        with tempfile.TemporaryDirectory() as folder:
            for path, content in {**good, name: text}.items():
                file = Path(folder, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content, encoding="utf-8")
            found = findings(Path(folder))
        if len(found) != (0 if text == good[name] else 1):
            num_wrong += 1
            print(f"self-test: {name} with {text!r}: {found}")
    print(f"documents, self-test: {len(spoiled) + 1 - num_wrong} of {len(spoiled) + 1} as expected")
    return 1 if num_wrong else 0


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--self-test":
        return self_test()
    root = Path(sys.argv[1])
    found = findings(root)
    for finding in found:
        print(finding)
    print(f"documents: {len(pages(root))} pages, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
