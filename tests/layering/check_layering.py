#!/usr/bin/env python3
"""Checks the rules about files that no compiler checks; run by ctest, or by hand: check_layering.py [ROOT].

- A folder of src/ includes only the folders below it, and Highway, oneDNN, OpenMP and PCRE2 only where they belong.
- Public headers include the standard library and each other only.
- Header guards are named after the path; no file grows beyond what one can read in one sitting.
- Every source file is listed in the CMakeLists.txt of its folder.
Prints one line per violation and exits 1 when there is any.
"""

import pathlib
import re
import sys

# Folder of src/ -> folders of src/ that it may include, besides itself and the public headers.
ALLOWED = {
    "base": set(),
    "kernels": {"base"},
    "mask": {"base"},
    "kv": {"base", "kernels/kernel_api.h"},
    "plan": {"base", "mask", "kv", "kernels/kernel_api.h"},
    "exec": {"base", "mask", "kv", "plan", "kernels/kernel_api.h"},
    "linear": {"base", "kernels/kernel_api.h", "exec/parallel_for.h"},
    "ops": {"base", "kernels/kernel_api.h"},
    # Public headers only, but for how files are replaced.
    "decoder": {"base/new_file.h"},
    # The reference shares constants with the library, never code.
    "reference": {"base/canonical_math.h"},
}
# Prefix of an <...> or "..." include -> what paths, relative to the root, may have it.
THIRD_PARTY = {
    "hwy/": r"src/kernels/",
    "oneapi/": r"(src/linear|bench)/[a-z_]*onednn[a-z_]*\.(h|cc)$",
    "dnnl": r"(src/linear|bench)/[a-z_]*onednn[a-z_]*\.(h|cc)$",
    "omp.h": r"(src/exec/[a-z_]*openmp[a-z_]*\.cc|(src/linear|bench)/[a-z_]*onednn[a-z_]*\.cc|tests/.*)$",
    "pcre2.h": r"src/decoder/",
    "CLI/": r"tools/",
    "nlohmann/": r"(tools|tests)/",
    "benchmark/": r"bench/",
    "gtest/": r"tests/",
    "gmock/": r"tests/",
}
MAX_LINES = 600
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = (".h", ".cc")
# Headers with a folder in their name that belong to the system.
SYSTEM_FOLDERS = ("sys/", "linux/", "asm/", "sanitizer/", "bits/")


def includes(text):
    """(line number, '<' or '"', path) of each include."""
    for number, line in enumerate(text.splitlines(), start=1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)


def may_include(folder, path, target):
    """Whether the file `path` of src/<folder> may include src/<target>."""
    if folder == target.split("/")[0]:
        return True
    return any(target == allowed or target.startswith(allowed + "/") for allowed in ALLOWED[folder])


def check_file(root, path):
    relative = path.relative_to(root).as_posix()
    text = path.read_text(encoding="utf-8")
    top, folder = relative.split("/")[0], (relative.split("/") + [""])[1]
    problems = []

    num_lines = text.count("\n")
    if num_lines > MAX_LINES:
        problems.append(f"{relative}:1: {num_lines} lines, more than {MAX_LINES}: split it")

    if path.suffix == ".h" and not path.name.endswith("-inl.h"):
        inner = relative[len("include/headlane/"):] if top == "include" else relative
        guard = "HEADLANE_" + re.sub(r"[^A-Z0-9]", "_", inner.upper()) + "_"
        if f"#ifndef {guard}\n#define {guard}\n" not in text:
            problems.append(f"{relative}:1: no header guard {guard}")

    for number, kind, target in includes(text):
        where = f"{relative}:{number}: includes {target}"
        for prefix, pattern in THIRD_PARTY.items():
            if target.startswith(prefix) and not re.match(pattern, relative):
                problems.append(f"{where}, which belongs to {pattern}")
        is_third_party = any(target.startswith(prefix) for prefix in THIRD_PARTY)
        if top == "include":
            is_standard = kind == "<" and re.fullmatch(r"[a-z_0-9]+", target)
            if not is_standard and not target.startswith("headlane/"):
                problems.append(f"{where}: public headers use the standard library and each other only")
        elif top == "src" and kind == '"' and not is_third_party and not target.startswith("headlane/"):
            target = target[len("src/"):] if target.startswith("src/") else target
            if not (root / "src" / target).exists():
                problems.append(f"{where}: there is no src/{target}")
            elif folder not in ALLOWED:
                problems.append(f"{where}: folder src/{folder} has no rule in {pathlib.Path(__file__).name}")
            elif not may_include(folder, relative, target):
                problems.append(f"{where}: src/{folder} may not know src/{target.split('/')[0]}")
        if kind == "<" and "/" in target and not is_third_party and not target.startswith(SYSTEM_FOLDERS):
            problems.append(f"{where}: what library is this? Add it to {pathlib.Path(__file__).name}")
    return problems


def check_listed(root):
    """Each .cc is named by the CMakeLists.txt of its own folder, or it would silently not be built."""
    problems = []
    for top in ("src", "tests", "bench", "tools"):
        for path in sorted((root / top).rglob("*.cc")):
            lists = [parent / "CMakeLists.txt" for parent in path.parents if root in parent.parents]
            texts = [entry.read_text(encoding="utf-8") for entry in lists if entry.exists()]
            if not any(re.search(r"\b" + re.escape(path.name), text) for text in texts):
                problems.append(f"{path.relative_to(root).as_posix()}:1: no CMakeLists.txt names it")
    return problems


def check(root):
    problems = []
    for top in ("include", "src", "tests", "bench", "tools"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SOURCES and path.is_file():
                problems += check_file(root, path)
    return problems + check_listed(root)


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]
    if not (root / "src").is_dir():
        sys.exit(f"{root} has no src/")
    problems = check(root.resolve())
    print("\n".join(problems) if problems else "layering: ok")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
