#!/usr/bin/env bash
# Tests the wheel of clients/python against real clusters: builds Volley and the wheel, and runs
# pytest. Arguments go to pytest. VOLLEY_BINARY names another binary, which is then not built.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need python3
scripts/get-python-client.sh
if [ -z "${VOLLEY_BINARY:-}" ]; then
  need rust cc
  scripts/get-ort.sh
  step "building Volley (minutes the first time)"
  cargo build --locked --package volley-cli
  export VOLLEY_BINARY="$root/target/debug/volley"
fi
step "testing the wheel"
cd clients/python
exec "$root/target/venv-client/bin/python" -m pytest "$@"
