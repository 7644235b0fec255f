#!/usr/bin/env bash
# Measures a release build and prints the report. Arguments go to `volley-bench run`, for example
# `cpu decode` for only these, or `--write docs/evidence/benchmarks.md`.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need rust cc python3
scripts/get-ort.sh
step "building (minutes the first time)"
cargo build --release --locked --package volley-cli --package volley-bench
cargo build --release --locked --package volley-backend-onnx --example decode_rate
ulimit -n "$(ulimit -Hn)"
step "measuring"
exec target/release/volley-bench run "$@"
