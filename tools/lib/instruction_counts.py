#!/usr/bin/env python3
"""Instruction counts of the kernels: from a counter's output to a table, and a comparison with the committed one.

Separate from count_instructions.sh, which runs counters, so that what decides about success is tested without any.
The shell script calls it; nobody else needs to:

    instruction_counts.py check|update|print --table FILE [--tolerance PERCENT] RUN...
    RUN is KIND:OUTPUT[:COUNTER], KIND being how it was counted:
      callgrind:OUTPUT:PREFIX   the program's output, and the files PREFIX.1, PREFIX.2, ... dumped at its marks
      plugin:OUTPUT:LOG         the program's output, and what the plugin of qemu wrote at its marks
      ticks:OUTPUT              the output of the program with --ticks

A table has one entry per SIMD target and compiler, whose counts are instructions per unit (UNITS below).
"""

import argparse
import json
import math
import pathlib
import re
import sys

UNITS = {
    "qk, pv, qk_rows, pv_rows, softmax": "per key and query row (one token of one query head), heads of 128 features",
    "linear": "per output feature and row, 128 inputs: as much work as a key and query row of qk",
    "pack_k, pack_v, widen_k, widen_v": "per key of one KV head, 128 features",
    "weights, int8_weights": "per 16 outputs x 32 inputs and row, from tiles of four or, several rows of int8, from a panel of one",
    "expand, int8_expand": "per 16 outputs x 32 inputs",
    "int8_quantize": "per 32 inputs of a row",
}
TOLERANCE_PERCENT = 3.0
ROUNDS = 2  # of headlane_instruction_count, its default
COUNTERS = {"callgrind": "callgrind", "plugin": "qemu-user", "ticks": "Bochs"}


class Problem(Exception):
    """What cannot be compared, in words for the user."""


def parse_program(text):
    """[(target, compiler, highway, [(case, units, ticks or None)])] of the output of headlane_instruction_count."""
    compiler = highway = None
    runs = []
    for line in text.replace("\r", "").splitlines():
        word, _, rest = line.partition(" ")
        if word == "compiler":
            compiler = rest
        elif word == "highway":
            highway = rest
        elif word == "target":
            runs.append((rest, compiler, highway, []))
        elif word == "case":
            parts = rest.split()
            if not runs or len(parts) not in (2, 4):
                raise Problem(f"not a line of headlane_instruction_count: {line!r}")
            ticks = (int(parts[2]), int(parts[3])) if len(parts) == 4 else None
            runs[-1][3].append((parts[0], float(parts[1]), ticks))
    if not runs or not all(cases for _, _, _, cases in runs) or compiler is None or highway is None:
        raise Problem("the output of headlane_instruction_count has no compiler, no Highway version or no cases")
    return runs


