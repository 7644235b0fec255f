#!/usr/bin/env bash
# Makes target/venv-onnx, a Python environment with the ONNX standard's own tests and the ONNX
# Runtime that scripts/get-ort.sh gets, once.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

# The version of the standard that this ONNX Runtime implements (opset 26).
PACKAGES=(onnx==1.21.0 onnxruntime==1.31.1 ml_dtypes==0.6.0 numpy==2.4.6)
venv="$root/target/venv-onnx"
stamp="$venv/volley-$(IFS=-; echo "${PACKAGES[*]//==/-}")"

if [ -f "$stamp" ]; then
  exit 0
fi
need python3
step "fetching ${PACKAGES[*]} (once)"
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
  "${PACKAGES[@]}" || give_up \
  "the standard's tests could not be fetched; is the network there? Run this again when it is."
touch "$stamp"
