#!/usr/bin/env python3
"""The report of tools/profile.sh on a small recorded run, and the parts that read machines and counters. Runs no benchmark."""

import copy
import json
import pathlib
import re
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tools" / "lib"))
import profile_machine  # noqa: E402
import profile_report  # noqa: E402
import profile_run  # noqa: E402

RECORDED = json.loads((HERE / "profile_recorded.json").read_text(encoding="utf-8"))


def rows(text, heading):
    """The cells of the table that follows a heading."""
    part = text.split(heading, 1)[1]
    lines = re.search(r"(^\|.*\n)+", part, re.MULTILINE).group(0).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.profile = copy.deepcopy(RECORDED)
        self.text = profile_report.report(self.profile)

    def test_says_what_was_measured_and_where(self):
        machine, library = self.profile["machine"], self.profile["headlane"]
        for part in (machine["processor"], machine["kernel"], library["compiler"], library["commit"], "AVX2", "SMT off", "governor", "L2 unified 512K",
                     f"{machine['memory_gb']} GB"):
            self.assertIn(part, self.text)
        for note in machine["notes"]:
            self.assertIn(note, self.text)

    def test_limits_per_thread_count(self):
        table = rows(self.text, "## Limits")
        self.assertEqual([row[0] for row in table], [str(run["threads"]) for run in self.profile["runs"]])
        self.assertEqual(table[0][2], "100 %")
        one, two = self.profile["runs"]
        self.assertEqual(table[1][1], f"{two['fma_gflops']:.1f}")
        self.assertEqual(table[1][2], f"{100 * two['fma_gflops'] / one['fma_gflops'] / 2:.0f} %")
        self.assertEqual(table[1][5], f"{two['fma_gflops'] / two['read_gbps']:.1f}")

    def test_every_case_with_its_share_of_the_limit(self):
        for run in self.profile["runs"]:
            table = {row[0]: row for row in rows(self.text, f"## {run['threads']} thread")}
            self.assertEqual(len(table), len(run["cases"]))
            for case in run["cases"]:
                row = table[case["name"].rsplit("/threads", 1)[0]]
                self.assertEqual(row[7], f"{case['%limit']:.1f} %")
                self.assertEqual(row[6], "memory" if case["memory_bound"] > 0.5 else "multiply-adds")

    def test_threads(self):
        table = {row[0]: row for row in rows(self.text, "## Threads")}
        one, two = self.profile["runs"]
        for case in two["cases"]:
            name = case["name"].rsplit("/threads", 1)[0]
            before, = [c for c in one["cases"] if c["name"].startswith(name + "/")]
            self.assertEqual(table[name][1:], ["1.00 x", f"{before['ms'] / case['ms']:.2f} x"])

    def test_roofline(self):
        picture = re.search(r"```\n(.*?)```", self.text, re.DOTALL).group(1)
        self.assertEqual(len({line.index("|") for line in picture.splitlines() if "|" in line}), 1)
        for sign in ("o", "/", "-", "FLOP per byte"):
            self.assertIn(sign, picture)
        # On the roof, at the ridge: a case with the peak is in the first line, one with a 16th lies lower.
        run = {"threads": 1, "fma_gflops": 128.0, "read_gbps": 32.0, "cases": [{"name": "a", "GFLOP/s": 128.0, "GB/s": 1.0}, {"name": "b", "GFLOP/s": 8.0, "GB/s": 4.0}]}
        lines = [line for line in profile_report.roofline(run).splitlines() if "|" in line]
        self.assertIn("o", lines[0])
        self.assertEqual([i for i, line in enumerate(lines) if "o" in line][-1], len(lines) - 1)
        run["cases"] = []
        self.assertNotIn("o", profile_report.roofline(run).split("\n", 1)[1].rsplit("\n", 2)[0])

    def test_counters(self):
        self.assertIn(self.profile["counters"]["reason"], self.text)
        self.profile["counters"] = {"unit": "per key and query row", "kernels": {"qk/f32/rows:32": {"cycles": 10.0, "instructions": 32.0}}}
        self.assertEqual(rows(profile_report.report(self.profile), "## Counters"), [["qk/f32/rows:32", "10.00", "32.00", "3.20"]])

    def test_what_a_machine_does_not_tell(self):
        machine = self.profile["machine"]
        for field, value in (("governor", {}), ("max_khz", None), ("boost", None), ("caches", []), ("memory_gb", None), ("transparent_hugepages", None), ("nodes", []), ("notes", [])):
            machine[field] = value
        self.profile["headlane"] = {key: None for key in self.profile["headlane"]}
        self.profile["runs"][1]["cases"][0] = {"name": "prefill/a/threads:2", "error": "refused: why"}
        text = profile_report.report(self.profile)
        self.assertIn("unknown", text)
        self.assertIn("refused: why", text)

    def test_disturbed_and_missed(self):
        case = self.profile["runs"][-1]["cases"][0]
        case |= {"cpu_share": 0.5, "ms": 10.0, "%required": 80.0, "%limit": 79.0}
        text = profile_report.report(self.profile)
        self.assertIn("disturbed; required 80 %: missed", text)
        case |= {"cpu_share": 1.0, "%limit": 81.0}
        self.assertIn("| required 80 %: reached |", profile_report.report(self.profile))


