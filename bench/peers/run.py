#!/usr/bin/python3
"""Runs moebus and an exchange over MPI in turn on several shapes, prints the ratios and draws them.

usage: run.py BUILD_DIR [--ranks N] [--quick] [--plot FILE.svg]      writes BUILD_DIR/peers.json and BUILD_DIR/peers.svg
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Options of moebus_peers and how often it runs them; the last is divided by ten with --quick.
SHAPES = [(["--tokens", "1", "--dtype", "bf16"], 20_000),
          (["--tokens", "128", "--dtype", "fp8"], 3_000),
          (["--tokens", "128", "--dtype", "bf16"], 2_000),
          (["--tokens", "4096", "--dtype", "bf16", "--path", "throughput"], 60)]
ROUNDS = 3  # process starts of each shape: memory lies elsewhere each time; the round with the median ratio counts


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("build", type=Path, help="build directory that holds bench/peers/moebus_peers")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a tenth of the calls, one round")
    parser.add_argument("--plot", type=Path, help="picture [BUILD/peers.svg]")
    arguments = parser.parse_args()
    if not 1 <= arguments.ranks <= 64:
        parser.error(f"--ranks {arguments.ranks}: allowed are 1 to 64")
    return arguments


def run_once(program, ranks, options, iterations):
    command = ["mpirun", "-n", str(ranks)]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    is_crowded = ranks > len(os.sched_getaffinity(0))
    command += ["--oversubscribe", "--bind-to", "none"] if is_crowded else ["--bind-to", "core"]
    command += [str(program), *options, "--iterations", str(iterations)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if result.returncode != 0:
        sys.exit(f"run.py: {' '.join(command)} ended with status {result.returncode}:\n{result.stderr}")
    return json.loads(result.stdout)


def median_round(rounds):
    """Returns the round whose ratio for the whole exchange is the median one."""
    return sorted(rounds, key=lambda report: report["rows"][-1]["ratio"])[len(rounds) // 2]


def print_table(report):
    print(f"\n{report['command']}, {report['mpi']}, {report['machine']['cpu']}, load {report['machine']['load']:.1f}")
    print(f"  {'shape':<30}{'phase':<10}{'moebus':>12}{'MPI':>12}{'ratio':>9}   median of the slowest rank, us")
    for row in report["rows"]:
        print(f"  {row['shape']:<30}{row['phase']:<10}{row['moebus']['median_us']:>12.1f}{row['mpi']['median_us']:>12.1f}"
              f"{row['ratio']:>8.2f}x")


def main():
    arguments = parse_arguments()
    program = arguments.build / "bench" / "peers" / "moebus_peers"
    if not program.is_file():
        sys.exit(f"run.py: {program} is not built; it needs MOEBUS_BENCH=ON and MPI (Debian: libopenmpi-dev openmpi-bin)")
    if shutil.which("mpirun") is None:
        sys.exit("run.py: mpirun is missing; on Debian or Ubuntu: apt-get install openmpi-bin")
    merged = None
    for options, calls in SHAPES:
        iterations = max(10, calls // 10) if arguments.quick else calls
        rounds = [run_once(program, arguments.ranks, options, iterations) for _ in range(1 if arguments.quick else ROUNDS)]
        report = median_round(rounds)
        if merged is None:
            merged = report
        else:
            merged["rows"] += report["rows"]
    print_table(merged)
    target = arguments.build / "peers.json"
    target.write_text(json.dumps(merged, indent=2), encoding="utf-8")
    picture = arguments.plot or arguments.build / "peers.svg"
    status = subprocess.run([sys.executable, ROOT / "scripts" / "plot.py", picture, target], check=False).returncode
    print(f"  {target}" + (f", {picture}" if status == 0 else ""))
    return 0 if status == 0 else status


if __name__ == "__main__":
    sys.exit(main())
