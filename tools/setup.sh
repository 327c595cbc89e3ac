#!/bin/bash
# Installs what the build needs on Debian 12 and 13, and nothing that is already there.
#
# Separate from the build because it is the only part that changes the machine: it first prints what it will install and
# from where. A second run finds everything in place and does nothing. tools/demo.sh, tools/test.sh and .ci/run call it.
#
# Highway >= 1.2 and oneDNN >= 3.5 are newer than what Debian 12 has, so there they come from the next release (trixie),
# through the mirror that the machine already uses, pinned so low that nothing else follows them.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
. "$HEADLANE_ROOT/tools/lib/apt_sources.sh"

usage() {
  cat <<'USAGE'
usage: tools/setup.sh [--ci] [--qemu] [--arm] [--dry-run]
  --ci       also what only .ci/run needs: clang 19, its OpenMP, clang-format, clang-tidy
  --qemu     also qemu-user, for tools/test_baseline.sh
  --arm      also that and a cross compiler, for tools/test_arm.sh
  --dry-run  say what would be installed, change nothing
environment:
  HEADLANE_WITH_ONEDNN=OFF  leave oneDNN out (on Debian 12 it brings a newer libc; nothing else does)
USAGE
}

want_ci=false want_qemu=false want_arm=false
dry_run=false
for argument in "$@"; do
  case "$argument" in
    --ci) want_ci=true ;;
    --qemu) want_qemu=true ;;
    --arm) want_qemu=true want_arm=true ;;
    --dry-run) dry_run=true ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "unknown argument '$argument'" ;;
  esac
done

readonly kCMakeVersion=3.25 kHighwayVersion=1.2 kOneDnnVersion=3.5
readonly kNextRelease=trixie
readonly kSourceFile=/etc/apt/sources.list.d/headlane-$kNextRelease
readonly kPinFile=/etc/apt/preferences.d/headlane-$kNextRelease

have() { command -v "$1" >/dev/null 2>&1; }

# ---- What is missing ------------------------------------------------------------------------------------------------

# Programs count by what the machine can run, whoever installed them; libraries by package, or by header elsewhere.
missing=()
need_program() { have "$1" || missing+=("$2"); }

have cmake && version_at_least "$(cmake --version | sed -n '1s/[^0-9]*//p')" $kCMakeVersion || missing+=(cmake)
need_program ninja ninja-build
need_program g++ g++
need_program ccache ccache
need_program git git
need_program python3 python3
{ have python3 && python3 -c 'import importlib.util as u, sys; sys.exit(u.find_spec("pip") is None)'; } ||
  missing+=(python3-pip)
if $want_ci; then
  need_program clang++-19 clang-19
  need_program clang-format-19 clang-format-19
  need_program clang-tidy-19 clang-tidy-19
  need_program llvm-symbolizer-19 llvm-19
  need_program make make  # builds the emulator of tools/test_avx512.sh
  # Counts instructions, on x86-64 only: tools/count_instructions.sh.
  [ "$(uname -m)" != x86_64 ] || need_program valgrind valgrind
fi

if $want_qemu; then
  need_program qemu-aarch64 qemu-user
fi
if $want_arm; then need_program aarch64-linux-gnu-g++-12 g++-12-aarch64-linux-gnu; fi

