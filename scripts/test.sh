#!/usr/bin/env bash
# Fetches what the tests need, once, and runs them. Arguments go to `cargo test`.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need rust cc python3 disk:12
step "ONNX Runtime"
scripts/get-ort.sh
step "pyarrow"
scripts/get-pyarrow.sh
step "the official clients of OpenAI, Anthropic, Cohere, OpenSearch and Ollama, LangChain, npm clients"
scripts/get-sdks.sh
step "the official clients of Triton, KServe and MLServer"
scripts/get-oip-clients.sh
step "Chromium"
scripts/get-chromium.sh
step "Triton's client"
scripts/get-triton.sh
step "the ONNX standard's tests"
scripts/get-onnx.sh
step "the packages of RisingWave and Databend for functions"
scripts/get-udf.sh
step "schemathesis"
scripts/schemathesis.sh --fetch
step "OpenTelemetry's definitions"
scripts/get-otlp.sh
step "lm-eval"
scripts/get-lm-eval.sh
step "LiteLLM"
scripts/get-litellm.sh

step "building the tests"
cargo test --workspace --features volley-cli/sql --locked --no-run "$@"
step "running the tests"
# One run names every failure.
cargo test --workspace --features volley-cli/sql --locked --no-fail-fast "$@"
