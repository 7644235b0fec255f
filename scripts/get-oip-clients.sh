#!/usr/bin/env bash
# Makes target/venv-oip, a Python environment with the gRPC clients of Triton, KServe and MLServer,
# and what MLServer's users read event streams with, once.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

PACKAGES=("tritonclient[grpc]==2.73.0" kserve==0.21.0 mlserver==1.7.1 httpx-sse==0.4.3)
venv="$root/target/venv-oip"
stamp="$venv/volley-$(tr -c 'a-z0-9.\n' '-' <<<"${PACKAGES[*]}")"

if [ -f "$stamp" ]; then
  exit 0
fi
command -v python3 >/dev/null || give_up \
  "python3 was not found; the tests with the clients of Triton, KServe and MLServer need it."
step "fetching ${PACKAGES[*]} (once)"
rm -rf "$venv"
python3 -m venv "$venv" || give_up \
  "python3 cannot make virtual environments (on Debian: apt install python3-venv)."
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
  "${PACKAGES[@]}" || give_up \
  "the clients could not be fetched; is the network there? Run this again when it is."
touch "$stamp"
