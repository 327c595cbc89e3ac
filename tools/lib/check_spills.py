#!/usr/bin/env python3
"""Fails when a hot loop of a kernel stores or loads a vector register on the stack: a register block too large.

Reads the disassembly (objdump -d) of an object file, finds innermost loops that are made of multiply-adds, and looks
for vectors that go to the stack or come from it. Called by tools/check_spills.sh.

    objdump -d --no-show-raw-insn -C -w FILE.o | check_spills.py --target N_AVX2 --functions REGEX

No loop found is an error: then the check proves nothing.

Loops that are known to spill stand in a file (--known), each group with a reason and with the number of such loops and
of their spills, per compiler and target, which may not grow:

    [{"source": "weights_q4", "functions": "REGEX", "reason": "...", "most": {"g++ 12": {"AVX2": [LOOPS, SPILLS]}}}]

A compiler that is not in it has no numbers to compare with: its loops are only told. --update writes the numbers of one
that is.
"""

import argparse
import json
import pathlib
import re
import sys

FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s*(?:[0-9a-f]{2,8} )*\s*([a-z][a-z0-9.]*)\s*(.*)$")
MIN_MULTIPLY_ADDS = 4  # in a loop, or it is none of those that time is spent in

X86_FMA = re.compile(r"(?:vfn?m(?:add|sub)\d+[ps][sdh]|vpmadd(?:wd|ubsw)|vpdp(?:busd|wssd)s?)$")
X86_JUMP = re.compile(r"j[a-z]+$")
X86_VECTOR = re.compile(r"%[xyz]mm\d+")
X86_STACK = re.compile(r"\((?:%rsp|%rbp)\b")
ARM_FMA = re.compile(r"(?:fmla|fmls|fmad|fmsb|bfmlalb|bfmlalt|bfmmla|[su]dot|smlal[2bt]?|sadalp)$")
ARM_JUMP = re.compile(r"(?:b|b\.[a-z]+|cbn?z|tbn?z)$")
ARM_STACK = re.compile(r"\[(?:sp|x29)\b")
ARM_VECTOR = re.compile(r"(?:[{ ,]|^)(?:[qdv]\d+\b|z\d+\b)")
# A whole vector of SVE is spilled with these, through a register that holds an address on the stack if that is far.
ARM_WHOLE = re.compile(r"z\d+, *\[(x\d+)\b")
ARM_ADDRESS = re.compile(r"(x\d+), *(x\d+|sp)\b")
ARM_MEMORY = re.compile(r"(?:ld|st)[a-z0-9]+$")


class Instruction:
    def __init__(self, address, name, operands):
        self.address = address
        self.name = name
        self.operands = operands

    def is_x86(self):
        return "%" in self.operands

    def is_multiply_add(self):
        return bool(X86_FMA.match(self.name) or ARM_FMA.match(self.name)) and not (
            # A scalar one is none of ours.
            self.name.startswith("vf") and self.name.endswith(("ss", "sd", "sh")) or re.match(r"[hsd]\d+,", self.operands))

    def jump_target(self):
        if not (X86_JUMP.match(self.name) or ARM_JUMP.match(self.name)):
            return None
        match = re.search(r"(?:^|[ ,])(?:0x)?([0-9a-f]+)(?: <.*>)?$", self.operands.split("//")[0].strip())
        return int(match.group(1), 16) if match else None

    def never_falls_through(self):
        return self.name in ("jmp", "jmpq", "ret", "retq", "b", "br", "ud2", "hlt", "brk")

    def ends_block(self):
        return self.never_falls_through() or self.jump_target() is not None

    def address_from(self):
        """(to, from) of an instruction that puts a register or the stack's plus something into another, or None."""
        if self.is_x86() or self.name not in ("add", "addvl", "mov"):
            return None
        match = ARM_ADDRESS.match(self.operands)
        return match.groups() if match else None

    def is_spill(self, on_stack=frozenset()):
        """Whether a vector goes to the stack or comes from it, in an operand of arithmetic too.

        `on_stack`: the registers that may hold addresses on the stack.
        """
        operands = self.operands.split("#")[0].split("//")[0]
        if self.is_x86():
            return bool(X86_STACK.search(operands) and X86_VECTOR.search(operands))
        whole = ARM_WHOLE.match(operands)
        if self.name in ("ldr", "str") and whole and whole.group(1) in on_stack:
            return True
        return bool(ARM_MEMORY.match(self.name) and ARM_STACK.search(operands) and ARM_VECTOR.search(operands.split("[")[0]))

    def __str__(self):
        return f"{self.address:x}: {self.name} {self.operands}"


