#!/bin/bash
# Reads the machine code of the micro-kernels and fails when a hot loop moves vectors to the stack and back, which means
# that its register block is too large for the target.
#
# Separate from the tests because it looks at object files and not at results: nothing runs, so every target of a build is
# checked on any machine. tools/lib/check_spills.py decides.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

usage() {
  cat <<'USAGE'
usage: tools/check_spills.sh [--verbose] [--update] [PRESET [TARGET...]]
  PRESET   what to build and read: release (default), clang, aarch64, aarch64-clang
  TARGET   Highway's names; default: AVX2 AVX3 on x86-64, NEON SVE_256 on ARM
  --verbose names every loop
  --update  write how much the loops of tools/lib/known_spills.json spill, instead of refusing that it grows
exit status: 0; 1 spills, or with CI=true no compiler or disassembler; 77 none can be had here
USAGE
}

options_of_check=() preset=
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --verbose | --update) options_of_check+=("$1"); shift ;;
    -*) usage >&2; die "unknown argument '$1'" ;;
    *) break ;;
  esac
done
preset="${1:-release}"
[ $# -eq 0 ] || shift
targets=("$@")
case "$preset" in aarch64*) machine=aarch64 ;; *) machine="$(uname -m)" ;; esac
if [ ${#targets[@]} -eq 0 ]; then
  if [ "$machine" = aarch64 ]; then targets=(NEON SVE_256); else targets=(AVX2 AVX3); fi
fi
cd "$HEADLANE_ROOT"

disassembler=
for candidate in "$machine-linux-gnu-objdump" objdump llvm-objdump-19; do
  command -v "$candidate" >/dev/null || continue
  # A machine's own objdump may know no other machine.
  if [ "$candidate" = objdump ] && [ "$machine" != "$(uname -m)" ]; then continue; fi
  disassembler="$candidate"
  break
done
if [ -z "$disassembler" ]; then
  say "SKIPPED: no objdump for $machine"
  in_ci && exit 1
  exit 77
fi

status=0
if [ "$machine" = aarch64 ] && [ "$(uname -m)" != aarch64 ]; then
  tools/build_arm.sh "$preset" -DHEADLANE_BUILD_DECODER=OFF -DHEADLANE_BUILD_BENCH=OFF -- headlane || status=$?
else
  options=()
  in_ci && options+=(-DHEADLANE_WERROR=ON)
  tools/build.sh "$preset" "${options[@]}" -- headlane || status=$?
fi
if [ $status -eq 77 ]; then
  say "SKIPPED: no compiler for $machine"
  in_ci && exit 1
  exit 77
fi
[ $status -eq 0 ] || die "the build failed"
status=0
# All that multiply vectors. Not softmax.cc and elementwise.cc: their loops compute functions, whose constants compilers
# read from the stack, on AVX2, as they would from anywhere else.
readonly kernels=('kv_*' rows linear_f32 'weights_*')
# The numbers of known spills belong to a compiler.
what_cmake_found() { sed -n "s/^set($1 \"\(.*\)\")$/\1/p" build/"$preset"/CMakeFiles/*/CMakeCXXCompiler.cmake; }
version="$(what_cmake_found CMAKE_CXX_COMPILER_VERSION)"
case "$(what_cmake_found CMAKE_CXX_COMPILER_ID)" in
  GNU) compiler="g++ ${version%%.*}" ;;
  *) compiler="clang++ ${version%%.*}" ;;
esac
objects="build/$preset/src/CMakeFiles/headlane.dir/kernels"
for target in "${targets[@]}"; do
  for object in $(printf "$objects/%s.cc.o\n" "${kernels[@]}"); do
    [ -f "$object" ] || die "no $object"
    source="$(basename "$object" .cc.o)"
    "$disassembler" -d --no-show-raw-insn -C --wide "$object" |
      python3 tools/lib/check_spills.py --target "N_$target" --name "$source" --known tools/lib/known_spills.json \
        --compiler "$compiler" "${options_of_check[@]}" || status=1
  done
done
exit $status
