#!/usr/bin/env python3
"""Line coverage from a build of the preset `coverage` whose tests have run: a table per folder of src/, and for the folders
that must be covered (model, sync, engine) each line that no test ran. Ends with 1 if one of them is below the limit.

usage: coverage.py BUILD-FOLDER
"""

import collections
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
REQUIRED = ("model", "sync", "engine")
LIMIT_PERCENT = 95.0


def counts_of(build: pathlib.Path) -> dict[pathlib.Path, dict[int, int]]:
    """Returns for each source file below src/ how often each of its lines ran, in all programs together."""
    counts: dict[pathlib.Path, dict[int, int]] = collections.defaultdict(dict)
    notes = sorted(str(path) for path in build.resolve().rglob("*.gcda"))
    if not notes:
        sys.exit(f"coverage.py: {build} has no .gcda file; build the preset `coverage` and run its tests first")
    with tempfile.TemporaryDirectory() as folder:
        # gcov names its results after the object, and objects of several folders have the same name.
        for number, note in enumerate(notes):
            place = pathlib.Path(folder) / str(number)
            place.mkdir()
            subprocess.run(["gcov", "--json-format", note], cwd=place, check=True, capture_output=True)
            for result in place.glob("*.gcov.json.gz"):
                add_counts(json.loads(gzip.decompress(result.read_bytes())), counts)
    return counts


def add_counts(document: dict, counts: dict[pathlib.Path, dict[int, int]]) -> None:
    for file in document["files"]:
        path = (pathlib.Path(document["current_working_directory"]) / file["file"]).resolve()
        if not path.is_relative_to(ROOT / "src"):
            continue
        lines = counts[path.relative_to(ROOT)]
        for line in file["lines"]:
            number = line["line_number"]
            lines[number] = lines.get(number, 0) + line["count"]


def ranges(numbers: list[int]) -> str:
    """Returns "3-5, 9" for [3, 4, 5, 9]."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    counts = counts_of(pathlib.Path(sys.argv[1]))
    totals: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for path, lines in counts.items():
        folder = str(path.parent.relative_to("src"))
        totals[folder][0] += sum(1 for count in lines.values() if count > 0)
        totals[folder][1] += len(lines)

    for path in sorted(counts):
        missed = [number for number, count in counts[path].items() if count == 0]
        if missed and path.parts[1] in REQUIRED:
            print(f"{path}: no test runs {ranges(missed)}")
    status = 0
    print(f"{'folder of src/':<24} {'run':>7} {'lines':>7} {'percent':>8}")
    for folder in sorted(totals):
        run, lines = totals[folder]
        percent = 100.0 * run / lines if lines else 100.0
        is_low = folder in REQUIRED and percent < LIMIT_PERCENT
        status |= is_low
        verdict = f"  BELOW {LIMIT_PERCENT:.0f} %" if is_low else ""
        print(f"{folder:<24} {run:>7} {lines:>7} {percent:>8.1f}{verdict}")
    missing = [folder for folder in REQUIRED if folder not in totals]
    if missing:
        print(f"coverage.py: no line of {', '.join(missing)} was counted")
    return 1 if status or missing else 0


if __name__ == "__main__":
    sys.exit(main())
