#!/usr/bin/env bash
# Prints what clusters of a size cost, and each number doubled: `--help` names the arguments.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need_rust
step "building (minutes the first time)"
cargo build --release --locked --package volley-sim
exec target/release/volley-sim "$@"
