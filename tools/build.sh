#!/bin/bash
# Configures and builds one preset. Shared by tools/demo.sh, tools/test.sh and .ci/run, so that all build the same way.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

usage() {
  cat <<'USAGE'
usage: tools/build.sh [PRESET] [CMAKE ARGUMENT...] [-- TARGET...]
  PRESET is one of CMakePresets.json: release (default), dev, clang, minimal, emulated-x86, asan-ubsan, tsan. Programs land in build/PRESET/bin.
  HEADLANE_WITH_ONEDNN=OFF in the environment builds without oneDNN.
USAGE
}

preset=release
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  -*) ;;
  ?*) preset="$1"; shift ;;
esac
arguments=() targets=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do arguments+=("$1"); shift; done
[ $# -gt 0 ] && { shift; targets=("$@"); }

cd "$HEADLANE_ROOT"
# --fresh would lose the object files; a folder that was configured at another place is of no use, though.
folder="build/$preset"
if [ -e "$folder/CMakeCache.txt" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$HEADLANE_ROOT" "$folder/CMakeCache.txt"; then
  say "$folder was configured for another copy of the source: starting it anew"
  rm -rf "$folder"
fi
log="$(mktemp)"
trap 'rm -f "$log"' EXIT
# Always given, so that what an earlier run was told does not stick.
case "$preset" in
  minimal | emulated-* | aarch64*) ;;  # never with oneDNN, as their presets say
  *)
    if with_onednn; then arguments+=("-DHEADLANE_WITH_ONEDNN=${HEADLANE_WITH_ONEDNN:-AUTO}"); else arguments+=(-DHEADLANE_WITH_ONEDNN=OFF); fi
    ;;
esac
if ! cmake --preset "$preset" "${arguments[@]}" >"$log" 2>&1; then
  cat "$log" >&2
  die "cmake could not configure preset $preset"
fi
say "building $folder with $(num_jobs) jobs"
: >"$log"
SECONDS=0
set +e
cmake --build "$folder" -j "$(num_jobs)" ${targets:+--target "${targets[@]}"} 2>&1 |
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$log"
    # A line now and then instead of thousands: a build on two cores takes minutes.
    if [[ $line == \[*/*\]\ * ]] && [ $((SECONDS - ${last:-0})) -ge 10 ]; then
      say "  ${line%%]*}]"
      last=$SECONDS
    fi
  done
status=${PIPESTATUS[0]}
set -e
if [ "$status" -ne 0 ]; then
  grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking)' "$log" | head -n 200 >&2
  die "building $folder failed"
fi
# Warnings are worth seeing even where they are no errors.
grep -E 'warning:' "$log" >&2 || true
say "built $folder"
