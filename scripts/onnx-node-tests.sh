#!/usr/bin/env bash
# Runs the ONNX standard's own tests of every operator through a cluster's REST interface, and
# prints the table. Arguments go to tests/python/onnx_nodes, for example `--every 20`, `--only
# reduce_max` or `--write docs/evidence/parity.md`.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need rust cc python3
step "ONNX Runtime"
scripts/get-ort.sh
step "the ONNX standard's tests"
scripts/get-onnx.sh
step "building Volley (minutes the first time)"
cargo build --locked --package volley-cli
step "running the tests"
exec target/venv-onnx/bin/python tests/python/onnx_nodes --volley target/debug/volley "$@"
