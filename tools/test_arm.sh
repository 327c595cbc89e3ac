#!/bin/bash
# Holds the ARM targets to the bits of all others: cross-compiles, and runs tests/targets under qemu-user at several
# vector lengths, side by side on all processors.
#
# Separate from tools/test.sh because it needs a cross compiler and an emulator. An emulated SVE instruction takes about
# a thousand times as long as a real one, so only target_test runs here, and each target where it is the best fit.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

usage() {
  cat <<'USAGE'
usage: tools/test_arm.sh [--no-clang] [GOOGLETEST ARGUMENT...]
  --no-clang  without clang's build, so without NEON_BF16
  e.g. tools/test_arm.sh --gtest_filter='Targets/Golden*'
The settings: vectors of 512 bits (SVE2, SVE), 256 (SVE_256, SVE), 128 (SVE2_128, SVE), no SVE (NEON, and NEON_BF16 with
clang), and a Cortex-A72, which is plain ARMv8.0, for the baseline and headlane-info.
exit status: 0 passed; 77 the compiler or the emulator cannot be had here, with CI=true that is a failure (1)
USAGE
}

with_clang=true arguments=()
for argument in "$@"; do
  case "$argument" in
    --no-clang) with_clang=false ;;
    -h | --help) usage; exit 0 ;;
    --gtest_*) arguments+=("$argument") ;;
    *) usage >&2; die "unknown argument '$argument'" ;;
  esac
done

readonly kUnavailable=77
cd "$HEADLANE_ROOT"

build() {  # TARGET... by tools/build_arm.sh
  local status=0
  tools/build_arm.sh "$@" || status=$?
  if [ $status -eq $kUnavailable ]; then
    if in_ci; then
      say "FAILED: the ARM targets cannot be tested here, which in CI is a failure"
      exit 1
    fi
    say "SKIPPED: the ARM targets cannot be tested here"
    exit $kUnavailable
  fi
  [ $status -eq 0 ] || die "the build for ARM failed"
}

# As tools/count_instructions.sh builds it.
build aarch64 -DHEADLANE_BUILD_DECODER=OFF -DHEADLANE_BUILD_BENCH=OFF -- target_test headlane-info
if $with_clang; then build emulated-arm-clang -- target_test; fi

logs="$(mktemp -d)"
trap 'rm -rf "$logs"' EXIT
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=2

# One line for each run: name, preset, processor, targets to run on, what its features must choose, what to leave out.
# The longest first. Generic SVE is the same code at each length, and SVE2's but for integer dot products, which is why
# the others of these need no more than the golden hashes.
runs() {
  cat <<'RUNS'
sve-256 aarch64 max,sve-max-vq=2 SVE_256 SVE_256 -
sve-512 aarch64 max SVE SVE2 -
sve2-512 aarch64 max SVE2 SVE2 *Golden*:*ForcedTarget*
sve-128 aarch64 max,sve-max-vq=1 SVE2_128 SVE2_128 -
sve-generic-256 aarch64 max,sve-max-vq=2 SVE SVE_256 *Golden*
sve-generic-128 aarch64 max,sve-max-vq=1 SVE SVE2_128 *Golden*
neon aarch64 max,sve=off NEON NEON -
armv8.0 aarch64 cortex-a72 NEON NEON -
RUNS
  if $with_clang; then printf 'neon-bf16 emulated-arm-clang max,sve=off NEON_BF16 NEON_BF16 -\n'; fi
}

run_one() {  # NAME PRESET PROCESSOR TARGETS BEST FILTER
  local name="$1" filter=() started=$SECONDS status=0
  [ "$6" = - ] || filter=("--gtest_filter=$6")
  qemu-aarch64 -cpu "$3" "build/$2/bin/target_test" --gtest_brief=1 --targets="$4" --expect-targets="$4" \
    --expect-best="$5" "${filter[@]}" "${arguments[@]}" >"$logs/$name" 2>&1 || status=$?
  if [ $status -eq 0 ]; then
    say "passed in $((SECONDS - started)) s: $name ($4 on $3)"
  else
    cat "$logs/$name" >&2
    say "FAILED with status $status: $name ($4 on $3)"
    touch "$logs/failed"
  fi
}

say "running on emulated processors: $(runs | wc -l) settings, $(num_jobs) at a time"
set +e
running=0
while read -r -a run; do
  if [ $running -ge "$(num_jobs)" ]; then
    wait -n
    running=$((running - 1))
  fi
  run_one "${run[@]}" </dev/null &
  running=$((running + 1))
done < <(runs)
wait
set -e

# A program that has to choose by itself, on the plainest processor that there is.
qemu-aarch64 -cpu cortex-a53 build/aarch64/bin/headlane-info --no-measure >"$logs/info" || die "headlane-info failed on a Cortex-A53"
grep -E '^NEON' "$logs/info" >&2

[ ! -e "$logs/failed" ] || die "an ARM target failed, see above"
say "ARM passed: SVE2, SVE, SVE_256, SVE2_128, NEON$($with_clang && echo ', NEON_BF16')"
