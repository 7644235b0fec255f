#!/usr/bin/env bash
# Runs the tests that need nothing but a compiler: those beside the code of each crate, and the
# checks of borders, file sizes and documentation. It fetches no library and starts no process.
# Arguments go to `cargo nextest run`, or to `cargo test` where nextest is not installed.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need rust cc
# The crates of default-members; not those with DataFusion.
chosen=(--lib --bin volley --test tidy --locked)
if runner="$(nextest 100)"; then
  step "building the quick tests"
  "$runner" nextest run --profile quick --no-run "${chosen[@]}" "$@"
  step "running the quick tests"
  exec "$runner" nextest run --profile quick "${chosen[@]}" "$@"
fi
step "cargo-nextest 0.9.100 or newer is not installed; cargo test runs the tests, without a limit of time. To install it: cargo install --locked cargo-nextest"
skipped=()
for name in $(sed -n '/^\[profile.quick\]/,/^\[/s/.*test(=\(.*\)).*/\1/p' .config/nextest.toml); do
  skipped+=(--skip "$name")
done
case " $* " in
  *" -- "*) ;;
  *) set -- "$@" -- ;;
esac
step "running the quick tests"
exec cargo test "${chosen[@]}" "$@" "${skipped[@]}"
