#!/usr/bin/env bash
# Makes target/otlp-venv, a Python environment with OpenTelemetry's own definitions of what goes
# over OTLP, once: a collector of them judges what Volley sends.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

PROTO=1.38.0
GRPC=1.76.0
venv="$root/target/otlp-venv"

if "$venv/bin/python" -c "
from importlib.metadata import version
assert (version('opentelemetry-proto'), version('grpcio')) == ('$PROTO', '$GRPC')
" 2>/dev/null; then
  exit 0
fi
need python3
step "fetching opentelemetry-proto $PROTO (10 MB, once)"
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
  "opentelemetry-proto==$PROTO" "grpcio==$GRPC" || {
  rm -rf "$venv"
  give_up "opentelemetry-proto could not be fetched; is the network there?"
}
