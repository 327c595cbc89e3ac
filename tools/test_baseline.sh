#!/bin/bash
# Proves that the programs of the release build start and work on a plain x86-64 processor: nothing outside of the
# kernels, which are chosen at run time, may need an instruction that the first such processors lacked.
#
# An emulator is the proof, because it refuses what its processor does not have; a disassembly could not tell what runs.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

usage() {
  cat <<'USAGE'
usage: tools/test_baseline.sh [PRESET]
  PRESET is release (default) or another one for this machine with all SIMD targets
exit status: 0 passed; 77 the emulator cannot be had here, with CI=true that is a failure (1)
USAGE
}
case "${1:-}" in -h | --help) usage; exit 0 ;; esac
preset="${1:-release}"

readonly kUnavailable=77
cd "$HEADLANE_ROOT"
skip() {
  in_ci && { say "FAILED: $*, which in CI is a failure"; exit 1; }
  say "SKIPPED: $*"
  exit $kUnavailable
}

[ "$(uname -m)" = x86_64 ] || skip "this is about x86-64; tools/test_arm.sh has ARM's baseline"
tools/setup.sh --qemu || skip "no emulator"
tools/build.sh "$preset" -- target_test headlane-info

# SSE2 and nothing behind it. Of the tests what needs the operator in all its parts once: the whole takes minutes.
export OMP_WAIT_POLICY=passive
for processor in qemu64,-sse3,-ssse3,-sse4.1,-sse4.2,-svm,-popcnt Nehalem; do
  say "on a $processor"
  qemu-x86_64 -cpu "$processor" "build/$preset/bin/target_test" --gtest_brief=1 --expect-targets=SSE2 --expect-best=SSE2 \
    --gtest_filter='*ChosenTarget*:*ForcedTarget*:*MathTarget*:*dims_33_17*:*TwoThreads*:*f16_cache*'
  qemu-x86_64 -cpu "$processor" "build/$preset/bin/headlane-info" --no-measure | grep -qE '^SSE2 .*in use' ||
    die "headlane-info does not run on SSE2 there"
done
say "the baseline passed: target_test and headlane-info need no more than SSE2"
