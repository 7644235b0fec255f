#!/usr/bin/env bash
# Measures what is promised under load and to clients that misbehave, in full, and prints a table:
# docs/evidence/overload.md. Arguments go to the binary `promises`, for example `overload --small`.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need rust cc
step "building (minutes the first time)"
cargo build --release --locked --package volley-cli --package volley-tests --bins
# Ten thousand streams are twenty thousand sockets.
ulimit -n "$(ulimit -Hn)"
step "measuring (an hour in full)"
exec target/release/promises "$@"
