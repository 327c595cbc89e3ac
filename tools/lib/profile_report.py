#!/usr/bin/env python3
"""A Markdown report, and with matplotlib a picture, of the JSON that tools/profile.sh wrote.

Separate from the run so that a report can be made again of a JSON that somebody sent: profile_report.py profile.json
"""

import json
import math
import pathlib
import sys


def number(value, decimals=1, unit=""):
    return "-" if value is None else f"{value:.{decimals}f}{unit}"


def table(heading, rows):
    return "\n".join(["| " + " | ".join(heading) + " |", "|---" * len(heading) + "|"] + ["| " + " | ".join(row) + " |" for row in rows])


def machine_table(profile):
    m, h = profile["machine"], profile["headlane"]
    governors = ", ".join(f"{name} ({count} processors)" for name, count in sorted(m["governor"].items())) or "unknown"
    caches = ", ".join(f"L{c['level']} {c['type'].lower()} {c['size']} (shared by {c['shared_by']})" for c in m["caches"]) or "unknown"
    active = next(target for target in profile["targets"] if target["active"])
    rows = [
        ("processor", f"{m['processor']}, {m['architecture']}"),
        ("processors", f"{m['processors']} usable, {len(m['cores'])} physical cores, SMT {m['smt']}"),
        ("NUMA nodes", str(max(1, len(m["nodes"])))),
        ("clock", f"at most {m['max_khz'] / 1e6:.2f} GHz" if m["max_khz"] else "unknown"),
        ("governor", f"{governors}; boost {m['boost'] or 'unknown'}"),
        ("caches", caches),
        ("memory", f"{m['memory_gb'] or '?'} GB, transparent huge pages: {m['transparent_hugepages'] or 'unknown'}"),
        ("system", f"{m['system']}, Linux {m['kernel']}"),
        ("library", f"Headlane {h['version'] or '?'} ({h['commit'] or 'no commit'}), numerics {profile['numerics_version']}, Highway {h['highway']}, "
                    f"oneDNN {h['onednn']}, OpenMP {h['openmp']}"),
        ("compiler", f"{h['compiler']}, {h['build_type']}"),
        ("target", f"{active['name']}, vectors of {8 * active['vector_bytes']} bits, {active['registers']} registers, "
                   f"blocks of {active['block_rows']} rows x {active['block_cols']} vectors"),
    ]
    return table(("", profile["date"] + (", quick" if profile["quick"] else "")), rows)


def limits_table(profile):
    first = profile["runs"][0]
    rows = []
    for run in profile["runs"]:
        scale = run["threads"] / first["threads"]
        rows.append((str(run["threads"]), number(run["fma_gflops"]), number(100 * run["fma_gflops"] / first["fma_gflops"] / scale, 0, " %"),
                     number(run["read_gbps"]), number(100 * run["read_gbps"] / first["read_gbps"] / scale, 0, " %"),
                     number(run["fma_gflops"] / run["read_gbps"]), run["fma_kernel"]))
    return table(("threads", "multiply-add GFLOP/s", f"of {first['threads']} x", "read GB/s", f"of {first['threads']} x", "ridge, FLOP per byte", "measured with"), rows)


def intensity(case):
    """FLOPs per byte of keys and values or weights, or None."""
    return case["GFLOP/s"] / case["GB/s"] if case.get("GFLOP/s") and case.get("GB/s") else None


def cases_table(run):
    rows = []
    for case in run["cases"]:
        if "error" in case:
            rows.append((case["name"], "-", "-", "-", "-", "-", "-", "-", case["error"]))
            continue
        bound = "-" if case.get("%limit") is None else "memory" if case.get("memory_bound", 0) > 0.5 else "multiply-adds"
        remarks = []
        if case.get("cpu_share") is not None and case["cpu_share"] < 0.9 and case["ms"] > 1:
            remarks.append("disturbed")
        if case.get("%required") is not None and case.get("%limit") is not None:
            remarks.append(f"required {case['%required']:.0f} %: " + ("reached" if case["%limit"] >= case["%required"] else "missed"))
        rows.append((case["name"].removesuffix(f"/threads:{run['threads']}"), f"{case['ms']:.4g}", number(100 * case["spread"], 0, " %"), number(case.get("GFLOP/s")),
                     number(case.get("GB/s")), number(intensity(case), 2), bound, number(case.get("%limit"), 1, " %"), "; ".join(remarks)))
    return table(("case", "ms", "spread", "GFLOP/s", "GB/s", "FLOP per byte", "bound by", "of limit", ""), rows)


def scaling_table(profile):
    """Cases that ran at several thread counts: speed-up over the first."""
    runs = profile["runs"]
    times = {}
    for run in runs:
        for case in run["cases"]:
            name = case["name"].removesuffix(f"/threads:{run['threads']}")
            if name != case["name"] and "ms" in case:
                times.setdefault(name, {})[run["threads"]] = case["ms"]
    rows = [(name, *(number(of[runs[0]["threads"]] / of[run["threads"]], 2, " x") if run["threads"] in of else "-" for run in runs))
            for name, of in times.items() if len(of) > 1 and runs[0]["threads"] in of]
    return table(("times as fast as on the fewest threads", *(f"{run['threads']} threads" for run in runs)), rows) if rows else ""


