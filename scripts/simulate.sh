#!/usr/bin/env bash
# Prints what clusters of a size cost, and each number doubled: `--help` names the arguments.
# `--raft N [--seed S]` instead tells N stories of faults between coordinators, from seed S on, and
# kills the leaders of N clusters: how long writes wait for the next one.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need rust cc
step "building (minutes the first time)"
if [ "${1:-}" != --raft ]; then
  cargo build --release --locked --package volley-sim
  exec target/release/volley-sim "$@"
fi
usage="use: simulate.sh --raft STORIES [--seed SEED]"
case "$# ${3:---seed}" in
  "2 --seed" | "4 --seed") ;;
  *) give_up "$usage" ;;
esac
for number in "$2" "${4:-0}"; do
  [[ $number =~ ^[0-9]+$ ]] || give_up "$usage"
done
VOLLEY_RAFT_SEEDS="$2" VOLLEY_RAFT_SEED="${4:-0}" exec cargo test --release --locked \
  --package volley-cluster --lib -- --nocapture sim::whatever_fails sim::killed
