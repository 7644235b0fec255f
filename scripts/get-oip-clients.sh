#!/usr/bin/env bash
# Makes target/venv-oip, a Python environment with the gRPC clients of Triton and KServe, and
# target/venv-mlserver, one with MLServer, two of its runtimes and what its users read event streams with:
# the two do not fit into one. Once.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

make_venv() {
  local venv="$root/target/$1"
  shift
  local stamp
  stamp="$venv/volley-$(tr -c 'a-z0-9.\n' '-' <<<"$*")"
  if [ -f "$stamp" ]; then
    return
  fi
  need python3
  step "fetching $* (once)"
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
    "$@" || give_up \
    "the clients could not be fetched; is the network there? Run this again when it is."
  touch "$stamp"
}

make_venv venv-oip "tritonclient[grpc]==2.73.0" kserve==0.21.0
make_venv venv-mlserver mlserver==1.7.1 mlserver-sklearn==1.7.1 mlserver-lightgbm==1.7.1 httpx-sse==0.4.3 httpx==0.28.1
