#!/usr/bin/env bash
# Formats, and applies what clippy can mend by itself.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need rust
cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged --quiet
cargo fmt --all
