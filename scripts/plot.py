#!/usr/bin/python3
"""Draws measurements: reads the JSON of `moebus bench --json` or of bench/peers/run.py and writes a picture.

    plot.py OUT.svg|OUT.png RESULT.json [RESULT.json ...]     ("-" reads one result from standard input)

One bench result: time of each phase beside its floor, and bytes sent beside the least that the routing needs.
Several bench results: the same, side by side. A result of bench/peers: times of both sides and their ratio.
"""

import json
import os
import sys

EXIT_USAGE = 2
EXIT_NO_MATPLOTLIB = 4
MAX_RESULT_BYTES = 64 << 20

BLUE, ORANGE, GREY, RED = "#2f6fab", "#d98232", "#8a8f98", "#b3373b"


def fail(message, status=EXIT_USAGE):
    print(f"plot.py: {message}", file=sys.stderr)
    sys.exit(status)


def load_pyplot():
    """Returns matplotlib.pyplot on the file backend, or ends with the line that mends it."""
    try:
        import matplotlib
    except ImportError:
        fail("matplotlib is not installed for /usr/bin/python3; on Debian or Ubuntu: "
             "apt-get install python3-matplotlib", EXIT_NO_MATPLOTLIB)
    matplotlib.use("Agg")
    matplotlib.rcParams.update({
        "font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10.5,
        "axes.titleweight": "bold", "axes.titlelocation": "left", "svg.hashsalt": "moebus", "figure.dpi": 130,
        "axes.axisbelow": True, "axes.grid": True, "grid.color": "#e4e6ea", "grid.linewidth": 0.8})
    import matplotlib.pyplot as pyplot
    return pyplot


def read_result(name):
    try:
        if name == "-":
            text = sys.stdin.read(MAX_RESULT_BYTES + 1)
        else:
            with open(name, encoding="utf-8") as file:
                text = file.read(MAX_RESULT_BYTES + 1)
    except OSError as error:
        fail(f"{name}: {error.strerror}")
    if len(text) > MAX_RESULT_BYTES:
        fail(f"{name}: larger than {MAX_RESULT_BYTES >> 20} MiB, no result of a bench")
    try:
        result = json.loads(text)
    except ValueError as error:
        fail(f"{name}: not JSON: {error}")
    if not isinstance(result, dict) or not ("phases" in result or "rows" in result):
        fail(f"{name}: neither a result of `moebus bench --json` nor of bench/peers/run.py")
    return result


def microseconds(value):
    if value >= 10_000:
        return f"{value / 1000:.1f} ms"
    return f"{value:.0f} us" if value >= 100 else f"{value:.1f} us"


def mebibytes(value):
    return f"{value / 2**20:.2f} MiB" if value >= 2**18 else f"{value / 2**10:.1f} KiB"


def describe_shape(shape):
    """Returns the one line that says what went round."""
    name = shape.get("model") or f"hidden {shape['hidden']}"
    dtype = shape["dtype"] + (f" cast inside, {shape['scales']} scales" if shape.get("cast") else "")
    return (f"{name}: {shape['ranks']} ranks x {shape['tokens']} tokens, hidden {shape['hidden']}, "
            f"top-{shape['topk']} of {shape['experts']}, {dtype}, {shape['layout']}, {shape['path']} path, "
            f"routing {shape['routing']}{describe_topology(shape)}")


def describe_topology(shape):
    """Returns what is unusual about the group, or nothing."""
    nodes = shape.get("nodes", [0])
    text = ""
    if len(set(nodes)) > 1:
        text += f", {len(set(nodes))} nodes ({shape['inter_node']}, {shape['levels']} levels)"
    if shape.get("map", "reachable") != "reachable":
        text += f", mapped: {shape['map']}"
    return text


def describe_machine(machine):
    return (f"{machine['cpu']}, {machine['threads']} threads, L3 {machine['l3_bytes'] >> 20} MiB, "
            f"load {machine['load']:.1f} at the start")


def short_name(result):
    shape = result["shape"]
    return f"{shape.get('model') or shape['hidden']} {shape['path']} {shape['layout']} {shape['dtype']} {shape['tokens']}t"


def flat_phases(results):
    """Returns [(label, phase)] in drawing order."""
    several = len(results) > 1
    return [(f"{short_name(result)}\n{name}" if several else name, phase)
            for result in results for name, phase in result["phases"].items()]


def draw_times(axes, entries):
    for row, (_, phase) in enumerate(entries):
        median, low, high = phase["median_us"], phase["min_us"], phase["p99_us"]
        axes.barh(row, median, height=0.55, color=BLUE, label="median" if row == 0 else None)
        axes.plot([low, high], [row, row], color="black", linewidth=1.1, solid_capstyle="butt",
                  label="min to p99" if row == 0 else None)
        for end in (low, high):
            axes.plot([end, end], [row - 0.1, row + 0.1], color="black", linewidth=1.1)
        text = microseconds(median)
        if phase.get("floor_us"):
            axes.plot([phase["floor_us"]] * 2, [row - 0.36, row + 0.36], color=ORANGE, linewidth=2.4,
                      label="floor: the copies it needs" if row == 0 else None)
            if phase.get("ratio_to_floor"):
                text += f"  ({phase['ratio_to_floor']:.2f} x floor)"
        axes.annotate(text, (max(median, high), row), xytext=(6, 0), textcoords="offset points", va="center")
    label_rows(axes, entries, "microseconds, slowest rank")
    axes.set_title("Time of a call")


