#!/usr/bin/env bash
# Makes target/venv-triton, a Python environment with Triton's own HTTP client, once.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

PACKAGES=('tritonclient[http]==2.73.0' ml_dtypes==0.5.4)
venv="$root/target/venv-triton"
stamp="$venv/volley-tritonclient-2.73.0"

if [ -f "$stamp" ]; then
  exit 0
fi
need python3
step "fetching ${PACKAGES[*]} (once)"
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
  "${PACKAGES[@]}" || give_up \
  "Triton's client could not be fetched; is the network there? Run this again when it is."
touch "$stamp"
