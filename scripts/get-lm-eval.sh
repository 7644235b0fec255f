#!/usr/bin/env bash
# Makes target/venv-lm-eval, a Python environment with lm-eval as it calls completion servers, and
# with ONNX Runtime, which its log-likelihoods are checked by. Once.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

PACKAGES=(
  lm_eval==0.4.13 aiohttp==3.14.5 tenacity==9.2.1 tqdm==4.70.1 requests==2.34.2
  transformers==5.23.0 tokenizers==0.23.3 onnxruntime==1.31.1 numpy==2.4.6
)
# These have no wheels; they are plain Python.
SOURCES=rouge-score,sqlitedict,word2number
venv="$root/target/venv-lm-eval"
stamp="$venv/volley-$(IFS=-; echo "${PACKAGES[*]//==/-}")"

if [ -f "$stamp" ]; then
  exit 0
fi
need python3
step "fetching ${PACKAGES[*]} (once)"
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
  --no-binary="$SOURCES" "${PACKAGES[@]}" || give_up \
  "lm-eval could not be fetched; is the network there? Run this again when it is."
touch "$stamp"
