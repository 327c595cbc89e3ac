#!/usr/bin/env python3
"""Turns the JSON of headlane_bench into a Markdown table, and with --plot into pictures (needs matplotlib).

    headlane_bench --benchmark_out=run.json --benchmark_out_format=json
    tools/plot_bench.py run.json [other.json ...] [--filter REGEX] [--plot DIR]

Several files: one column of times each, named after the file, for comparing runs or machines.
"""

import argparse
import collections
import json
import pathlib
import re
import statistics
import sys

BASELINES = ("onednn", "naive")  # and what begins so: onednn-graph, onednn-f16


def load(path):
    """{case: {field: median over its repetitions}} and the file's context, in the file's order."""
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    repetitions = collections.defaultdict(lambda: collections.defaultdict(list))
    for run in data["benchmarks"]:
        if run["run_type"] != "iteration" or run.get("error_occurred") or run.get("skipped"):
            continue
        name = run["run_name"].removesuffix("/real_time").replace("/repeats:1", "")
        for field, value in run.items():
            if isinstance(value, float):
                repetitions[name][field].append(value)
    return {name: {field: statistics.median(values) for field, values in fields.items()}
            for name, fields in repetitions.items()}, data["context"]


def number(value, decimals=1):
    return "-" if value is None else f"{value:.{decimals}f}"


def milliseconds(value):
    return "-" if value is None else f"{value:.4g}"


def limits_line(path, context):
    parts = []
    for key in sorted(context):
        if re.match(r"fma_gflops/threads:", key):
            threads = key.split(":")[1]
            parts.append(f"{threads} thread(s) {context[key]} GFLOP/s and {context['read_gbps/threads:' + threads]} GB/s")
    return f"{path.name}: {context.get('processor', '?')}, {context.get('target', '?')}; limits: {'; '.join(parts)}"


def print_table(runs):
    first, _ = runs[0][1], runs[0][2]
    extra = [path.stem for path, _, _ in runs[1:]]
    heading = ["case", "ms", "GFLOP/s", "GB/s", "% of limit", "required", "x oneDNN", "x Graph"] + [f"ms ({name})" for name in extra]
    print("| " + " | ".join(heading) + " |")
    print("|---" * len(heading) + "|")
    for name, case in first.items():
        bound = "" if case.get("%limit") is None else " mem" if case.get("memory_bound", 0) > 0.5 else " fma"
        cells = [name, milliseconds(case["real_time"]), number(case.get("GFLOP/s")), number(case.get("GB/s")),
                 number(case.get("%limit")) + bound, number(case.get("%required"), 0),
                 number(case.get("x_onednn"), 2), number(case.get("x_onednn_graph"), 2)]
        cells += [milliseconds(cases.get(name, {}).get("real_time")) for _, cases, _ in runs[1:]]
        print("| " + " | ".join(cells) + " |")


def series_of(name):
    """('prefill llama-3-8b threads:2', 2048, 'cache') of a prefill or decode case; None for others."""
    match = re.fullmatch(r"(prefill|decode)/([^/]+)/(\d+)(?:/(b\d+))?/([^/]+)/(threads:\d+)", name)
    if match is None:
        return None
    group, model, length, batch, variant, threads = match.groups()
    return " ".join(part for part in (group, model, batch, threads) if part), int(length), variant


def plot(cases, context, folder):
    try:
        import matplotlib
    except ImportError:
        sys.exit("plot_bench.py: --plot needs matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pictures = collections.defaultdict(lambda: collections.defaultdict(list))
    for name, case in cases.items():
        found = series_of(name)
        if found and case.get("%limit") is not None:
            title, length, variant = found
            pictures[title][variant].append((length, case["%limit"]))
    folder.mkdir(parents=True, exist_ok=True)
    for title, variants in pictures.items():
        if max(len(points) for points in variants.values()) < 2:
            continue
        figure, axes = pyplot.subplots(figsize=(6, 4))
        for variant, points in variants.items():
            points.sort()
            style = "--" if variant.startswith(BASELINES) else "-"
            axes.plot([x for x, _ in points], [y for _, y in points], style, marker="o", label=variant)
        axes.set(title=f"{title}\n{context.get('processor', '')}, {context.get('target', '')}", xlabel="tokens",
                 ylabel="% of the machine's limit", ylim=(0, 100))
        axes.set_xscale("log", base=2)
        axes.grid(True, alpha=0.3)
        axes.legend()
        figure.tight_layout()
        path = folder / (re.sub(r"[^a-z0-9]+", "-", title.lower()) + ".png")
        figure.savefig(path, dpi=120)
        pyplot.close(figure)
        print(f"wrote {path}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE.json")
    parser.add_argument("--filter", default="", help="only cases whose name this regular expression finds")
    parser.add_argument("--plot", type=pathlib.Path, metavar="DIR", help="also write a picture per model, of the first file")
    options = parser.parse_args()
    runs = []
    for path in options.files:
        try:
            cases, context = load(path)
        except (OSError, ValueError, KeyError) as error:
            sys.exit(f"plot_bench.py: {path} is no output of headlane_bench: {error}")
        runs.append((path, {name: case for name, case in cases.items() if re.search(options.filter, name)}, context))
    for path, _, context in runs:
        print(limits_line(path, context) + "\n")
    print_table(runs)
    if options.plot:
        plot(runs[0][1], runs[0][2], options.plot)


if __name__ == "__main__":
    main()