class MachineTest(unittest.TestCase):
    def test_cpu_lists(self):
        self.assertEqual(profile_machine.cpu_list("0-2,5"), [0, 1, 2, 5])
        self.assertEqual(profile_machine.cpu_list(""), [])
        self.assertEqual(profile_machine.cpu_list(None), [])

    def test_one_processor_of_each_core(self):
        # Siblings are 0 and 4, 1 and 5, ...; then neighbours; then two sockets with the same core numbers.
        self.assertEqual(profile_machine.physical_cores(range(8), {cpu: ("0", str(cpu % 4)) for cpu in range(8)}), [0, 1, 2, 3])
        self.assertEqual(profile_machine.physical_cores(range(8), {cpu: ("0", str(cpu // 2)) for cpu in range(8)}), [0, 2, 4, 6])
        self.assertEqual(profile_machine.physical_cores(range(4), {cpu: (str(cpu // 2), str(cpu % 2)) for cpu in range(4)}), [0, 1, 2, 3])
        # What is not allowed is not used, and what is unknown counts as a core.
        self.assertEqual(profile_machine.physical_cores({5, 6}, {cpu: ("0", str(cpu % 4)) for cpu in range(8)}), [5, 6])
        self.assertEqual(profile_machine.physical_cores({0, 1}, {}), [0, 1])

    def test_thread_counts(self):
        self.assertEqual(profile_machine.thread_counts(1), [1])
        self.assertEqual(profile_machine.thread_counts(2), [1, 2])
        self.assertEqual(profile_machine.thread_counts(6), [1, 2, 4, 6])
        self.assertEqual(profile_machine.thread_counts(64), [1, 2, 4, 8, 16, 32, 64])

    def test_this_machine(self):
        machine = profile_machine.describe()
        self.assertTrue(machine["processor"])
        self.assertGreaterEqual(machine["processors"], len(machine["cores"]))
        self.assertGreaterEqual(len(machine["cores"]), 1)
        json.dumps(machine)

    def test_notes(self):
        quiet = {"governor": {"performance": 8}, "smt": "off", "cores": [0, 1], "boost": "off", "features": [], "quota": None, "nodes": [{"node": 0, "cpus": [0, 1]}],
                 "numactl": False, "load": 0.1}
        self.assertEqual(profile_machine.notes(quiet), [])
        for change, word in (({"governor": {"powersave": 8}}, "powersave"), ({"smt": "on"}, "SMT"), ({"boost": "on"}, "Boost"), ({"features": ["hypervisor"]}, "virtual"),
                             ({"quota": 1.5}, "1.5 processors"), ({"nodes": [{}, {}]}, "NUMA"), ({"load": 4.0}, "load"), ({"governor": {}}, "no frequency governor")):
            note, = profile_machine.notes(quiet | change)
            self.assertIn(word, note)


class RunTest(unittest.TestCase):
    def test_medians_of_repetitions(self):
        run = {"run_type": "iteration", "run_name": "decode/a/threads:2/repeats:3/real_time", "GB/s": 1.0, "%limit": 50.0}
        data = {"benchmarks": [run | {"real_time": 3.0}, run | {"real_time": 1.0}, run | {"real_time": 2.0, "GB/s": 4.0}, run | {"run_type": "aggregate", "real_time": 99.0}]}
        self.assertEqual(profile_run.cases_of(data), [{"name": "decode/a/threads:2", "ms": 2.0, "spread": 1.0, "GB/s": 1.0, "%limit": 50.0}])

    def test_failed_cases_keep_their_message(self):
        data = {"benchmarks": [{"run_type": "iteration", "run_name": "a/threads:1", "error_occurred": True, "error_message": "refused: x", "real_time": 0.0}]}
        self.assertEqual(profile_run.cases_of(data), [{"name": "a/threads:1", "error": "refused: x"}])

    def test_perf(self):
        text = "1000,,cycles:u,100,100.00,,\n2500,,instructions:u,100,100.00,2.5,insn per cycle\n<not supported>,,cache-misses:u,0,100.00,,\n\nnoise\n"
        self.assertEqual(profile_run.parse_perf(text), {"cycles": 1000, "instructions": 2500})

    def test_report_of_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "profile.json"
            path.write_text(json.dumps(RECORDED))
            self.assertTrue(profile_report.report(json.loads(path.read_text())).startswith("# Headlane on "))


if __name__ == "__main__":
    unittest.main()