if ! have apt-get; then
  [ ${#missing[@]} -eq 0 ] && { say "no apt-get here: libraries are found or fetched by CMake"; exit 0; }
  die "no apt-get here. Install these yourself (names as in Debian): ${missing[*]}. CMake finds or fetches the libraries."
fi

libraries=(libgtest-dev libbenchmark-dev libcli11-dev nlohmann-json3-dev libpcre2-dev ca-certificates)
$want_ci && libraries+=(libclang-rt-19-dev)
declare -A installed=()
while read -r status package version; do
  [ "$status" = ii ] && installed[$package]=$version
done < <(dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\n' "${libraries[@]}" libhwy-dev libdnnl-dev 2>/dev/null || true)
for package in "${libraries[@]}"; do
  [ -n "${installed[$package]:-}" ] || missing+=("$package")
done

newer=()  # PACKAGE VERSION pairs that Debian 12 is too old for
is_new_enough() { [ -n "${1:-}" ] && dpkg --compare-versions "$1" ge "$2"; }
is_new_enough "${installed[libhwy-dev]:-}" $kHighwayVersion || newer+=("libhwy-dev $kHighwayVersion")
if with_onednn; then
  is_new_enough "${installed[libdnnl-dev]:-}" $kOneDnnVersion || newer+=("libdnnl-dev $kOneDnnVersion")
fi

# clang's OpenMP cannot be installed beside that of another clang version, and nothing may be removed for it: its two
# packages are unpacked into the build folder.
readonly kLibompDir="$HEADLANE_ROOT/build/deps/libomp-19"
unpack_libomp=false
if $want_ci && [ ! -e "$kLibompDir" ]; then unpack_libomp=true; fi

if [ ${#missing[@]} -eq 0 ] && [ ${#newer[@]} -eq 0 ] && ! $unpack_libomp; then
  say "set-up: everything is installed"
  exit 0
fi

# ---- How to install -------------------------------------------------------------------------------------------------

as_root=()
if [ "$(id -u)" -ne 0 ] && ! $dry_run; then
  have sudo || die "missing: ${missing[*]} ${newer[*]%% *}. Run tools/setup.sh as root."
  as_root=(sudo)
fi

export DEBIAN_FRONTEND=noninteractive
apt_get() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 \
    -o Acquire::Retries=3 "$@"
}
# --no-remove: a set-up that would take something away from the machine fails instead.
apt_install() {
  apt_get install -y --no-install-recommends --no-remove -o Dpkg::Options::=--force-confdef \
    -o Dpkg::Options::=--force-confold "$@"
}
can_install() { apt-get install -qq -s --no-install-recommends --no-remove "$@" >/dev/null 2>&1; }

# By the candidate that apt would take, not by the release's name: after an upgrade of base-files the name misleads.
candidate() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: //p' | grep -v '^(none)$' || true; }

updated=false
update_lists() {
  $updated || $dry_run && return 0
  say "reading the package lists of the configured sources (apt-get update)"
  apt_get update >/dev/null || die "apt-get update failed: is the network up?"
  updated=true
}

# Every version of a package that any configured source offers, whatever its priority.
offers() {  # PACKAGE VERSION
  local version
  for version in $(apt-cache madison "$1" 2>/dev/null | awk -F'|' '{ gsub(/ /, "", $2); print $2 }'); do
    is_new_enough "$version" "$2" && return 0
  done
  return 1
}

add_next_release() {
  local entry format
  for format in sources list; do
    entry="$(derive_apt_source $format deb $kNextRelease 'bookworm|oldstable')"
    [ -n "$entry" ] && break
  done
  [ -n "$entry" ] || return 1
  say "adding the source $kSourceFile.$format ($kNextRelease, the mirror in use already), pinned at priority 100:"
  # Credentials can stand in a mirror's address.
  printf '%s\n' "$entry" | sed -E 's#//[^/@ ]+@#//***@#; /^(Types|URIs|Suites|deb)/!d; s/^/    /' >&2
  $dry_run && return 0
  # Written beside the target and renamed, so that an interrupted run leaves no half of a file.
  printf '# Added by tools/setup.sh of Headlane for libhwy-dev and libdnnl-dev. Low priority: see %s\n%s\n' \
    "$kPinFile" "$entry" | "${as_root[@]}" tee "$kSourceFile.$format.new" >/dev/null
  printf 'Package: *\nPin: release n=%s\nPin-Priority: 100\n' $kNextRelease | "${as_root[@]}" tee "$kPinFile.new" >/dev/null
  "${as_root[@]}" mv "$kPinFile.new" "$kPinFile"
  "${as_root[@]}" mv "$kSourceFile.$format.new" "$kSourceFile.$format"
  updated=false
  update_lists
}

# ---- Installing -----------------------------------------------------------------------------------------------------

# Lists older than the image's release are common in containers: update once, before anything is decided.
for package in "${missing[@]}" "${newer[@]%% *}"; do
  if [ -z "$(candidate "$package")" ]; then update_lists; break; fi
done

# First what the machine's own release has: afterwards, with a newer libc, some of it would resolve less simply.
plain=("${missing[@]}") from_next=()
for package in "${newer[@]}"; do
  read -r name wanted <<<"$package"
  if is_new_enough "$(candidate "$name")" "$wanted"; then plain+=("$name"); else from_next+=("$package"); fi
done

if [ ${#plain[@]} -gt 0 ]; then
  say "will install with apt-get from the configured sources: ${plain[*]}"
  if ! $dry_run; then
    can_install "${plain[@]}" || update_lists
    if ! can_install "${plain[@]}" && [ -e $kPinFile ]; then
      # What depends on libc in the very version that oneDNN brought: the 32-bit twins of clang's run-time libraries, and
      # the symbols that valgrind reads.
      twins=()
      [[ " ${plain[*]} " != *" libclang-rt-19-dev "* ]] || twins+=({libc6-i386,lib32stdc++6,lib32gcc-s1}/$kNextRelease)
      [[ " ${plain[*]} " != *" valgrind "* ]] || twins+=(libc6-dbg/$kNextRelease)
      say "with, from $kNextRelease: ${twins[*]%/*}"
      apt_install "${plain[@]}" "${twins[@]}"
    else
      apt_install "${plain[@]}"
    fi
  fi
fi
if $unpack_libomp; then
  say "will unpack libomp-19-dev and libomp5-19 from the configured sources into build/deps/libomp-19"
  if ! $dry_run; then
    [ -n "$(candidate libomp-19-dev)" ] || update_lists
    rm -rf "$kLibompDir.new"
    mkdir -p "$kLibompDir.new"
    (cd "$kLibompDir.new" && apt-get -q -o APT::Sandbox::User=root download libomp-19-dev libomp5-19 && for deb in ./*.deb; do dpkg -x "$deb" .; done)
    rm -f "$kLibompDir.new"/*.deb
    mv "$kLibompDir.new" "$kLibompDir"
  fi
fi

[ ${#from_next[@]} -gt 0 ] || { say "set-up: done"; exit 0; }

for package in "${from_next[@]}"; do
  read -r name wanted <<<"$package"
  offers "$name" "$wanted" && continue
  if ! add_next_release; then
    say "no source has $name >= $wanted, and none for Debian 12 was found to derive one from"
    say "CMake fetches Highway where no package is found; oneDNN can be left out: HEADLANE_WITH_ONEDNN=OFF"
    exit 0
  fi
  break
done
$dry_run && { say "would install from $kNextRelease: ${from_next[*]%% *}"; exit 0; }

names=() with_release=()
for package in "${from_next[@]}"; do names+=("${package%% *}"); with_release+=("${package%% *}/$kNextRelease"); done
if [[ " ${names[*]} " == *" libdnnl-dev "* ]]; then
  say "will install from $kNextRelease: ${names[*]}"
  say "oneDNN from there needs a newer libc, so about 25 packages (libc6, libstdc++6, libgomp1, ...) are upgraded and none"
  say "is removed. HEADLANE_WITH_ONEDNN=OFF does without. In full:"
  apt-get install -s --no-install-recommends --no-remove -t $kNextRelease "${names[@]}" 2>/dev/null |
    sed -n 's/^Inst \([^ ]*\) .*/\1/p' | sort | tr '\n' ' ' | fold -s -w 110 | sed 's/^/    /' >&2
  printf '\n' >&2
  apt_install -t $kNextRelease "${names[@]}"
else
  say "will install from $kNextRelease, upgrading nothing: ${names[*]}"
  apt_install "${with_release[@]}"
fi
say "set-up: done"
