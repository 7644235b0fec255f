# Sourced by the other scripts: where things are, and what they have in common.
# shellcheck shell=bash

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"

# Says what is being done, in a colour where that is seen.
step() {
  if [ -t 2 ]; then
    printf '\033[1;36m==> %s\033[0m\n' "$*" >&2
  else
    printf '==> %s\n' "$*" >&2
  fi
}

# Ends with a reason and what to do.
give_up() {
  printf '%s\n' "$@" >&2
  exit 1
}

need_rust() {
  command -v cargo >/dev/null || give_up \
    "Rust's 'cargo' was not found." \
    "Install it with rustup, as https://rustup.rs says; the right version comes by itself."
}

# A development tool of the version given: the one that is installed, else our own in target/tools.
# Prints its path.
tool() {
  local name="$1" version="$2"
  if [ "$("$name" --version 2>/dev/null | awk '{ print $2 }')" = "$version" ]; then
    command -v "$name"
    return
  fi
  local own="$root/target/tools/bin/$name"
  if [ "$("$own" --version 2>/dev/null | awk '{ print $2 }')" != "$version" ]; then
    step "building $name $version (once)"
    cargo install --locked --quiet --root "$root/target/tools" "$name@$version" >&2 || give_up \
      "$name $version could not be built; is the network there? To use one of your own:" \
      "  cargo install --locked $name@$version"
  fi
  printf '%s\n' "$own"
}
