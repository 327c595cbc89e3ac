#!/usr/bin/env python3
"""Runs the benchmarks on a server, thread count by thread count, and writes one JSON and a Markdown report.

Separate from profile_report.py, which makes the report of a JSON anywhere, and from profile_machine.py, which looks at
the machine. Called by tools/profile.sh, which builds the programs and has the usage. Root is not needed: processors are
chosen with the affinity that every process may set for itself.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import profile_machine
import profile_report

SCHEMA = 1
# Without baselines, at every thread count: what scales with what.
QUICK_FILTER = "^(prefill/llama-3-8b/512/cache|decode/(llama-3-8b|one-head)/[0-9]+/b1/cache|decode/llama-3-8b/[0-9]+/b1/cache-bf16|rows/llama-3-8b/4096/rows:4/cache)/"
COUNTERS = ("cycles", "instructions", "cache-misses", "stalled-cycles-backend")
COUNTED_KERNELS = ("qk/f32/rows:1", "pv/f32/rows:1", "qk/f32/rows:32", "pv/f32/rows:32", "qk/bf16/rows:4", "softmax/rows:32")


def say(text):
    print(f"headlane: {text}", file=sys.stderr, flush=True)


def pinned(cpus):
    """For subprocess: the child, and all threads that it starts, stay on these processors."""
    return lambda: os.sched_setaffinity(0, cpus)


def cases_of(data):
    """[{name, ms, spread, ...}] of Google Benchmark's JSON: medians over the repetitions."""
    repetitions = {}
    for run in data["benchmarks"]:
        if run.get("run_type") == "iteration":
            name = re.sub(r"(/repeats:\d+|/real_time)", "", run["run_name"])
            repetitions.setdefault(name, []).append(run)
    cases = []
    for name, runs in repetitions.items():
        errors = [run["error_message"] for run in runs if run.get("error_occurred")]
        if errors:
            cases.append({"name": name, "error": errors[0]})
            continue
        median = {field: statistics.median(run[field] for run in runs) for field in
                  ("real_time", "GFLOP/s", "GB/s", "%limit", "%required", "memory_bound", "x_onednn", "cpu_share", "read_limit_GB/s")
                  if all(field in run for run in runs)}
        times = [run["real_time"] for run in runs]
        cases.append({"name": name, "ms": median.pop("real_time"), "spread": (max(times) - min(times)) / statistics.median(times), **median})
    return cases


def run_bench(options, machine, cpus, arguments):
    """One run of headlane_bench on these processors: (context, cases)."""
    threads = len(cpus)
    command = [str(options.bin / "headlane_bench"), "--no-priority", "--threads", str(threads), *arguments]
    used_nodes = [node["node"] for node in machine["nodes"] if set(node["cpus"]) & set(cpus)]
    if machine["numactl"] and len(used_nodes) > 1:
        command = ["numactl", "--interleave=" + ",".join(map(str, used_nodes))] + command
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "close", "OMP_PLACES": ",".join(f"{{{cpu}}}" for cpu in cpus)}
    with tempfile.NamedTemporaryFile(suffix=".json") as output:
        process = subprocess.Popen(command + [f"--benchmark_out={output.name}", "--benchmark_out_format=json"], env=environment, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=pinned(cpus))
        shown, line = time.monotonic(), ""
        for line in process.stdout:
            # A line now and then: a run on many threads takes minutes.
            if time.monotonic() - shown > 10 and "/threads:" in line:
                shown = time.monotonic()
                say(f"  {line.split()[0]}")
        status = process.wait()
        if status not in (0, 1):  # 1: a case failed, which the report shows
            raise RuntimeError(f"{' '.join(command)} returned {status}: {line.strip()}")
        data = json.loads(pathlib.Path(output.name).read_text(encoding="utf-8"))
    return data["context"], cases_of(data)


def perf_reason(cpu):
    """Why perf cannot count here, or None."""
    if shutil.which("perf") is None:
        return "perf is not installed"
    result = subprocess.run(["perf", "stat", "-x,", "-e", "cycles:u,instructions:u", "true"], capture_output=True, text=True, preexec_fn=pinned([cpu]))
    if result.returncode != 0:
        paranoid = profile_machine.read("/proc/sys/kernel/perf_event_paranoid", "?")
        return f"perf may not count here (perf_event_paranoid is {paranoid}; 2 or less lets anyone count own programs)"
    if "<not" in result.stderr:
        return "this machine has no counters for cycles and instructions (usual in virtual machines)"
    return None


def parse_perf(text):
    """{event: count} of `perf stat -x,`; what it cannot count is left out."""
    counts = {}
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and re.fullmatch(r"\d+", fields[0]):
            counts[fields[2].split(":")[0]] = int(fields[0])
    return counts


