#!/bin/bash
# Installs what is missing, builds, takes the default model and lets it write, token by token, with a table of figures at
# the end. One of the two commands of the README.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

usage() {
  cat <<'USAGE'
usage: tools/demo.sh [HEADLANE-GENERATE ARGUMENT...]
  e.g. tools/demo.sh --prompt "Why is the sky blue?" --threads 2
       tools/demo.sh --model FILE.gguf
  Without a network the model is a synthetic one of the same shape, with seeded random weights.
environment:
  HEADLANE_WITH_ONEDNN=OFF  do without oneDNN (only `--linear onednn` needs it)
USAGE
}

model=() prompt=(--prompt "Explain in a few sentences what a cache is, and why computers have one." --max-tokens 160)
has_model=false has_length=false
for argument in "$@"; do
  case "$argument" in
    -h | --help) usage; exit 0 ;;
    --model | --model=* | --synthetic | --synthetic=*) has_model=true ;;
    --prompt | --prompt=* | --prompt-file | --prompt-file=*) prompt=() ;;
    --max-tokens | --max-tokens=*) has_length=true ;;
  esac
done
if $has_length && [ ${#prompt[@]} -gt 0 ]; then prompt=("${prompt[@]:0:2}"); fi

"$HEADLANE_ROOT/tools/setup.sh"
if ! $has_model; then
  if file="$("$HEADLANE_ROOT/tools/fetch_model.sh")"; then
    model=(--model "$file")
  else
    say "running on a synthetic model of the same shape instead: the figures are real, the text means nothing"
    model=(--synthetic smollm2-135m)
  fi
fi
"$HEADLANE_ROOT/tools/build.sh" release -- headlane-generate headlane-perplexity headlane-decode-bench headlane-info headlane-lesson headlane_bench
say "programs: build/release/bin (each has --help)"
exec "$HEADLANE_ROOT/build/release/bin/headlane-generate" "${model[@]}" "${prompt[@]}" "$@"