def marks_of_callgrind(prefix):
    """Instructions between marks: part i was dumped when mark i was entered."""
    counts = []
    while True:
        path = pathlib.Path(f"{prefix}.{len(counts) + 1}")
        if not path.exists():
            break
        match = re.search(r"^(?:totals|summary): (\d+)", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        if match is None:
            raise Problem(f"{path} has no total")
        counts.append(int(match.group(1)))
    return counts  # what follows the last mark is in a file without a number


def marks_of_plugin(path):
    """The same from lines "mark TOTAL"."""
    totals = [int(total) for total in re.findall(r"^mark (\d+)$", pathlib.Path(path).read_text(encoding="utf-8"), re.MULTILINE)]
    return [after - before for before, after in zip([0] + totals, totals)]


def entries_of(kind, runs, between_marks=()):
    """Table entries of one run of the program. between_marks: three per case: before N rounds, N rounds, 2 N rounds."""
    num_cases = sum(len(cases) for _, _, _, cases in runs)
    if kind != "ticks" and len(between_marks) != 3 * num_cases:
        raise Problem(f"{len(between_marks)} marks for {num_cases} cases: three each are expected")
    entries, at = [], 0
    for target, compiler, highway, cases in runs:
        counts = {}
        for name, units, ticks in cases:
            once, twice = ticks if kind == "ticks" else between_marks[at + 1:at + 3]
            at += 3
            if twice <= once:
                raise Problem(f"{target} {name}: {twice} instructions in 2 N rounds, {once} in N: the counter does not work")
            counts[name] = float(f"{(twice - once) / ROUNDS / units:.5g}")
        entries.append({"target": target, "compiler": compiler, "highway": highway, "counter": COUNTERS[kind], "counts": counts})
    return entries


def load_run(argument):
    kind, _, rest = argument.partition(":")
    if kind not in COUNTERS:
        raise Problem(f"{argument}: a run begins with one of {', '.join(COUNTERS)}")
    output, _, counter = rest.partition(":")
    runs = parse_program(pathlib.Path(output).read_text(encoding="utf-8", errors="replace"))
    marks = {"callgrind": marks_of_callgrind, "plugin": marks_of_plugin, "ticks": lambda _: ()}[kind](counter)
    return entries_of(kind, runs, marks)


def key_of(entry):
    return entry["target"], entry["compiler"], entry["highway"]


def compare(table, entries, tolerance=TOLERANCE_PERCENT):
    """(failures, remarks) of what was counted against the table; each a line."""
    failures, remarks = [], []
    known = {key_of(entry): entry for entry in table["entries"]}
    for entry in entries:
        name = f"{entry['target']}, {entry['compiler']}, Highway {entry['highway']}"
        reference = known.get(key_of(entry))
        if reference is None:
            others = sorted({f"{e['compiler']} with Highway {e['highway']}" for e in table["entries"] if e["target"] == entry["target"]})
            failures.append(f"{name}: no such entry, counts of other versions ({', '.join(others) or 'none'}) are not compared with: "
                            "count it with --update")
            continue
        for case in sorted(set(reference["counts"]) | set(entry["counts"])):
            before, now = reference["counts"].get(case), entry["counts"].get(case)
            if before is None or now is None:
                failures.append(f"{name}: {case} is {'new' if before is None else 'gone'}: --update")
                continue
            # Not NaN-safe comparisons turned round: a count that is no number fails.
            change = 100 * (now / before - 1) if before > 0 else math.inf
            if not change <= tolerance:
                failures.append(f"{name}: {case} takes {now:g} instructions instead of {before:g} ({change:+.1f} %)")
            elif change < -tolerance:
                remarks.append(f"{name}: {case} takes {now:g} instructions instead of {before:g} ({change:+.1f} %): --update keeps the gain")
    return failures, remarks


def merged(table, entries):
    """The table with these entries in place of those of the same target and versions."""
    new = {key_of(entry): entry for entry in table.get("entries", [])}
    new.update({key_of(entry): entry for entry in entries})
    return {"units": UNITS, "tolerance_percent": TOLERANCE_PERCENT, "entries": [new[key] for key in sorted(new)]}


def markdown(entries):
    """Cases down, entries across."""
    cases = list(dict.fromkeys(case for entry in entries for case in entry["counts"]))
    lines = ["| instructions | " + " | ".join(f"{entry['target']}, {entry['compiler']}" for entry in entries) + " |",
             "|---" * (len(entries) + 1) + "|"]
    for case in cases:
        cells = [f"{entry['counts'][case]:.4g}" if case in entry["counts"] else "-" for entry in entries]
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    lines += [""] + [f"{kernels}: instructions {unit}" for kernels, unit in UNITS.items()]
    return "\n".join(lines)


def load_table(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"entries": []}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("check", "update", "print"))
    parser.add_argument("--table", type=pathlib.Path, required=True)
    parser.add_argument("--tolerance", type=float, default=TOLERANCE_PERCENT, help="percent")
    parser.add_argument("runs", nargs="+", metavar="RUN")
    options = parser.parse_args(arguments)
    try:
        entries = [entry for run in options.runs for entry in load_run(run)]
        table = load_table(options.table)
    except (OSError, ValueError, Problem) as error:
        print(f"instruction_counts.py: {error}", file=sys.stderr)
        return 2
    if options.action == "print":
        print(markdown(entries))
        return 0
    if options.action == "update":
        text = json.dumps(merged(table, entries), indent=1)
        options.table.write_text(text + "\n", encoding="utf-8")
        print(f"{options.table}: {len(entries)} entries written: {', '.join(' '.join(key_of(entry)[:2]) for entry in entries)}")
        return 0
    failures, remarks = compare(table, entries, options.tolerance)
    for line in remarks + failures:
        print(line)
    num_counts = sum(len(entry["counts"]) for entry in entries)
    print(f"{num_counts} counts of {len(entries)} targets: " +
          (f"{len(failures)} failures" if failures else f"none more than {options.tolerance:g} % dearer than the table"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