def parse(lines):
    """{function: [Instruction]}; functions of the same name are numbered."""
    functions, current = {}, None
    for line in lines:
        match = FUNCTION.match(line.rstrip())
        if match:
            name, number = match.group(1), 2
            while name in functions:
                name, number = f"{match.group(1)} #{number}", number + 1
            current = functions[name] = []
            continue
        match = INSTRUCTION.match(line.rstrip())
        if match and current is not None:
            current.append(Instruction(int(match.group(1), 16), match.group(2), match.group(3).strip()))
    return functions


def basic_blocks(instructions):
    """[(begin, end)] of index ranges, and for each the blocks that may come next."""
    index = {instruction.address: i for i, instruction in enumerate(instructions)}
    starts = {0}
    for i, instruction in enumerate(instructions):
        if instruction.ends_block():
            starts.add(i + 1)
            target = index.get(instruction.jump_target())
            if target is not None:
                starts.add(target)
    bounds = sorted(starts - {len(instructions)}) + [len(instructions)]
    blocks = list(zip(bounds, bounds[1:]))
    block_at = {begin: number for number, (begin, _) in enumerate(blocks)}
    following = []
    for number, (_, end) in enumerate(blocks):
        last = instructions[end - 1]
        targets = {block_at.get(index.get(last.jump_target()))}
        if not last.never_falls_through():
            targets.add(number + 1 if number + 1 < len(blocks) else None)
        following.append(sorted(targets - {None}))
    return blocks, following


