#!/usr/bin/env bash
# Runs the LiteLLM proxy on 127.0.0.1 at the port that is given, in the foreground.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
port="${1:?usage: run.sh PORT}"
proxy="$here/../../../target/venv-litellm/bin/litellm"
[ -x "$proxy" ] || { echo "run scripts/get-litellm.sh first" >&2; exit 1; }
export LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_TELEMETRY=False NO_DOCS=True
# Where the proxy finds itself, for the model that it relays.
export VOLLEY_LITELLM_SELF="http://127.0.0.1:$port/v1"
exec "$proxy" --config "$here/config.yaml" --host 127.0.0.1 --port "$port" --num_workers 1 --telemetry False
