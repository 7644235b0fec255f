#!/usr/bin/env bash
# Runs the tests of local models, and their rates, on a CUDA device. Without one it fails: nothing
# falls back to the CPU. docs/evidence/gpu.md says what has been run so far.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need rust cc python3 nvidia-smi
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader
scripts/get-ort.sh --gpu
export VOLLEY_TEST_DEVICE=cuda
step "tests"
cargo test --locked --package volley-backend-onnx --package volley-onnx-runtime --package volley-onnx-tensors --package volley-onnx-text --package volley-onnx-generate
step "decoders again, with CUDA graphs"
VOLLEY_TEST_CUDA_GRAPHS=1 cargo test --locked --package volley-backend-onnx --test it decoders
step "what the driver says of the GPUs"
cargo test --locked --package volley-worker --lib gpus
step "rates"
cargo build --release --locked --package volley-backend-onnx --examples
rates() {
  target/release/examples/decode_rate crates/backend-onnx/tests/models/half-decoder "Hello!" <<'LINES'
bare 8 64
engine 8 64
bare 32 64
engine 32 64
LINES
}
rates
step "rates with CUDA graphs"
VOLLEY_TEST_CUDA_GRAPHS=1 rates
step "rates of encoders"
target/release/examples/encode_rate crates/backend-onnx/tests/models/text-embed 6
