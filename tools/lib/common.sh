# Shared by the scripts of tools/ and .ci/: messages, the project's folder, and how many jobs to run. Sourced, never run.

HEADLANE_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"

# Messages go to standard error, so that what a program prints stays clean.
say() { printf 'headlane: %s\n' "$*" >&2; }
die() {
  printf 'headlane: error: %s\n' "$*" >&2
  exit 2
}

# The processors this process may use, which under a container's limits are fewer than the machine has.
num_jobs() { nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2; }

# The values that CMake takes for false count as "without" here too.
with_onednn() {
  case "${HEADLANE_WITH_ONEDNN:-ON}" in
    0 | [Oo][Ff][Ff] | [Nn][Oo] | [Ff][Aa][Ll][Ss][Ee] | [Nn]) return 1 ;;
    *) return 0 ;;
  esac
}


in_ci() {
  case "${CI:-}" in
    "" | 0 | [Ff][Aa][Ll][Ss][Ee]) return 1 ;;
    *) return 0 ;;
  esac
}

# version_at_least HAVE WANT: true when HAVE is as new. Compares like sort -V, which is enough for upstream versions.
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }
