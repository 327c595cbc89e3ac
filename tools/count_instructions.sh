#!/bin/bash
# Counts the instructions of the hot kernels per SIMD target, and compares them with a committed table: what stands for
# speed on targets that cannot be timed here, and shows on all of them what a change costs.
#
# Separate from tools/test.sh because it needs counters: callgrind for SSE2 and AVX2, a plugin of qemu-user for ARM, and
# the time stamp of the emulated machine of tools/emulation for AVX-512. Counts repeat exactly, but belong to a
# compiler and a version of Highway: there is an entry for each, and without one nothing is compared.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

usage() {
  cat <<'USAGE'
usage: tools/count_instructions.sh [--print | --check | --update] [--on PART]... [--preset NAME]
  --print        only print them, as Markdown (default)
  --check        fail when a kernel takes more than 3 % more than bench/instruction_counts.json says
  --update       write that table's entries of the targets, compiler and Highway that were counted
  --on PART      x86 (SSE2, AVX2; the default), avx512 (emulated), arm (emulated), all
  --preset NAME  build with another preset than release; with `--on x86` only
exit status: 0; 1 dearer, or with CI=true no counter; 77 no counter can be had here
USAGE
}

readonly kUnavailable=77
action=print preset=release parts=()
while [ $# -gt 0 ]; do
  case "$1" in
    --print | --check | --update) action="${1#--}"; shift ;;
    --on) parts+=("${2:-}"); shift 2 ;;
    --preset) preset="${2:-}"; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "unknown argument '$1'" ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=(x86)
[ "${parts[*]}" != all ] || parts=(x86 avx512 arm)
cd "$HEADLANE_ROOT"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
runs=() missing=()

unavailable() { say "SKIPPED: $*"; missing+=("$*"); }

build() {  # PRESET
  local -a options=()
  in_ci && options+=(-DHEADLANE_WERROR=ON)
  tools/build.sh "$1" "${options[@]}" -- headlane_instruction_count
}

count_x86() {
  [ "$(uname -m)" = x86_64 ] || { unavailable "SSE2 and AVX2 are counted on x86-64 only"; return 0; }
  command -v valgrind >/dev/null || { unavailable "no valgrind (tools/setup.sh --ci installs it): SSE2 and AVX2 are not counted"; return 0; }
  grep -qm 1 '^flags.* avx2' /proc/cpuinfo || { unavailable "this processor has no AVX2: SSE2 and AVX2 are not counted"; return 0; }
  build "$preset"
  valgrind --tool=callgrind --callgrind-out-file="$work/parts" --dump-before=HeadlaneCountMark \
    "build/$preset/bin/headlane_instruction_count" --target SSE2,AVX2 >"$work/x86" 2>"$work/log" ||
    { tail -n 20 "$work/log" >&2; die "callgrind failed"; }
  runs+=("callgrind:$work/x86:$work/parts")
}

count_avx512() {
  local status=0
  tools/emulation/get_bochs.sh >/dev/null || status=$?
  [ $status -ne $kUnavailable ] || { unavailable "no emulator: AVX-512 is not counted"; return 0; }
  [ $status -eq 0 ] || die "the emulator could not be built"
  build emulated-x86
  tools/emulation/run.sh --time-limit 300 -- \
    build/emulated-x86/bin/headlane_instruction_count --ticks --add AVX3_ZEN4 --target AVX3,AVX3_ZEN4,AVX3_SPR >"$work/avx512" ||
    { cat "$work/avx512" >&2; die "the emulated machine could not count"; }
  runs+=("ticks:$work/avx512")
}

count_arm() {
  local status=0 target processor
  tools/build_arm.sh aarch64 -DHEADLANE_BUILD_DECODER=OFF -DHEADLANE_BUILD_BENCH=OFF -- headlane_instruction_count || status=$?
  [ $status -ne $kUnavailable ] || { unavailable "no cross compiler or emulator: ARM is not counted"; return 0; }
  [ $status -eq 0 ] || die "the build for ARM failed"
  if ! qemu-aarch64 --help | grep -q -- '^-plugin'; then
    # Debian's from 13 on. No failure in CI: the same kernels are counted wherever qemu has plugins.
    say "SKIPPED: this qemu-user ($(qemu-aarch64 --version | head -n 1)) is built without plugins: ARM is not counted"
    return 0
  fi
  cc -O2 -Wall -Wextra -Werror -shared -fPIC tools/emulation/count_instructions_plugin.c -o "$work/plugin.so"
  while read -r target processor; do
    HEADLANE_COUNT_LOG="$work/$target.log" qemu-aarch64 -cpu "$processor" -plugin "$work/plugin.so" \
      build/aarch64/bin/headlane_instruction_count --target "$target" >"$work/$target" </dev/null ||
      { cat "$work/$target" >&2; die "counting $target failed"; }
    runs+=("plugin:$work/$target:$work/$target.log")
  done <<'TARGETS'
NEON max,sve=off
SVE2 max
SVE_256 max,sve-max-vq=2
SVE2_128 max,sve-max-vq=1
TARGETS
}

for part in "${parts[@]}"; do
  case "$part" in
    x86 | avx512 | arm) "count_$part" ;;
    *) usage >&2; die "unknown part '$part'" ;;
  esac
done
status=0
if [ ${#runs[@]} -gt 0 ]; then
  python3 tools/lib/instruction_counts.py "$action" --table bench/instruction_counts.json "${runs[@]}" || status=$?
fi
[ $status -eq 0 ] || exit $status
if [ ${#missing[@]} -gt 0 ]; then
  if in_ci; then
    say "FAILED: what was skipped above is a failure in CI"
    exit 1
  fi
  exit $kUnavailable
fi
