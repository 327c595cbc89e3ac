#!/bin/bash
# Builds for 64-bit ARM on another machine: installs the cross compiler and qemu-user where they are missing, gets the
# dependencies' sources from Debian, and builds a preset. For tools/test_arm.sh and tools/count_instructions.sh.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
. "$HEADLANE_ROOT/tools/lib/private_apt.sh"

usage() {
  cat <<'USAGE'
usage: tools/build_arm.sh [PRESET] [CMAKE ARGUMENT...] [-- TARGET...]
  PRESET is aarch64 (default: Debian's cross g++ 12), aarch64-clang or emulated-arm-clang. Programs land in
  build/PRESET/bin; they are static, and run with qemu-aarch64 or on a real machine.
exit status: 77 where the compiler or the emulator cannot be had
USAGE
}

preset=aarch64
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  aarch64* | emulated-arm*) preset="$1"; shift ;;
esac

readonly kUnavailable=77
# The release that CMake would fetch.
readonly kHighwaySha256=7e0be78b8318e8bdbf6fa545d2ecb4c90f947df03f7aadc42c1967f019e63343
readonly kArchives="$HEADLANE_ROOT/build/deps/archives"
cd "$HEADLANE_ROOT"

arguments=(--arm)
[[ "$preset" != *-clang ]] || arguments+=(--ci)
if ! HEADLANE_WITH_ONEDNN="${HEADLANE_WITH_ONEDNN:-OFF}" tools/setup.sh "${arguments[@]}"; then
  say "no cross compiler or no emulator for ARM"
  exit $kUnavailable
fi

# What CMake would fetch comes out of Debian's sources where they are to be had.
options=()
if private_apt_update; then
  if fetch_source highway=1.2.0-2 $kHighwaySha256 "$kArchives/highway-1.2.0.tar.gz"; then
    options+=("-DHEADLANE_HIGHWAY_URL=$kArchives/highway-1.2.0.tar.gz")
  fi
  for pair in googletest:GOOGLETEST benchmark:BENCHMARK pcre2:PCRE2; do
    if read -r file sum < <(fetch_newest_source "${pair%:*}" "$kArchives"); then
      options+=("-DHEADLANE_${pair#*:}_URL=$file" "-DHEADLANE_${pair#*:}_SHA256=$sum")
    fi
  done
fi
in_ci && options+=(-DHEADLANE_WERROR=ON)
exec tools/build.sh "$preset" "${options[@]}" "$@"
