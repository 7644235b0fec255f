#!/usr/bin/env bash
# Measures the CPU time of a chat that is not streamed through nginx as a reverse proxy and through
# Volley, to one local server of OpenAI's format, in one run. Prints a table and the ratio.
#   bench-upstream.sh [--requests N] [--connections N] [--rounds N]
# VOLLEY=PATH measures that binary instead of a release build.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need nginx python3
volley="${VOLLEY:-}"
if [ -z "$volley" ]; then
  need rust cc
  scripts/get-ort.sh
  step "building (minutes the first time)"
  cargo build --release --locked --package volley-cli
  volley="$root/target/release/volley"
fi
ulimit -n "$(ulimit -Hn)"
step "measuring"
exec python3 crates/bench/upstream/measure.py --volley "$volley" "$@"