def draw_bytes(axes, entries):
    for row, (_, phase) in enumerate(entries):
        axes.barh(row - 0.17, phase["bytes_sent"] / 2**20, height=0.3, color=BLUE, label="sent" if row == 0 else None)
        axes.barh(row + 0.17, phase["bytes_minimum"] / 2**20, height=0.3, color=GREY,
                  label="least possible" if row == 0 else None)
        axes.annotate(f"{mebibytes(phase['bytes_sent'])}  + {mebibytes(phase['bytes_control'])} control",
                      (phase["bytes_sent"] / 2**20, row - 0.17), xytext=(6, 0), textcoords="offset points", va="center")
    label_rows(axes, entries, "MiB to other ranks, busiest rank")
    axes.set_title("Bytes of a call")


def label_rows(axes, entries, xlabel):
    axes.set_yticks(range(len(entries)), [label for label, _ in entries])
    axes.set_ylim(len(entries) - 0.4, -0.6)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.35)
    axes.set_xlabel(xlabel)
    axes.grid(axis="y", visible=False)


def legends_below(figure, axes_list):
    for axes in axes_list:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24 if figure.get_figheight() < 4 else -0.16), ncol=3,
                    frameon=False, fontsize=8.5)


def draw_bench(pyplot, results):
    entries = flat_phases(results)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11.5, 2.6 + 0.5 * len(entries)), layout="constrained",
                                            width_ratios=(3, 2))
    draw_times(left, entries)
    draw_bytes(right, entries)
    right.tick_params(labelleft=len(results) == 1)
    legends_below(figure, (left, right))
    head = describe_shape(results[0]["shape"]) if len(results) == 1 else f"{len(results)} shapes"
    checked = "checked against the oracle" if all(result["verified"] for result in results) else "NOT verified"
    figure.suptitle(f"{results[0]['command']} · moebus {results[0]['version']} · {checked}\n{head}\n"
                    f"{describe_machine(results[0]['machine'])}", fontsize=9.5, ha="left", x=0.01)
    return figure


def draw_peers(pyplot, result):
    rows = result["rows"]
    labels = [f"{row['shape']}\n{row['phase']}" for row in rows]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11.5, 2.6 + 0.55 * len(rows)), layout="constrained",
                                            width_ratios=(3, 2), sharey=True)
    for index, row in enumerate(rows):
        for offset, side, colour, name in ((-0.19, "moebus", BLUE, "moebus"),
                                           (0.19, "mpi", ORANGE, "counts + pack + MPI_Alltoallv + unpack")):
            times = row[side]
            left.barh(index + offset, times["median_us"], height=0.34, color=colour, label=name if index == 0 else None)
            left.plot([times["min_us"], times["p99_us"]], [index + offset] * 2, color="black", linewidth=1)
            left.annotate(microseconds(times["median_us"]), (max(times["p99_us"], times["median_us"]), index + offset),
                          xytext=(6, 0), textcoords="offset points", va="center", fontsize=8.5)
        right.barh(index, row["ratio"], height=0.5, color=BLUE if row["ratio"] >= 1 else RED)
        right.annotate(f"{row['ratio']:.2f} x", (row["ratio"], index), xytext=(5, 0), textcoords="offset points",
                       va="center")
    left.set_xscale("log")
    left.set_yticks(range(len(rows)), labels)
    left.set_ylim(len(rows) - 0.4, -0.6)
    left.grid(axis="y", visible=False)
    right.grid(axis="y", visible=False)
    smallest = min(row[side]["min_us"] for row in rows for side in ("moebus", "mpi"))
    left.set_xlim(smallest / 3, left.get_xlim()[1] * 2.5)
    left.set_xlabel("microseconds, slowest rank (log scale; line: min to p99)")
    left.set_title("Time of a call")
    right.axvline(1, color="black", linewidth=1)
    right.set_xlim(0, max(1.2, max(row["ratio"] for row in rows) * 1.2))
    right.set_xlabel("times faster than MPI")
    right.set_title("Ratio")
    legends_below(figure, (left,))
    figure.suptitle(f"{result['command']} · moebus {result['version']} · interleaved in one run, both checked\n"
                    f"{describe_machine(result['machine'])} · {result['mpi']}", fontsize=9.5, ha="left", x=0.01)
    return figure


def main(arguments):
    if len(arguments) < 2 or arguments[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if arguments and arguments[0] in ("-h", "--help") else EXIT_USAGE
    target, names = arguments[0], arguments[1:]
    if os.path.splitext(target)[1] not in (".svg", ".png"):
        fail(f"{target}: the name must end in .svg or .png")
    results = [read_result(name) for name in names]
    pyplot = load_pyplot()
    is_peers = ["rows" in result for result in results]
    if any(is_peers) and len(results) > 1:
        fail("a result of bench/peers is drawn alone")
    try:
        figure = draw_peers(pyplot, results[0]) if is_peers[0] else draw_bench(pyplot, results)
    except (KeyError, TypeError, ValueError) as error:
        fail(f"a result lacks or garbles a field: {error!r}")
    try:
        figure.savefig(target, metadata={"Date": None} if target.endswith(".svg") else None)
    except OSError as error:
        fail(f"{target}: {error.strerror}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
