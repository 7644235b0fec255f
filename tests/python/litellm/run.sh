#!/usr/bin/env bash
# Runs the LiteLLM proxy on the given port, in the foreground.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
proxy="$here/../../../target/venv-litellm/bin/litellm"
[ -x "$proxy" ] || { echo "run scripts/get-litellm.sh first" >&2; exit 1; }
export LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_TELEMETRY=False NO_DOCS=True
exec "$proxy" --config "$here/config.yaml" --host 127.0.0.1 --port "$1" --num_workers 1 --telemetry False
