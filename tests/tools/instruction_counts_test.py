#!/usr/bin/env python3
"""What decides whether a kernel got dearer: reading counters, and comparing with the table. Needs no counter."""

import contextlib
import copy
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "lib"))
import instruction_counts as ic  # noqa: E402

PROGRAM = """compiler g++ 12.2.0
highway 1.2.0
target AVX2
case qk/f32/rows:1 128
case pack_k/f32/keys:16 16
target SSE2
case qk/f32/rows:1 128
"""
ENTRY = {"target": "AVX2", "compiler": "g++ 12.2.0", "highway": "1.2.0", "counter": "callgrind",
         "counts": {"qk/f32/rows:1": 40.0, "pv/f32/rows:1": 20.0}}


def scaled(factor, case="qk/f32/rows:1"):
    entry = copy.deepcopy(ENTRY)
    entry["counts"][case] *= factor
    return entry


class CompareTest(unittest.TestCase):
    TABLE = {"entries": [ENTRY]}

    def failures(self, *entries, **kwargs):
        return ic.compare(self.TABLE, list(entries), **kwargs)[0]

    def test_four_percent_dearer_fails(self):
        for case in ENTRY["counts"]:
            failures = self.failures(scaled(1.04, case))
            self.assertEqual(len(failures), 1)
            for part in ("AVX2", "g++ 12.2.0", case, "+4.0 %"):
                self.assertIn(part, failures[0])

    def test_two_percent_dearer_passes(self):
        self.assertEqual(ic.compare(self.TABLE, [scaled(1.02)]), ([], []))
        self.assertEqual(self.failures(ENTRY), [])

    def test_the_border_is_three_percent(self):
        self.assertEqual(self.failures(scaled(1.0299)), [])
        self.assertEqual(len(self.failures(scaled(1.0301))), 1)
        self.assertEqual(len(self.failures(scaled(1.02), tolerance=1)), 1)

    def test_cheaper_is_remarked_and_passes(self):
        failures, remarks = ic.compare(self.TABLE, [scaled(0.9)])
        self.assertEqual(failures, [])
        self.assertEqual(len(remarks), 1)
        self.assertIn("-10.0 %", remarks[0])

    def test_other_versions_are_not_compared(self):
        for field, value in (("compiler", "g++ 14.2.0"), ("highway", "1.3.0"), ("target", "AVX3")):
            failures = self.failures(ENTRY | {field: value})
            self.assertEqual(len(failures), 1)
            self.assertIn("no such entry", failures[0])
            self.assertIn(value, failures[0])
        # It says what there is.
        self.assertIn("g++ 12.2.0 with Highway 1.2.0", self.failures(ENTRY | {"compiler": "g++ 14.2.0"})[0])

    def test_kernels_that_come_and_go_fail(self):
        more, less = copy.deepcopy(ENTRY), copy.deepcopy(ENTRY)
        more["counts"]["qk/int8/rows:1"] = 9.0
        del less["counts"]["pv/f32/rows:1"]
        self.assertIn("qk/int8/rows:1 is new", self.failures(more)[0])
        self.assertIn("pv/f32/rows:1 is gone", self.failures(less)[0])

    def test_no_number_fails(self):
        self.assertEqual(len(self.failures(scaled(float("nan")))), 1)
        self.assertEqual(len(self.failures(scaled(float("inf")))), 1)


class ReadingTest(unittest.TestCase):
    # Start-up, N, 2 N for each case; what lies between cases belongs to the next one's start-up.
    MARKS = [10**6, 1000 + 2 * 5120, 1000 + 4 * 5120, 77, 50 + 2 * 160, 50 + 4 * 160, 99, 2 * 7680, 4 * 7680]

    def test_difference_per_unit(self):
        entries = ic.entries_of("callgrind", ic.parse_program(PROGRAM), self.MARKS)
        self.assertEqual([(e["target"], e["compiler"], e["highway"], e["counter"], e["counts"]) for e in entries],
                         [("AVX2", "g++ 12.2.0", "1.2.0", "callgrind", {"qk/f32/rows:1": 40.0, "pack_k/f32/keys:16": 10.0}),
                          ("SSE2", "g++ 12.2.0", "1.2.0", "callgrind", {"qk/f32/rows:1": 60.0})])

    def test_missing_marks(self):
        with self.assertRaisesRegex(ic.Problem, "8 marks for 3 cases"):
            ic.entries_of("callgrind", ic.parse_program(PROGRAM), self.MARKS[:-1])

    def test_a_counter_that_stands_still(self):
        with self.assertRaisesRegex(ic.Problem, "does not work"):
            ic.entries_of("plugin", ic.parse_program(PROGRAM), [5] * 9)

    def test_ticks(self):
        # As it comes over a serial line of an emulator, among other things.
        text = "compiler g++ 12.2.0\r\nhighway 1.2.0\r\ntarget AVX3\r\ncase qk/f32/rows:1 128 5220 10340\r\nINIT rc=0\r\n"
        entry, = ic.entries_of("ticks", ic.parse_program(text))
        self.assertEqual((entry["counter"], entry["counts"]), ("Bochs", {"qk/f32/rows:1": 20.0}))

    def test_what_is_no_output(self):
        for text in ("", "target AVX2\n", "case a 1\n", "target AVX2\ncase a 1\n", "compiler g++ 12\nhighway 1\ntarget AVX2\ncase a\n"):
            with self.assertRaises(ic.Problem, msg=text):
                ic.parse_program(text)


class CommandTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.table = self.folder / "table.json"
        (self.folder / "output").write_text(PROGRAM)

    def run_main(self, action, factor=1.0):
        (self.folder / "parts").mkdir(exist_ok=True)
        for i, count in enumerate(ReadingTest.MARKS, start=1):
            (self.folder / "parts" / f"c.{i}").write_text(f"version: 1\nevents: Ir\nsummary: {int(count * factor)}\nfn=a\n1 5\n")
        self.output = io.StringIO()
        with contextlib.redirect_stdout(self.output), contextlib.redirect_stderr(self.output):
            return ic.main([action, "--table", str(self.table), f"callgrind:{self.folder / 'output'}:{self.folder / 'parts' / 'c'}"])

    def test_update_then_check(self):
        self.assertEqual(self.run_main("check"), 1, self.output.getvalue())  # nothing is there yet
        self.assertEqual(self.run_main("update"), 0)
        self.assertEqual(self.run_main("check"), 0, self.output.getvalue())
        self.assertEqual(self.run_main("check", 1.02), 0, self.output.getvalue())
        self.assertEqual(self.run_main("check", 1.04), 1)
        self.assertIn("3 failures", self.output.getvalue())
        before = self.table.read_text()
        self.assertEqual(self.run_main("update"), 0)
        self.assertEqual(self.table.read_text(), before)

    def test_update_keeps_other_entries(self):
        other = ENTRY | {"compiler": "clang++ 19.1.7"}
        self.table.write_text(json.dumps({"entries": [other]}))
        self.assertEqual(self.run_main("update"), 0)
        self.assertIn(other, json.loads(self.table.read_text())["entries"])
        self.assertEqual(len(json.loads(self.table.read_text())["entries"]), 3)

    def test_plugin(self):
        log = self.folder / "log"
        log.write_text("mark 100\nmark 110\nmark 130\n")
        self.assertEqual(ic.marks_of_plugin(log), [100, 10, 20])

    def test_print(self):
        self.assertEqual(self.run_main("print"), 0)
        self.assertIn("| qk/f32/rows:1 | 40 | 60 |", self.output.getvalue())

    def test_no_such_output(self):
        (self.folder / "output").unlink()
        self.assertEqual(self.run_main("check"), 2)


class CommittedTableTest(unittest.TestCase):
    def test_is_what_update_writes(self):
        path = ROOT / "bench" / "instruction_counts.json"
        text = path.read_text(encoding="utf-8")
        table = json.loads(text)
        self.assertEqual(json.dumps(ic.merged(table, []), indent=1) + "\n", text)
        cases = {target: set() for target in (entry["target"] for entry in table["entries"])}
        for entry in table["entries"]:
            self.assertEqual(sorted(entry), ["compiler", "counter", "counts", "highway", "target"])
            self.assertTrue(all(count > 0 for count in entry["counts"].values()))
            cases[entry["target"]] |= set(entry["counts"])
        # Every target counts the same kernels.
        self.assertEqual(len(set(map(frozenset, cases.values()))), 1)


if __name__ == "__main__":
    unittest.main()
