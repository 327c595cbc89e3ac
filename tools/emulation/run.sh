#!/bin/bash
# Runs static x86-64 programs on an emulated machine with AVX-512 (Bochs, Linux, a CPU like Sapphire Rapids without AMX).
#
#   tools/emulation/run.sh [OPTION...] [--] [NAME=VALUE...] PROGRAM [ARGUMENT...] [--then [NAME=VALUE...] PROGRAM [ARGUMENT...]]...
#
# One boot (two billion instructions, 20 s) for all commands: each runs after the one before it ended, whatever that
# returned, alone, as root, with the environment given and no other, in an empty file system of which /tmp can be written.
# A program is a file of this machine, linked statically; those of one call need different names. Files cannot be handed
# in or out: what a program prints, on either stream, comes out of standard output, without anything added.
#
# The machine has one processor that executes about 100 million instructions a second. rdtsc counts instructions there,
# those of interrupts included (one in some thousand): take the minimum of several samples.
#
# On standard error: status and instructions of each command. Exit status: 0 if every command returned 0, or that of the
# first one that did not; 77 if no emulator can be had here; 124 after the time limit; 125 if the machine failed.
#
# Used by tools/test_avx512.sh and tools/count_instructions.sh.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../lib/common.sh"

usage() {
  cat <<'USAGE'
usage: tools/emulation/run.sh [OPTION...] [--] [NAME=VALUE...] PROGRAM [ARGUMENT...] [--then ...]...
  --time-limit SECONDS  of real time, for all commands and the boot; 600 by default
  --cpu MODEL           one of Bochs' CPU models; sapphire_rapids by default (also seen to work: tigerlake, corei7_skylake_x)
  --keep FOLDER         leave the image, the console's text and Bochs' own log there
USAGE
}

time_limit=600 cpu=sapphire_rapids keep=
while [ $# -gt 0 ]; do
  case "$1" in
    --time-limit) time_limit="$2"; shift 2 ;;
    --cpu) cpu="$2"; shift 2 ;;
    --keep) keep="$2"; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    --) shift; break ;;
    --*) usage >&2; die "unknown option '$1'" ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || { usage >&2; die "no program given"; }

# Its message says why, where it cannot be had.
emulator="$("$HEADLANE_ROOT/tools/emulation/get_bochs.sh")" || exit $?

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
if [ -n "$keep" ]; then mkdir -p "$keep"; keep="$(cd "$keep" && pwd)"; fi

# ---- The list of commands, and their programs without what the machine does not need of them ------------------------

declare -A programs=()
add_program() {
  local name="${1##*/}"
  [ -f "$1" ] || die "no program '$1'"
  [ "${programs[$name]:-$1}" = "$1" ] || die "two programs are called '$name': '${programs[$name]}' and '$1'"
  if [ -z "${programs[$name]:-}" ]; then
    # An interpreter means that shared libraries would be looked for.
    if readelf -l "$1" | grep -q INTERP; then die "'$1' is not linked statically"; fi
    strip -o "$work/$name" "$1"
    programs[$name]="$1"
  fi
  printf '/%s\n' "$name" >>"$work/commands"
}

in_environment=true
printf '%s\n' PATH=/ >"$work/commands"
for word in "$@"; do
  case "$word" in *$'\n'* | "") die "an argument is empty or has a line break, which the list of commands cannot hold" ;; esac
  if [ "$word" = --then ]; then
    $in_environment && die "--then without a command before it"
    printf '\n%s\n' PATH=/ >>"$work/commands"
    in_environment=true
  elif ! $in_environment; then
    printf '%s\n' "$word" >>"$work/commands"
  elif [[ $word =~ ^[A-Za-z_][A-Za-z_0-9]*= ]]; then
    printf '%s\n' "$word" >>"$work/commands"
  else
    add_program "$word"
    in_environment=false
  fi
done
$in_environment && die "the last command has no program"

names=("${!programs[@]}")
"$HEADLANE_ROOT/tools/emulation/make_image.py" "$emulator" "$work/disk" "$work/commands" "${names[@]/#/$work/}"

# ---- The machine ----------------------------------------------------------------------------------------------------

cat >"$work/bochsrc" <<RC
display_library: nogui
megs: 512
romimage: file=$emulator/BIOS-bochs-latest
vgaromimage: file=$emulator/vgabios.bin
boot: disk
ata0: enabled=1
ata0-master: type=disk, path=$work/disk, mode=flat
cpu: model=$cpu, count=1, ips=50000000, reset_on_triple_fault=0, ignore_bad_msrs=1
clock: sync=none, time0=local
com1: enabled=1, mode=file, dev=$work/console
log: $work/log
panic: action=fatal
error: action=ignore
info: action=ignore
RC
: >"$work/console"
# It always ends with an error, because the machine's end is one to it: only what the console says counts.
status=0
timeout "$time_limit" "$emulator/bochs" -q -f "$work/bochsrc" >"$work/terminal" 2>&1 </dev/null || status=$?
tr -d '\r' <"$work/console" >"$work/text"
if [ -n "$keep" ]; then cp -f "$work"/{disk,text,log,terminal,bochsrc} "$keep/" 2>/dev/null || true; fi

# The line breaks before init's own lines are its, too.
awk '
  /^@init: begin/ { inside = 1; held = 0; next }
  /^@init: / { if (held && line != "") print line; held = 0; inside = 0; next }
  !inside { next }
  { if (held) print line; line = $0; held = 1 }
  ' "$work/text"
grep '^@init: \(end\|booted\)' "$work/text" | sed 's/^@init: /emulated: /' | while read -r line; do say "$line"; done || true

if ! grep -q '^@init: done' "$work/text"; then
  if [ $status -eq 124 ]; then
    say "the emulated machine did not end within $time_limit s"
    exit 124
  fi
  say "the emulated machine failed (Bochs returned $status). Its console's and its own last lines:"
  tail -n 20 "$work/text" "$work/terminal" "$work/log" >&2 || true
  exit 125
fi
failed="$(sed -n 's/^@init: end [0-9]* status \([0-9]*\) .*/\1/p' "$work/text" | grep -v '^0$' | head -n 1 || true)"
exit "${failed:-0}"
