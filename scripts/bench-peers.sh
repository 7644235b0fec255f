#!/usr/bin/env bash
# Measures Volley beside other servers and loops, on models with random weights that it makes:
#   bench-peers.sh encoders   MLServer, PyTriton and FastAPI around ONNX Runtime
#   bench-peers.sh decoders   transformers and onnxruntime-genai
#   bench-peers.sh bulk       a million texts through one Flight DoExchange
#   bench-peers.sh variants   quantised graphs beside plain ones, on ONNX Runtime alone
#   bench-peers.sh python     the same Python classes on MLServer
#   bench-peers.sh isolation  models in the worker beside models in processes of their own
# Further arguments go to the program in crates/bench/peers. The first run fetches the peers into
# target/venv-peers and target/venv-peers-torch (gigabytes).
set -euo pipefail
source "$(dirname "$0")/lib.sh"

MODELS="$root/target/peers"
PEERS=(mlserver==1.7.1 fastapi uvicorn onnxruntime tokenizers psutil pyarrow)
PYTHON=(mlserver==1.7.1 mlserver-sklearn==1.7.1 psutil)
PYTRITON=(nvidia-pytriton==0.7.0 onnxruntime tokenizers)
TORCH=(torch transformers onnx onnx-ir onnxruntime onnxruntime-genai psutil)

venv() {
  local python="$1" folder="$2"
  shift 2
  if [ ! -f "$folder/complete" ]; then
    step "fetching $* (once)"
    "$python" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@" || give_up \
      "the peers could not be fetched; is the network there? Run this again when it is."
    touch "$folder/complete"
  fi
}

kind="${1:-}"
case "$kind" in
  encoders | decoders | bulk | python | variants | isolation) shift ;;
  *) give_up "usage: scripts/bench-peers.sh encoders|decoders|bulk|python|variants|isolation" ;;
esac

# Whatever the kind needs is looked for before anything is fetched or built.
case "$kind" in
  encoders) need rust cc python3 python3.12 disk:12 ;;
  *) need rust cc python3 disk:12 ;;
esac
scripts/get-ort.sh
peers="$root/target/venv-peers"
if [ "$kind" = python ]; then
  venv python3 "$root/target/venv-peers-python" "${PYTHON[@]}"
  step "building (minutes the first time)"
  cargo build --release --locked --package volley-cli
  step "measuring"
  exec "$root/target/venv-peers-python/bin/python" crates/bench/peers/python_models.py \
    --volley target/release/volley "$@"
fi
pytriton="$root/target/venv-peers-pytriton"
torch="$root/target/venv-peers-torch"
venv python3 "$torch" "${TORCH[@]}"
if [ ! -f "$MODELS/complete" ]; then
  step "making the models (once)"
  "$torch/bin/python" crates/bench/peers/models.py "$MODELS"
  touch "$MODELS/complete"
fi
if [ "$kind" = variants ]; then
  step "measuring"
  exec "$torch/bin/python" crates/bench/peers/variants.py "$MODELS" "$@"
fi
step "building (minutes the first time)"
cargo build --release --locked --package volley-cli --package volley-bench
cargo build --release --locked --package volley-backend-onnx --example decode_rate \
  --example encode_rate
cargo build --release --locked --package volley-model-host --example isolation_rate

step "measuring"
case "$kind" in
  encoders)
    venv python3 "$peers" "${PEERS[@]}"
    # PyTriton is built for this version of Python.
    venv python3.12 "$pytriton" "${PYTRITON[@]}"
    exec "$peers/bin/python" crates/bench/peers/encoders.py "$MODELS" \
      --pytriton "$pytriton/bin/python" \
      --volley target/release/volley --bench target/release/volley-bench \
      --bare target/release/examples/encode_rate "$@"
    ;;
  decoders)
    exec "$torch/bin/python" crates/bench/peers/decoders.py "$MODELS" \
      --engine target/release/examples/decode_rate "$@"
    ;;
  isolation)
    exec target/release/examples/isolation_rate "$MODELS/encoder" "$MODELS/decoder-genai" "$@"
    ;;
  bulk)
    venv python3 "$peers" "${PEERS[@]}"
    exec "$peers/bin/python" crates/bench/peers/bulk.py "$MODELS/encoder-tiny" \
      --volley target/release/volley "$@"
    ;;
esac
