#!/bin/bash
# Profiles the library on a server: runs the benchmarks on 1, 2, 4, ... and all physical cores, each thread on a core of
# its own, and writes one JSON and a Markdown report with the machine, its limits, the roofline and every case's share of
# it. Reports of different servers are comparable.
#
# Separate from headlane_bench, which times cases on the threads it is given: this chooses the processors, looks at what
# disturbs figures (governor, SMT, boost, NUMA, quotas) and asks perf for counters where that is allowed. Needs no root.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

usage() {
  cat <<'USAGE'
usage: tools/profile.sh [--quick] [--threads LIST] [--filter REGEX] [--output FOLDER] [--plot] [--no-build | --build FOLDER]
  --quick          a few cases on one and on all cores, in about a minute; else all cases on all cores and a few on fewer
  --threads LIST   comma-separated thread counts in place of 1, 2, 4, ... and all physical cores
  --filter REGEX   only cases whose name this finds
  --output FOLDER  for profile.json and profile.md; default: build/profile
  --plot           also the roofline as a picture (needs matplotlib)
  --no-build       the programs are in build/release already
  --build FOLDER   they are in another build folder
Build with what you want profiled: the release preset, which has every SIMD target. HEADLANE_TARGET forces one.
USAGE
}

build="$HEADLANE_ROOT/build/release" output="$HEADLANE_ROOT/build/profile" want_build=true arguments=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick | --plot) arguments+=("$1"); shift ;;
    --threads | --filter) arguments+=("$1" "${2:?$1 needs a value}"); shift 2 ;;
    --output) output="${2:?}"; shift 2 ;;
    --no-build) want_build=false; shift ;;
    --build) build="${2:?}"; want_build=false; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "unknown argument '$1'" ;;
  esac
done
if $want_build; then
  "$HEADLANE_ROOT/tools/setup.sh"
  "$HEADLANE_ROOT/tools/build.sh" release -- headlane_bench headlane-info headlane_instruction_count
fi
for program in headlane_bench headlane-info headlane_instruction_count; do
  [ -x "$build/bin/$program" ] || die "no $build/bin/$program"
done
exec python3 "$HEADLANE_ROOT/tools/lib/profile_run.py" --root "$HEADLANE_ROOT" --build "$build" --output "$output" "${arguments[@]}"
