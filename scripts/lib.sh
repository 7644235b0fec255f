# Sourced by the other scripts: where things are, and what they have in common.
# shellcheck shell=bash

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"

# Says what is being done, in a colour where that is seen. VOLLEY_TIMES names a file that records
# when each step began; `times` prints it as a table.
step() {
  if [ -n "${VOLLEY_TIMES:-}" ]; then
    printf '%s\t%s\t%s\n' "${EPOCHREALTIME/[.,]/}" "$(basename "$0" .sh)" "$*" >>"$VOLLEY_TIMES"
  fi
  if [ -t 2 ]; then
    printf '\033[1;36m==> %s\033[0m\n' "$*" >&2
  else
    printf '==> %s\n' "$*" >&2
  fi
}

# Prints a table of the steps in the file $1 and their seconds. A step lasts until the next one
# begins, the last one until now. Steps of less than a second share one row.
times() {
  awk -F '\t' -v now="${EPOCHREALTIME/[.,]/}" '
    function row(seconds, name) { printf "%8.0f  %s\n", seconds, name }
    function end(at) {
      if (name == "") return
      seconds = (at - began) / 1000000
      if (seconds < 1) { short += seconds; steps++ } else row(seconds, name)
    }
    NR == 1 { first = $1; print " seconds  step" }
    { end($1); began = $1; name = $2 ": " $3 }
    END {
      end(now)
      if (steps) row(short, steps " steps of less than a second")
      if (NR) row((now - first) / 1000000, "all")
    }' "$1" >&2
}

# Ends with a reason and what to do.
give_up() {
  printf '%s\n' "$@" >&2
  exit 1
}

# What one prerequisite lacks, with what to do; nothing where it is there. A program counts where it
# runs: a version manager's stand-in for a version that is not installed does not.
lacks() {
  case "$1" in
    rust)
      cargo --version >/dev/null 2>&1 || printf '%s\n' \
        "Rust's 'cargo' does not run: install it with rustup, as https://rustup.rs says; the right version comes by itself."
      ;;
    cc)
      cc --version >/dev/null 2>&1 || printf '%s\n' \
        "A C compiler ('cc') does not run (on Debian: apt-get install gcc libc6-dev)."
      ;;
    c++)
      c++ --version >/dev/null 2>&1 || printf '%s\n' \
        "A C++ compiler ('c++') does not run (on Debian: apt-get install g++)."
      ;;
    python3 | python3.*)
      if ! "$1" --version >/dev/null 2>&1; then
        printf '%s\n' "$1 does not run (on Debian: apt-get install $1; or by pyenv or uv)."
      elif ! "$1" -c 'import ensurepip, venv' 2>/dev/null; then
        printf '%s\n' "$1 cannot make virtual environments (on Debian: apt-get install $1-venv)."
      fi
      ;;
    disk:*)
      # What target/ already has counts: an earlier step may have built most of it.
      local free there
      mkdir -p "$root/target"
      free="$(df -Pk "$root/target" | awk 'NR == 2 { print int($4 / 1000000) }')"
      there="$(du -sk "$root/target" | awk '{ print int($1 / 1000000) }')"
      [ "${1#disk:}" -le "$((free + there))" ] || printf '%s\n' \
        "target/ needs ${1#disk:} GB of disk, has $there GB, and $free GB are free."
      ;;
    *)
      command -v "$1" >/dev/null || printf '%s\n' "$1 was not found."
      ;;
  esac
}

# Checks all prerequisites of a script before it begins, and names every one that is missing.
need() {
  local one missing
  missing="$(for one in "$@"; do lacks "$one"; done)"
  [ -z "$missing" ] || give_up "$(basename "$0") cannot run here:" "${missing//$'\n'/$'\n'}"
}

# The version that a tool says it has, be its name before it or not.
version_of() {
  "$1" --version 2>/dev/null | awk 'NR == 1 { v = $2 == "" ? $1 : $2; sub(/^v/, "", v); print v }'
}

# A development tool of the version given: the one that is installed, else our own in target/tools.
# Prints its path. Further arguments go to `cargo install`. It is built without optimization: it
# runs for seconds, and an optimized build takes minutes more.
tool() {
  local name="$1" version="$2"
  shift 2
  if [ "$(version_of "$name")" = "$version" ]; then
    command -v "$name"
    return
  fi
  local own="$root/target/tools/bin/$name"
  if [ "$(version_of "$own")" != "$version" ]; then
    step "building $name $version (once)"
    cargo install --locked --quiet --debug --root "$root/target/tools" "$@" "$name@$version" >&2 || give_up \
      "$name $version could not be built; is the network there? To use one of your own:" \
      "  cargo install --locked $name@$version"
  fi
  printf '%s\n' "$own"
}

# The path of cargo-nextest of version 0.9.$1 or newer: the one that is installed, else our own in
# target/tools. Fails where neither is there: a build of it takes longer than it saves.
nextest() {
  local one version
  for one in cargo-nextest "$root/target/tools/bin/cargo-nextest"; do
    version="$(version_of "$one")" || continue
    case "$version" in
      0.9.*) version="${version#0.9.}" ;;
      *) continue ;;
    esac
    if [ "${version%%[!0-9]*}" -ge "$1" ]; then
      command -v "$one"
      return
    fi
  done
  return 1
}
