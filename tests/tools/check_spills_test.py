#!/usr/bin/env python3
"""The check for spills on small made-up disassemblies: it must find what it is there for, and nothing else."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "lib"))
import check_spills  # noqa: E402

HEAD = "0000000000000000 <void headlane::internal::N_AVX2::Group<4>::operator()() const>:\n"


def x86(*loop, before=(), after=("ret",), head=HEAD):
    """A function with one loop of these instructions, four bytes each, from address 0x40 on."""
    lines = [f"  {4 * i:x}:\t{text}" for i, text in enumerate(before)]
    lines += [f"  {0x40 + 4 * i:x}:\t{text}" for i, text in enumerate([*loop, "jne    40 <f+0x40>"])]
    lines += [f"  {0x40 + 4 * (len(loop) + 1 + i):x}:\t{text}" for i, text in enumerate(after)]
    return (head + "\n".join(lines)).splitlines()


FMA = "vfmadd231ps %ymm1,%ymm2,%ymm0"
FMAS = (FMA,) * 4


class Checks(unittest.TestCase):
    def run_on(self, lines, target="N_AVX2", *arguments):
        self.output = io.StringIO()
        with contextlib.redirect_stdout(self.output):
            return check_spills.main(["--target", target, *arguments], lines)


class X86Test(Checks):
    def test_clean_loop_passes(self):
        clean = x86("vmovaps (%rax),%ymm1", "vbroadcastss 0x10(%rdx),%ymm2", *FMAS, "add    $0x20,%rax",
                    before=("vmovaps %ymm3,0x20(%rsp)",), after=("vmovaps 0x20(%rsp),%ymm3", "ret"))
        self.assertEqual(self.run_on(clean), 0, self.output.getvalue())
        self.assertIn("1 loops of multiply-adds, 0 with spills", self.output.getvalue())

    def test_spills_are_found(self):
        for spill in ("vmovaps %ymm3,0x20(%rsp)", "vmovaps 0x20(%rsp),%ymm3", "vmovups %zmm17,-0x40(%rbp)", "vmovaps (%rsp),%ymm3",
                      "vfmadd231ps 0x20(%rsp),%ymm2,%ymm0", "vmovdqa64 %zmm3,0x40(%rsp,%rax,1)"):
            self.assertEqual(self.run_on(x86(*FMAS, spill)), 1, spill)
            self.assertIn(spill, self.output.getvalue())
            self.assertIn("Group<4>", self.output.getvalue())

    def test_other_registers_may_go_to_the_stack(self):
        # Addresses and counters of the outer loops: one of them costs nothing beside the vectors.
        self.assertEqual(self.run_on(x86(*FMAS, "mov    0x20(%rsp),%rax", "mov    %rax,0x28(%rsp)", "add    (%rsp),%rax")), 0)

    def test_no_loop_is_an_error(self):
        straight = (HEAD + "\n".join(f"  {4 * i:x}:\t{FMA}" for i in range(8)) + "\n  20:\tret").splitlines()
        self.assertEqual(self.run_on(straight), 2)
        self.assertEqual(self.run_on([]), 2)
        self.assertEqual(self.run_on(x86("vaddps %ymm1,%ymm2,%ymm0", "vmovaps %ymm3,0x20(%rsp)")), 2)
        self.assertEqual(self.run_on(x86(*FMAS), "N_AVX3"), 2)
        self.assertEqual(self.run_on(x86(*FMAS), "N_AVX2", "--functions", "Pv"), 2)
        self.assertIn("nothing was checked", self.output.getvalue())

    def test_only_the_innermost_loop_counts(self):
        # The outer loop, 0x20 .. 0x60, stores what the inner one has computed.
        lines = (HEAD + """  20:\tvmovaps 0x20(%rsp),%ymm0
  30:\tvfmadd231ps %ymm1,%ymm2,%ymm0
  34:\tvfmadd231ps %ymm1,%ymm2,%ymm3
  38:\tvfmadd231ps %ymm1,%ymm2,%ymm4
  3c:\tvfmadd231ps %ymm1,%ymm2,%ymm5
  40:\tjne    30 <f+0x30>
  44:\tvmovaps %ymm0,0x20(%rsp)
  60:\tjb     20 <f+0x20>
  64:\tret""").splitlines()
        self.assertEqual(self.run_on(lines), 0, self.output.getvalue())

    def test_blocks_that_were_moved_away(self):
        # The part with the spill stands behind the function's return, and is part of the loop all the same.
        lines = (HEAD + """  30:\tvfmadd231ps %ymm1,%ymm2,%ymm0
  34:\tvfmadd231ps %ymm1,%ymm2,%ymm3
  38:\tvfmadd231ps %ymm1,%ymm2,%ymm4
  3c:\tjae    60 <f+0x60>
  40:\tvfmadd231ps %ymm1,%ymm2,%ymm5
  44:\tjne    30 <f+0x30>
  48:\tret
  60:\tvmovaps %ymm0,0x20(%rsp)
  64:\tjmp    40 <f+0x40>""").splitlines()
        self.assertEqual(self.run_on(lines), 1)
        # A jump backwards is no loop where nothing leads on to it again.
        lines = (HEAD + """  30:\tvfmadd231ps %ymm1,%ymm2,%ymm0
  34:\tvfmadd231ps %ymm1,%ymm2,%ymm3
  38:\tret
  40:\tvfmadd231ps %ymm1,%ymm2,%ymm0
  44:\tvfmadd231ps %ymm1,%ymm2,%ymm3
  48:\tvmovaps %ymm0,0x20(%rsp)
  4c:\tjmp    30 <f+0x30>""").splitlines()
        self.assertEqual(self.run_on(lines), 2)

    def test_several_functions(self):
        lines = x86(*FMAS) + [""] + x86(*FMAS, "vmovaps %ymm3,0x20(%rsp)", head=HEAD.replace("<4>", "<6>"))
        self.assertEqual(self.run_on(lines), 1)
        self.assertIn("2 loops of multiply-adds, 1 with spills", self.output.getvalue())
        self.assertEqual(self.run_on(lines, "N_AVX2", "--functions", "<4>"), 0)
        # The same name twice, as local copies of a function have it, hides neither.
        lines = x86(*FMAS, "vmovaps %ymm3,0x20(%rsp)") + [""] + x86(*FMAS)
        self.assertEqual(self.run_on(lines), 1)


class ArmTest(Checks):
    HEAD = "0000000000000000 <void headlane::internal::{}::Group<4>::operator()() const>:\n"

    def arm(self, target, *loop):
        lines = [f"  {0x40 + 4 * i:x}:\t{text}" for i, text in enumerate([*loop, "b.ne\t40 <f+0x40>  // b.any", "ret"])]
        return (self.HEAD.format(target) + "\n".join(lines)).splitlines()

    def test_neon(self):
        fmas = ("fmla\tv0.4s, v1.4s, v2.4s", "fmla\tv3.4s, v1.4s, v2.s[1]") * 2
        self.assertEqual(self.run_on(self.arm("N_NEON", "ldr\tq1, [x0], #16", "ldp\tq4, q5, [x1]", *fmas), "N_NEON"), 0, self.output.getvalue())
        for spill in ("str\tq3, [sp, #32]", "ldp\tq3, q4, [sp, #64]", "ldr\tq3, [x29, #-16]", "st1\t{v3.4s}, [sp]"):
            self.assertEqual(self.run_on(self.arm("N_NEON", *fmas, spill), "N_NEON"), 1, spill)
        for other in ("ldr\tx3, [sp, #32]", "stp\tx29, x30, [sp, #-16]!", "ldr\tw0, [sp]"):
            self.assertEqual(self.run_on(self.arm("N_NEON", *fmas, other), "N_NEON"), 0, other)

    def test_sve(self):
        fmas = ("fmla\tz0.s, p0/m, z1.s, z2.s", "fmad\tz3.s, p0/m, z1.s, z2.s") * 2
        self.assertEqual(self.run_on(self.arm("N_SVE_256", "ld1w\t{z1.s}, p0/z, [x0]", *fmas), "N_SVE_256"), 0, self.output.getvalue())
        for spill in ("str\tz3, [sp, #1, mul vl]", "ldr\tz3, [sp]", "st1w\t{z3.s}, p0, [sp, #1, mul vl]", "ld1w\t{z3.s}, p0/z, [sp]"):
            self.assertEqual(self.run_on(self.arm("N_SVE_256", *fmas, spill), "N_SVE_256"), 1, spill)

    def test_sve_through_an_address(self):
        # What is far from the stack pointer goes through a register, set in the loop or outside, from another one too.
        fmas = ("fmla\tz0.s, p0/m, z1.s, z2.s",) * 4
        for before in (("add\tx24, sp, #0x190",), ("mov\tx9, sp", "addvl\tx24, x9, #-8"), ("addvl\tx24, sp, #3", "add\tx24, x24, #0x10")):
            for spill in ("str\tz16, [x24]", "ldr\tz3, [x24, #1, mul vl]"):
                self.assertEqual(self.run_on(self.arm("N_SVE_256", *before, *fmas, spill), "N_SVE_256"), 1, (before, spill))
                self.assertIn(spill.replace("\t", " "), self.output.getvalue())
        # Other addresses, and what is read element by element, are operands.
        for other in ("str\tz16, [x23]", "ld1w\t{z3.s}, p0/z, [x24]", "ldr\tx3, [x24]"):
            self.assertEqual(self.run_on(self.arm("N_SVE_256", "add\tx24, sp, #0x190", "add\tx23, x22, #64", *fmas, other), "N_SVE_256"), 0, other)

    def test_loops_that_end_with_compare_and_branch(self):
        lines = [line.replace("b.ne\t40 <f+0x40>  // b.any", "cbnz\tx3, 40 <f+0x40>")
                 for line in self.arm("N_NEON", *["fmla\tv0.4s, v1.4s, v2.4s"] * 4, "str\tq3, [sp]")]
        self.assertEqual(self.run_on(lines, "N_NEON"), 1)



class IntegerTest(Checks):
    def test_integer_products_are_multiply_adds(self):
        for product in ("vpmaddwd %ymm1,%ymm2,%ymm0", "vpmaddubsw %ymm1,%ymm2,%ymm0", "vpdpbusd %ymm1,%ymm2,%ymm0"):
            self.assertEqual(self.run_on(x86(*(product,) * 4)), 0, product)
            self.assertEqual(self.run_on(x86(*(product,) * 4, "vmovaps %ymm3,0x20(%rsp)")), 1, product)


class KnownTest(Checks):
    """One loop with two spills in Group<4>, and one with one in Group<6>."""
    LINES = x86(*FMAS, "vmovaps %ymm3,0x20(%rsp)", "vmovaps 0x20(%rsp),%ymm3") + [""] + x86(
        *FMAS, "vmovaps %ymm3,0x20(%rsp)", head=HEAD.replace("<4>", "<6>"))

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "known.json"

    def run_with(self, *groups, compiler="g++ 12", source="rows", update=False):
        self.path.write_text(json.dumps(groups))
        return self.run_on(self.LINES, "N_AVX2", "--known", str(self.path), "--name", source, "--compiler", compiler, *["--update"] * update)

    @staticmethod
    def group(functions, numbers, **changes):
        return {"source": "rows", "functions": functions, "reason": "a reason, in words, for a reader",
                "most": {"g++ 12": {"AVX2": numbers}}} | changes

    def test_known_loops_pass(self):
        self.assertEqual(self.run_with(self.group("Group", [2, 3])), 0, self.output.getvalue())
        self.assertIn("0 with spills, 2 more that are known", self.output.getvalue())
        self.assertEqual(self.run_with(self.group("<4>", [1, 2]), self.group("<6>", [1, 1])), 0, self.output.getvalue())

    def test_numbers_may_not_grow(self):
        for numbers in ([1, 3], [2, 2], [0, 0]):
            self.assertEqual(self.run_with(self.group("Group", numbers)), 1, numbers)
            self.assertIn(f"2 loops with 3 spills are known, {numbers[0]} with {numbers[1]} are allowed", self.output.getvalue())
        # Another target has none.
        self.assertEqual(self.run_with(self.group("Group", [2, 3], most={"g++ 12": {"AVX3": [2, 3]}})), 1)

    def test_fewer_pass_and_are_told(self):
        self.assertEqual(self.run_with(self.group("Group", [2, 4])), 0)
        self.assertIn("keeps the gain", self.output.getvalue())

    def test_others_fail(self):
        self.assertEqual(self.run_with(self.group("<4>", [1, 2])), 1)
        self.assertIn("Group<6>", self.output.getvalue())
        self.assertNotIn("Group<4>::operator()() const: 2 spills", self.output.getvalue())
        self.assertEqual(self.run_with(self.group("Group", [2, 3]), source="kv_f32"), 1)

    def test_other_compilers_are_told_and_not_compared(self):
        self.assertEqual(self.run_with(self.group("Group", [0, 0]), compiler="g++ 14"), 0)
        self.assertIn("not compared", self.output.getvalue())

    def test_update(self):
        self.assertEqual(self.run_with(self.group("<4>", [9, 9]), self.group("<6>", [0, 0]), self.group("none", [1, 1]), update=True), 0)
        text = self.path.read_text()
        groups = json.loads(text)
        self.assertEqual([group["most"] for group in groups],
                         [{"g++ 12": {"AVX2": [1, 2]}}, {"g++ 12": {"AVX2": [1, 1]}}, {"g++ 12": {}}])
        self.assertEqual(check_spills.known_text(groups), text)
        # What no group is for is not put there.
        self.assertEqual(self.run_with(self.group("<4>", [9, 9]), update=True), 1)

    def test_a_reason_is_required(self):
        for changes in ({"reason": ""}, {"reason": "because"}, {"more": 1}):
            with self.assertRaisesRegex(ValueError, "reason"):
                self.run_with(self.group("Group", [2, 3], **changes))

    def test_the_committed_file(self):
        path = ROOT / "tools" / "lib" / "known_spills.json"
        groups = check_spills.load_known(path)
        self.assertEqual(check_spills.known_text(groups), path.read_text(encoding="utf-8"))
        kernels = ROOT / "src" / "kernels"
        for group in groups:
            self.assertTrue((kernels / f"{group['source']}.cc").exists(), group["source"])


if __name__ == "__main__":
    unittest.main()
