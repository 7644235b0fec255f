#!/usr/bin/env bash
# Measures a release build. Arguments go to volley-bench.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need_rust
scripts/get-ort.sh
step "building (minutes the first time)"
cargo build --release --locked --package volley-cli --package volley-bench
exec target/release/volley-bench "$@"
