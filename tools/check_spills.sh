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
usage: tools/check_spills.sh [--verbose] [PRESET [TARGET...]]
  PRESET   what to build and read: release (default), clang, aarch64, aarch64-clang
  TARGET   Highway's names; default: AVX2 AVX3 on x86-64, NEON SVE_256 on ARM
  --verbose names every loop
exit status: 0; 1 spills, or with CI=true no disassembler; 77 no disassembler
USAGE
}

verbose=() preset=
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --verbose) verbose=(--verbose); shift ;;
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
# What clang compiles has no SVE_256, and NEON goes by the name of what it adds.
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

options=()
in_ci && options+=(-DHEADLANE_WERROR=ON)
tools/build.sh "$preset" "${options[@]}" -- headlane
status=0
for target in "${targets[@]}"; do
  for source in kv_f32 kv_f16 kv_bf16 linear_f32; do
    object="build/$preset/src/CMakeFiles/headlane.dir/kernels/$source.cc.o"
    [ -f "$object" ] || die "no $object"
    "$disassembler" -d --no-show-raw-insn -C --wide "$object" |
      python3 tools/lib/check_spills.py --target "N_$target" --name "$source" "${verbose[@]}" || status=1
  done
done
exit $status
