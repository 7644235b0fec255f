#!/usr/bin/env bash
# Runs MLServer on 127.0.0.1 at the three ports that are given (HTTP, gRPC, metrics), in the
# foreground; it writes into the file that is given whether a caller has left.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
: "${4:?usage: run.sh HTTP GRPC METRICS FILE}"
server="$here/../../../target/venv-mlserver/bin/mlserver"
[ -x "$server" ] || { echo "run scripts/get-oip-clients.sh first" >&2; exit 1; }
export MLSERVER_HTTP_PORT="$1" MLSERVER_GRPC_PORT="$2" MLSERVER_METRICS_PORT="$3"
export VOLLEY_LEFT="$4" PYTHONDONTWRITEBYTECODE=1
exec "$server" start "$here"