def count_kernels(options, cpu, target):
    """Counters of the hot kernels, alone on one core, out of its L1 and L2."""
    reason = perf_reason(cpu)
    if reason:
        return {"reason": reason}
    units = {}
    program = str(options.bin / "headlane_instruction_count")
    for line in subprocess.run([program, "--target", target, "--list"], capture_output=True, text=True, check=True).stdout.splitlines():
        if line.startswith("case "):
            _, name, count = line.split()
            units[name] = int(count)
    kernels = {}
    for name in COUNTED_KERNELS:
        # About 10^9 instructions: starting up does not count beside them. The program makes rounds, and twice as many.
        rounds = max(10, int(1e7 / units[name]))
        result = subprocess.run(["perf", "stat", "-x,", "-e", ",".join(f"{event}:u" for event in COUNTERS), program, "--target", target,
                                 "--kernel", name, "--rounds", str(rounds)], capture_output=True, text=True, preexec_fn=pinned([cpu]))
        counts = parse_perf(result.stderr)
        if result.returncode == 0 and counts.get("cycles"):
            kernels[name] = {event: count / (3 * rounds + 1) / units[name] for event, count in counts.items()}
    return {"kernels": kernels, "unit": "per key and query row, heads of 128 features, user mode"} if kernels else {"reason": "perf counted nothing"}


def build_info(options):
    cache = (profile_machine.read(options.build / "CMakeCache.txt", "") or "")
    def cached(name):
        match = re.search(rf"^{name}:\w+=(.*)$", cache, re.MULTILINE)
        return match.group(1) if match else None
    lines = subprocess.run([str(options.bin / "headlane_instruction_count"), "--target", "", "--list"], capture_output=True, text=True).stdout
    fields = dict(line.split(" ", 1) for line in lines.splitlines() if line.startswith(("compiler ", "highway ")))
    git = subprocess.run(["git", "-C", str(options.root), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return {"version": cached("CMAKE_PROJECT_VERSION"), "commit": git.stdout.strip() or None, "build_type": cached("CMAKE_BUILD_TYPE"),
            "compiler": fields.get("compiler"), "highway": fields.get("highway"), "onednn": cached("HEADLANE_WITH_ONEDNN"),
            "openmp": cached("HEADLANE_WITH_OPENMP")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="folder")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", default="", help="comma-separated; default: 1, 2, 4, ... and all physical cores")
    parser.add_argument("--filter", default="", help="regular expression for the cases of the run on all cores")
    parser.add_argument("--plot", action="store_true")
    options = parser.parse_args()
    options.bin = options.build / "bin"

    machine = profile_machine.describe()
    info = json.loads(subprocess.run([str(options.bin / "headlane-info"), "--json", "--no-measure"], capture_output=True, text=True, check=True).stdout)
    cores = machine["cores"]
    counts = profile_machine.thread_counts(len(cores))
    if options.threads:
        counts = sorted({int(count) for count in options.threads.split(",")})
        if counts[0] < 1 or counts[-1] > len(cores):
            sys.exit(f"profile: --threads {options.threads}: this machine has 1 to {len(cores)} physical cores to offer")
    elif options.quick:
        counts = sorted({1, len(cores)})
    target = next(entry["name"] for entry in info["targets"] if entry["active"])
    say(f"{machine['processor']}, {len(cores)} cores, {target}; threads: {', '.join(map(str, counts))}")
    for note in machine["notes"]:
        say(f"note: {note}")

    profile = {"schema": SCHEMA, "date": time.strftime("%Y-%m-%d", time.gmtime()), "quick": options.quick, "headlane": build_info(options),
               "machine": machine, "targets": info["targets"], "numerics_version": info["numerics_version"], "runs": []}
    for number, count in enumerate(counts, start=1):
        everything = count == counts[-1] and not options.quick
        arguments = [] if everything else ["--quick", "--no-baselines", f"--benchmark_filter={QUICK_FILTER}"]
        if options.filter:
            arguments = [argument for argument in arguments if not argument.startswith("--benchmark_filter")] + [f"--benchmark_filter={options.filter}"]
        if options.quick:
            arguments += ["--benchmark_repetitions=2", "--benchmark_min_time=0.03"]
        say(f"run {number} of {len(counts)}: {count} thread{'s' if count > 1 else ''}, {'all cases' if everything else 'a few cases'}")
        cpus = cores[:count]
        context, cases = run_bench(options, machine, cpus, arguments)
        profile["runs"].append({"threads": count, "cpus": cpus, "fma_gflops": float(context[f"fma_gflops/threads:{count}"]),
                                "fma_kernel": context[f"fma_kernel/threads:{count}"], "read_gbps": float(context[f"read_gbps/threads:{count}"]),
                                "read_kernel": context[f"read_kernel/threads:{count}"], "cases": cases})
    say("counters of the hot kernels")
    profile["counters"] = count_kernels(options, cores[0], target)

    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "profile.json"
    path.write_text(json.dumps(profile, indent=1) + "\n", encoding="utf-8")
    report = options.output / "profile.md"
    report.write_text(profile_report.report(profile), encoding="utf-8")
    written = [path, report]
    if options.plot:
        written.append(profile_report.plot(profile, options.output / "roofline.png"))
    say("wrote " + ", ".join(map(str, filter(None, written))))


if __name__ == "__main__":
    main()
