#!/usr/bin/env bash
# Formats, and applies what clippy can mend by itself.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need rust
cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged --quiet
cargo fmt --all
# The list of providers declares its modules in a macro, which cargo fmt does not look into.
rustfmt --edition 2024 crates/providers/src/*.rs
