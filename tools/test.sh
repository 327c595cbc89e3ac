#!/bin/bash
# Installs what is missing, builds the release preset and runs all tests. One of the two commands of the README.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

usage() {
  cat <<'USAGE'
usage: tools/test.sh [CTEST ARGUMENT...]
  e.g. tools/test.sh -R kv_cache
environment:
  HEADLANE_WITH_ONEDNN=OFF  build and test without oneDNN
  HEADLANE_PRESET=release   another preset of CMakePresets.json
  HEADLANE_MODEL=FILE       the default model, where it is already at hand
  CI=true                   warnings are errors; a missing model is a failure instead of a reason to skip
USAGE
}
case "${1:-}" in -h | --help) usage; exit 0 ;; esac

preset="${HEADLANE_PRESET:-release}"
"$HEADLANE_ROOT/tools/setup.sh" ${HEADLANE_SETUP_ARGUMENTS:-}

# Before the build: a missing model is known within seconds.
model="${HEADLANE_MODEL:-}"
if [ -z "$model" ]; then
  if ! model="$("$HEADLANE_ROOT/tools/fetch_model.sh")"; then
    in_ci && die "the tests of the real model cannot run, which in CI is a failure"
    say "the tests of the real model will be skipped"
    model=
  fi
fi

arguments=()
in_ci && arguments+=(-DHEADLANE_WERROR=ON)
"$HEADLANE_ROOT/tools/build.sh" "$preset" "${arguments[@]}"

if [ -n "$model" ]; then export HEADLANE_MODEL="$model"; fi
if in_ci; then export HEADLANE_REQUIRE_MODEL=1; fi
export OMP_WAIT_POLICY=passive
# What uses all processors by itself is marked to run alone.
cd "$HEADLANE_ROOT"
status=0
ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$(num_jobs)" "$@" || status=$?
if [ -z "$model" ]; then say "skipped: the tests of the real model (label 'model'), which could not be had"; fi
grep -qx 'HEADLANE_WITH_ONEDNN:STRING=OFF' "build/$preset/CMakeCache.txt" && say "skipped: what needs oneDNN (HEADLANE_WITH_ONEDNN=OFF)"
exit $status
