#!/usr/bin/env bash
# Builds Volley and runs a whole cluster in one process. Arguments go to `volley up`.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need rust cc python3
scripts/get-ort.sh
step "building Volley (minutes the first time)"
cargo build --release --locked --package volley-cli
exec target/release/volley up "$@"