def components(nodes, following):
    """Strongly connected components that are loops (Tarjan, without recursion)."""
    order, low, stack, on_stack, found = {}, {}, [], set(), []
    for root in nodes:
        if root in order:
            continue
        work = [(root, iter(following[root]))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            for target in rest:
                if target not in nodes:
                    continue
                if target not in order:
                    order[target] = low[target] = len(order)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(following[target])))
                    break
                if target in on_stack:
                    low[node] = min(low[node], order[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    component = set()
                    while True:
                        member = stack.pop()
                        on_stack.remove(member)
                        component.add(member)
                        if member == node:
                            break
                    if len(component) > 1 or node in following[node]:
                        found.append(component)
    return found


def innermost_loops(instructions):
    """[[Instruction]]: loops of the control flow graph with no loop inside. Where compilers put blocks does not matter."""
    if not instructions:
        return []
    blocks, following = basic_blocks(instructions)
    innermost, work = [], components(set(range(len(blocks))), following)
    while work:
        loop = work.pop()
        headers = {target for node, targets in enumerate(following) if node not in loop for target in targets} & loop
        # Without its headers a loop falls apart into those inside.
        inner = components(loop - (headers or {min(loop)}), following)
        if inner:
            work += inner
        else:
            innermost.append([instruction for node in sorted(loop) for instruction in instructions[slice(*blocks[node])]])
    return sorted(innermost, key=lambda loop: loop[0].address)


def registers_on_stack(instructions):
    """The registers that are somewhere set to an address on the stack."""
    found = {"sp"}
    copies = [copy for copy in (instruction.address_from() for instruction in instructions) if copy]
    while True:
        more = {to for to, source in copies if source in found} - found
        if not more:
            return found
        found |= more


class Loop:
    def __init__(self, function, instructions, on_stack=frozenset()):
        self.function = function
        self.instructions = instructions
        self.num_multiply_adds = sum(instruction.is_multiply_add() for instruction in instructions)
        self.spills = [instruction for instruction in instructions if instruction.is_spill(on_stack)]


def hot_loops(functions):
    loops = []
    for name, body in functions.items():
        on_stack = registers_on_stack(body)
        loops += [Loop(name, loop, on_stack) for loop in innermost_loops(body)]
    return [loop for loop in loops if loop.num_multiply_adds >= MIN_MULTIPLY_ADDS]


class Known:
    """The groups of known loops of one source file, and what was found of each."""

    def __init__(self, groups, source, target, compiler):
        self.groups = [group for group in groups if group["source"] == source]
        self.target = target
        self.compiler = compiler
        self.found = [[] for _ in self.groups]

    def takes(self, loop):
        for group, found in zip(self.groups, self.found):
            if re.search(group["functions"], loop.function):
                found.append(loop)
                return True
        return False

    def compared(self):
        """For each group that has loops or may have: (group, its loops, [loops, spills], what is allowed or None)."""
        for group, found in zip(self.groups, self.found):
            of_compiler = group["most"].get(self.compiler)
            allowed = None if of_compiler is None else of_compiler.get(self.target, [0, 0])
            yield group, found, [len(found), sum(len(loop.spills) for loop in found)], allowed

    def update(self):
        for group, _, numbers, _ in self.compared():
            of_compiler = group["most"].setdefault(self.compiler, {})
            of_compiler.pop(self.target, None)
            if numbers != [0, 0]:
                of_compiler[self.target] = numbers


def load_known(path):
    groups = json.loads(path.read_text(encoding="utf-8"))
    for group in groups:
        if sorted(group) != ["functions", "most", "reason", "source"] or len(group["reason"]) < 20:
            raise ValueError(f"{path}: {group.get('source')} {group.get('functions')}: source, functions, reason (a sentence) and most are required")
    return groups


def known_text(groups):
    """As it is committed: a group's numbers in one line per compiler."""
    parts = []
    for group in groups:
        lines = [f"  {json.dumps(key)}: {json.dumps(group[key])}" for key in ("source", "functions", "reason")]
        most = ",\n".join(f"   {json.dumps(compiler)}: {json.dumps(numbers, sort_keys=True)}" for compiler, numbers in sorted(group["most"].items()))
        parts.append(" {\n" + ",\n".join(lines) + ',\n  "most": {\n' + most + "\n  }\n }")
    return "[\n" + ",\n".join(parts) + "\n]\n"


def main(arguments=None, lines=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="Highway's namespace of the target, as in N_AVX2")
    parser.add_argument("--functions", default="", help="only functions whose name this regular expression finds")
    parser.add_argument("--name", default="standard input", help="what is read, for messages")
    parser.add_argument("--known", type=pathlib.Path, help="file of loops that are known to spill")
    parser.add_argument("--compiler", default="", help="whose numbers in that file count, as in 'g++ 12'")
    parser.add_argument("--update", action="store_true", help="write the numbers found to that file")
    parser.add_argument("--verbose", action="store_true", help="name every loop")
    options = parser.parse_args(arguments)
    wanted = re.compile(options.functions)
    namespace = re.compile(rf"\b{re.escape(options.target)}::")
    functions = {name: body for name, body in parse(sys.stdin if lines is None else lines).items()
                 if namespace.search(name) and wanted.search(name)}
    loops = hot_loops(functions)
    if not loops:
        print(f"{options.name}: no loop of multiply-adds in {len(functions)} functions of {options.target}: nothing was checked")
        return 2
    groups = load_known(options.known) if options.known else []
    target = options.target.removeprefix("N_")
    known = Known(groups, options.name, target, options.compiler)
    spilling = [loop for loop in loops if loop.spills]
    bad = [loop for loop in spilling if not known.takes(loop)]
    if options.verbose:
        for loop in loops:
            print(f"{loop.function}: {loop.num_multiply_adds} multiply-adds in {len(loop.instructions)} instructions")
    if options.update:
        known.update()
        options.known.write_text(known_text(groups), encoding="utf-8")
    for group, found, numbers, allowed in known.compared():
        text = f"{options.name}, {target}, {group['functions']}: {numbers[0]} loops with {numbers[1]} spills are known"
        if allowed is None:
            if found:
                print(f"{text} of other compilers than {options.compiler or 'this one'}, and not compared")
        elif any(number > most for number, most in zip(numbers, allowed)):
            bad += found
            print(f"{text}, {allowed[0]} with {allowed[1]} are allowed")
        elif numbers != allowed:
            print(f"{text}, {allowed[0]} with {allowed[1]} are allowed: --update keeps the gain")
    for loop in bad:
        print(f"{options.name}: {loop.function}: {len(loop.spills)} spills beside {loop.num_multiply_adds} multiply-adds:")
        for spill in loop.spills[:4]:
            print(f"    {spill}")
    tolerated = len(spilling) - len(bad)
    print(f"{options.name}, {options.target}: {len(loops)} loops of multiply-adds, {len(bad)} with spills" +
          (f", {tolerated} more that are known" if tolerated else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
