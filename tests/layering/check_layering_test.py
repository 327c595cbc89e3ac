#!/usr/bin/env python3
"""A check that cannot fail is none: each rule of check_layering.py must find a violation planted for it."""

import pathlib
import tempfile

import check_layering


def guard(name, body=""):
    return f"#ifndef {name}\n#define {name}\n{body}\n#endif  // {name}\n"


CLEAN = {
    "include/headlane/a.h": guard("HEADLANE_A_H_", "#include <cstdint>\n#include \"headlane/b.h\""),
    "include/headlane/b.h": guard("HEADLANE_B_H_"),
    "src/base/math.h": guard("HEADLANE_SRC_BASE_MATH_H_", "#include \"headlane/a.h\""),
    "src/kernels/kernel_api.h": guard("HEADLANE_SRC_KERNELS_KERNEL_API_H_", "#include \"base/math.h\""),
    "src/kernels/exp-inl.h": "#include <hwy/highway.h>\n",
    "src/plan/plan.h": guard("HEADLANE_SRC_PLAN_PLAN_H_", "#include \"kernels/kernel_api.h\""),
    "src/plan/plan.cc": "#include \"plan/plan.h\"\n",
    "src/plan/CMakeLists.txt": "target_sources(headlane PRIVATE plan.cc)\n",
    "src/exec/executor_openmp.cc": "#include <omp.h>\n",
    "src/exec/CMakeLists.txt": "executor_openmp.cc\n",
}

# What is planted, and what the line about it must contain.
PLANTED = [
    ({"include/headlane/a.h": guard("HEADLANE_A_H_", "#include \"base/math.h\"")}, "public headers"),
    ({"include/headlane/a.h": guard("HEADLANE_A_H_", "#include <hwy/base.h>")}, "hwy/base.h"),
    ({"include/headlane/a.h": guard("HEADLANE_B_H_")}, "no header guard HEADLANE_A_H_"),
    ({"src/base/math.h": guard("HEADLANE_SRC_BASE_MATH_H_", "#include \"kernels/kernel_api.h\"")}, "src/base may not know src/kernels"),
    ({"src/base/math.h": guard("HEADLANE_SRC_BASE_MATH_H_", "#include \"hwy/highway.h\"")}, "hwy/highway.h"),
    ({"src/plan/plan.cc": "#include \"kernels/exp-inl.h\"\n"}, "src/plan may not know src/kernels"),
    ({"src/plan/plan.cc": "#include \"kv/nothing.h\"\n"}, "there is no src/kv/nothing.h"),
    ({"src/plan/plan.cc": "#include <omp.h>\n"}, "omp.h"),
    ({"src/plan/plan.cc": "#include <boost/config.hpp>\n"}, "what library"),
    ({"src/plan/plan.cc": "// line\n" * 601}, "601 lines"),
    ({"src/plan/lost.cc": "\n"}, "no CMakeLists.txt names it"),
    ({"src/decoder/loop.h": guard("HEADLANE_SRC_DECODER_LOOP_H_", "#include \"base/math.h\"")}, "src/decoder may not know src/base"),
    ({"src/other/new.h": guard("HEADLANE_SRC_OTHER_NEW_H_", "#include \"base/math.h\"")}, "has no rule"),
]


def problems_of(files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return check_layering.check(root)


def main():
    clean = problems_of(CLEAN)
    assert not clean, clean
    for planted, expected in PLANTED:
        found = problems_of({**CLEAN, **planted})
        assert any(expected in problem for problem in found), (expected, found)
    print(f"check_layering: {len(PLANTED)} planted violations found")


if __name__ == "__main__":
    main()