def roofline(run, width=64, height=16):
    """The roofline in characters, both axes logarithmic: FLOPs per byte to the right, GFLOP/s up."""
    peak, bandwidth = run["fma_gflops"], run["read_gbps"]
    ridge = peak / bandwidth
    # What reads next to nothing per operation, as prefill does, stands at the right end.
    points = [(intensity(case) or ridge * 8, case["GFLOP/s"]) for case in run["cases"] if case.get("GFLOP/s")]
    xs = [x for x, _ in points] + [ridge / 8, ridge * 8]
    x_low, x_high = math.log2(min(xs)), math.log2(max(xs))
    # Three octaves below the lowest point of interest at most, or everything would be in the top line.
    y_high = math.log2(peak)
    y_low = min([math.log2(max(y, peak / 4096)) for _, y in points] + [math.log2(min(peak, bandwidth * 2 ** x_low))])
    column = lambda x: min(width - 1, max(0, round((math.log2(x) - x_low) / (x_high - x_low) * (width - 1))))
    line = lambda y: min(height - 1, max(0, round((y_high - math.log2(y)) / (y_high - y_low) * (height - 1))))
    grid = [[" "] * width for _ in range(height)]
    for at in range(width):
        x = 2 ** (x_low + (x_high - x_low) * at / (width - 1))
        grid[line(min(peak, bandwidth * x))][at] = "-" if x >= ridge else "/"
    for x, y in points:
        grid[line(max(y, peak / 4096))][column(x)] = "o"
    lines = [f"{2 ** (y_high - (y_high - y_low) * i / (height - 1)):9.1f} |{''.join(row).rstrip()}" for i, row in enumerate(grid)]
    axis = " " * 10 + "+" + "-" * width
    ends = f"{2 ** x_low:.2g}"
    return "\n".join([" GFLOP/s", *lines, axis, " " * 11 + ends + f"{2 ** x_high:.3g}".rjust(width - len(ends)), " " * 11 + "FLOP per byte read".center(width)])


def counters_section(counters):
    if "reason" in counters:
        return f"Not counted: {counters['reason']}."
    events = sorted({event for kernel in counters["kernels"].values() for event in kernel})
    rows = []
    for name, kernel in counters["kernels"].items():
        per_cycle = kernel["instructions"] / kernel["cycles"] if kernel.get("instructions") else None
        rows.append((name, *(number(kernel.get(event), 2) for event in events), number(per_cycle, 2)))
    return f"{counters['unit'].capitalize()}, one core, operands in its caches:\n\n" + table(("kernel", *events, "instructions per cycle"), rows)


def report(profile):
    last = profile["runs"][-1]
    parts = [f"# Headlane on {profile['machine']['processor']}", machine_table(profile)]
    if profile["machine"]["notes"]:
        parts.append("\n".join(f"- {note}" for note in profile["machine"]["notes"]))
    parts += ["## Limits, measured", limits_table(profile)]
    parts.append(f"## Roofline, {last['threads']} threads\n\nA case (`o`) on the line is as fast as the machine can be; read bandwidth bounds what lies under the slope, "
                 "multiply-adds what lies under the level. At the right end: prefill.")
    parts.append("```\n" + roofline(last) + "\n```")
    for run in reversed(profile["runs"]):
        parts += [f"## {run['threads']} thread{'s' if run['threads'] > 1 else ''}, on processors {', '.join(map(str, run['cpus']))}", cases_table(run)]
    scaling = scaling_table(profile)
    if scaling:
        parts += ["## Threads", scaling]
    parts += ["## Counters", counters_section(profile["counters"])]
    parts.append("Names and columns are explained in bench/README.md of the project. The limit of a case is the larger of its bytes at the read bandwidth and its operations at "
                 "the multiply-add peak, both measured in the same process (the bandwidth again around each case).")
    return "\n\n".join(parts) + "\n"


def plot(profile, path):
    """The roofline as a picture; None, with a message, without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        print("headlane: no picture: it needs matplotlib", file=sys.stderr)
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot
    run = profile["runs"][-1]
    ridge = run["fma_gflops"] / run["read_gbps"]
    figure, axes = pyplot.subplots(figsize=(8, 5))
    xs = [ridge / 32, ridge, ridge * 32]
    axes.plot(xs, [min(run["fma_gflops"], run["read_gbps"] * x) for x in xs], color="black")
    for case in run["cases"]:
        if intensity(case):
            axes.plot(intensity(case), case["GFLOP/s"], "o")
            axes.annotate(case["name"].rsplit("/threads", 1)[0], (intensity(case), case["GFLOP/s"]), fontsize=5)
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte read", ylabel="GFLOP/s", title=f"{profile['machine']['processor']}, {run['threads']} threads")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    print(report(json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))), end="")


if __name__ == "__main__":
    main()
