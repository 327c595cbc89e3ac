# Fetching packages without installing them: an apt of its own under build/deps, with sources derived from the machine's.
# It needs no root, changes nothing outside build/, and apt checks the signatures as it always does.
#
# Separate from tools/setup.sh, which installs: what an emulator needs must neither replace the machine's packages nor stay
# on it. Sourced, after common.sh, by the scripts under tools/emulation.
. "$HEADLANE_ROOT/tools/lib/apt_sources.sh"

readonly kPrivateApt="$HEADLANE_ROOT/build/deps/apt"
# One mirror has both releases, so an entry for either will do.
readonly kAnyRelease='bookworm|oldstable|trixie|stable'

private_apt() {  # PROGRAM (apt-get, apt-cache) ARGUMENT...
  local program="$1"
  shift
  "$program" -o Dir::State="$kPrivateApt" -o Dir::State::Lists="$kPrivateApt/lists" -o Dir::State::status=/dev/null \
    -o Dir::Cache="$kPrivateApt/cache" -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$kPrivateApt/sources" \
    -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null -o APT::Sandbox::User="$(id -un)" \
    -o APT::Architecture=amd64 -o APT::Architectures::=amd64 -o Acquire::Languages=none -o Acquire::Retries=3 "$@"
}

# private_apt_update: reads the package lists of Debian 12 and the source lists of Debian 13 (20 MB), once a day. False,
# with a message, where that is impossible.
private_apt_update() { with_lock update_lists_once_a_day; }

# Scripts that run side by side share the folder. The lock is free again when the subshell ends.
with_lock() {  # FUNCTION ARGUMENT...
  mkdir -p "${kPrivateApt%/*}"
  (
    flock 8
    "$@"
  ) 8>"$kPrivateApt.lock"
}

update_lists_once_a_day() {
  local stamp="$kPrivateApt/updated" format binary
  [ -n "$(find "$stamp" -mmin -1440 2>/dev/null)" ] && return 0
  command -v apt-get >/dev/null || { say "no apt-get here to fetch packages with"; return 1; }
  for format in sources list; do
    binary="$(derive_apt_source $format deb bookworm "$kAnyRelease")"
    [ -n "$binary" ] && break
  done
  [ -n "$binary" ] || { say "no apt source for Debian 12 or 13 was found to derive one from"; return 1; }
  rm -rf "$kPrivateApt"
  mkdir -p "$kPrivateApt"/{sources,lists/partial,cache/archives/partial}
  printf '%s\n\n%s\n' "$binary" "$(derive_apt_source $format deb-src trixie "$kAnyRelease")" \
    >"$kPrivateApt/sources/headlane.$format"
  private_apt apt-get -qq update >&2 || { say "apt-get update failed: is the network up?"; return 1; }
  touch "$stamp"
}

# fetch_debs FOLDER PACKAGE...: downloads packages of Debian 12 into FOLDER.
fetch_debs() {
  local folder="$1"
  shift
  mkdir -p "$folder"
  (cd "$folder" && private_apt apt-get -qq download "$@" >&2)
}

# fetch_source PACKAGE SHA256 FILE: the upstream sources of a package of Debian 13. The archive is asked for by its own
# address, because mirrors do not always have the .dsc beside it; its sum is known here, so none is needed.
fetch_source() { with_lock fetch_source_unlocked "$@"; }

fetch_source_unlocked() {
  local package="$1" sha256="$2" file="$3" uri
  if [ -f "$file" ] && echo "$sha256  $file" | sha256sum --check --status; then return 0; fi
  uri="$(private_apt apt-get -qq --print-uris source "$package" | grep "SHA256:$sha256\$" | cut -d "'" -f 2)"
  [ -n "$uri" ] || { say "the sources of $package with SHA-256 $sha256 are not to be had any more"; return 1; }
  mkdir -p "$(dirname "$file")"
  private_apt /usr/lib/apt/apt-helper -qq download-file "$uri" "$file" "SHA256:$sha256" >&2
}

# fetch_newest_source PACKAGE FOLDER: the same of whatever version Debian 13 has at present, with the sum from the signed
# list. Prints the file's name and its SHA-256.
fetch_newest_source() {
  local package="$1" folder="$2" uri name size sum
  # 'address' name size SHA256:sum; not the archive of Debian's own changes, nor a signature.
  while read -r uri name size sum; do
    case "$name" in *.orig.tar.gz | *.orig.tar.xz | *.orig.tar.bz2) break ;; esac
    sum=
  done < <(private_apt apt-get -qq --print-uris source "$package" 2>/dev/null)
  [ -n "${sum:-}" ] || { say "the sources of $package are not to be had"; return 1; }
  fetch_source "$package" "${sum#SHA256:}" "$folder/$name" || return 1
  printf '%s %s\n' "$folder/$name" "${sum#SHA256:}"
}
