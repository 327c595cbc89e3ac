#!/bin/bash
# Holds the AVX-512 targets to the bits of all others: runs tests/targets on an emulated machine, in one boot, and
# natively as well where the processor has AVX-512.
#
# Separate from tools/test.sh because it needs an emulator, which takes two minutes to build on the first run and is
# kept, and because its programs are static. tools/emulation has the machine.
#
# The emulated machine runs target_test three times. With nothing forced its CPUID (Sapphire Rapids) has to choose
# AVX3_SPR, and AVX3 is supported too; it has the golden hashes, the edge matrix and the mathematical functions. AVX3_SPR
# and AVX3_ZEN4, which by CPUID only an AMD processor gets and so is forced, run the same code but for integer dot
# products (src/kernels/targets.h), and have the golden hashes. After them, unforced, the kernels' tests of linear layers,
# small operators, folds and element types. Left out, for their cost: the kernels' larger tests, the other programs; and
# AMX, with which Linux does not start there (no kernel uses it).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
. "$HEADLANE_ROOT/tools/lib/private_apt.sh"

usage() {
  cat <<'USAGE'
usage: tools/test_avx512.sh [--no-native] [--no-emulator] [GOOGLETEST ARGUMENT...]
  --no-native    not on this machine's processor, even if it has AVX-512
  --no-emulator  only there
  e.g. tools/test_avx512.sh --gtest_filter='Golden*'
exit status: 0 passed; 77 nothing failed, but the emulator cannot be had here, so the targets that this processor lacks
  did not run; with CI=true that is a failure (1), like a failed test
USAGE
}

native=true emulated=true arguments=()
for argument in "$@"; do
  case "$argument" in
    --no-native) native=false ;;
    --no-emulator) emulated=false ;;
    -h | --help) usage; exit 0 ;;
    --gtest_*) arguments+=("$argument") ;;
    *) usage >&2; die "unknown argument '$argument'" ;;
  esac
done

readonly kUnavailable=77
readonly kHighwaySha256=7e0be78b8318e8bdbf6fa545d2ecb4c90f947df03f7aadc42c1967f019e63343
readonly kArchive="$HEADLANE_ROOT/build/deps/archives/highway-1.2.0.tar.gz"
cd "$HEADLANE_ROOT"

skip() {
  if in_ci; then
    say "FAILED: $*, which in CI is a failure"
    exit 1
  fi
  say "SKIPPED: $*"
  exit $kUnavailable
}

[ "$(uname -m)" = x86_64 ] || skip "the AVX-512 targets are built on x86-64 only"

# Of the packages only what this build needs; in CI everything is there by now.
HEADLANE_WITH_ONEDNN=OFF tools/setup.sh

# The emulator first: where it cannot be had, that is known within seconds.
have_emulator=false
if $emulated; then
  status=0
  tools/emulation/get_bochs.sh >/dev/null || status=$?
  case $status in
    0) have_emulator=true ;;
    $kUnavailable) ;;
    *) die "the emulator could not be built" ;;
  esac
fi

# What CMake would fetch comes out of Debian's sources where they are to be had.
options=()
if private_apt_update && fetch_source highway=1.2.0-2 $kHighwaySha256 "$kArchive"; then
  options+=("-DHEADLANE_HIGHWAY_URL=$kArchive")
fi
in_ci && options+=(-DHEADLANE_WERROR=ON)
tools/build.sh emulated-x86 "${options[@]}" -- target_test kernels_ops_test kernels_attention_test
readonly kPrograms=build/emulated-x86/bin
readonly kTest=$kPrograms/target_test

# ---- On this processor ----------------------------------------------------------------------------------------------

cpu_has() {
  local feature
  for feature in "$@"; do grep -m 1 '^flags' /proc/cpuinfo 2>/dev/null | grep -qw "$feature" || return 1; done
}
targets=()
if $native && cpu_has avx512f avx512bw avx512cd avx512dq avx512vl; then
  targets=(AVX3)
  if cpu_has avx512_bf16 avx512_vbmi2 avx512_bitalg avx512_vnni avx512_vpopcntdq vaes vpclmulqdq gfni; then
    grep -qm 1 AuthenticAMD /proc/cpuinfo && targets+=(AVX3_ZEN4)
    cpu_has avx512_fp16 && targets+=(AVX3_SPR)
  fi
  list="$(IFS=,; echo "${targets[*]}")"
  say "this processor has AVX-512: running natively on $list"
  OMP_WAIT_POLICY=passive "$kTest" --gtest_brief=1 --targets="$list" --expect-targets="$list" "${arguments[@]}"
else
  say "nothing of AVX-512 runs natively here: $($native && echo "this processor lacks it" || echo "--no-native")"
fi

# ---- On the emulated one --------------------------------------------------------------------------------------------

$emulated || exit 0
$have_emulator || skip "no emulator: of AVX-512, ${targets[*]:-no target} ran"
readonly kShared='*Golden*:*ForcedTarget*:*ChosenTarget*'
# A tenth of that program's instructions. target_test reaches the kernels of the rest.
readonly kShort='Reduce*:Fold*:Finish*:Widen*:KToV*:Element*:*NonFinite*:*WhollyHidden*:*IsNotFinite:-*RoundedToNearestEven'
say "running on the emulated machine"
common=(OMP_WAIT_POLICY=passive "$kTest" --gtest_brief=1)
tools/emulation/run.sh --time-limit 900 -- \
  "${common[@]}" --expect-best=AVX3_SPR --targets=AVX3 --expect-targets=AVX3 "${arguments[@]}" \
  --then "${common[@]}" --targets=AVX3_SPR --expect-targets=AVX3_SPR --gtest_filter="$kShared" "${arguments[@]}" \
  --then "${common[@]}" --force-targets=AVX3_ZEN4 --targets=AVX3_ZEN4 --expect-targets=AVX3_ZEN4 \
  --gtest_filter="$kShared" "${arguments[@]}" \
  --then $kPrograms/kernels_ops_test --gtest_brief=1 "${arguments[@]}" \
  --then $kPrograms/kernels_attention_test --gtest_brief=1 --gtest_filter="$kShort" "${arguments[@]}"
say "passed on the emulated machine: the choice by CPUID; AVX3, AVX3_ZEN4 and AVX3_SPR"
