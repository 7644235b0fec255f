#!/usr/bin/env bash
# Runs three coordinators and two workers on this machine, each a process of its own, from the
# files in cluster-config/. Ctrl-C stops them all. Data and logs are in target/cluster/; with
# --fresh, those of an earlier run are removed first.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need rust cc python3
scripts/get-ort.sh
step "building Volley (minutes the first time)"
cargo build --release --locked --package volley-cli
volley="$root/target/release/volley"
[ "${1:-}" != "--fresh" ] || rm -rf target/cluster
mkdir -p target/cluster

nodes=(coordinator-1 coordinator-2 coordinator-3 worker-1 worker-2)
pids=()
stop() {
  trap - INT TERM EXIT
  step "stopping"
  # Workers last: they serve the streams that coordinators drain.
  for pid in "${pids[@]}"; do
    kill -TERM "$pid" 2>/dev/null || true
  done
  wait
}
trap stop EXIT
trap 'exit 0' INT TERM

for node in "${nodes[@]}"; do
  # In a session of its own, so that a Ctrl-C reaches it only through us.
  setsid "$volley" "${node%-*}" --config "cluster-config/$node.toml" \
    >"target/cluster/$node.log" 2>&1 &
  pids+=("$!")
done

step "waiting for a leader and both workers"
urls=http://127.0.0.1:8420,http://127.0.0.1:8430,http://127.0.0.1:8440
ready=
for _ in $(seq 1 300); do
  for index in "${!nodes[@]}"; do
    kill -0 "${pids[$index]}" 2>/dev/null || {
      tail -n 20 "target/cluster/${nodes[$index]}.log" >&2
      give_up "${nodes[$index]} ended; its log is target/cluster/${nodes[$index]}.log"
    }
  done
  if status="$("$volley" --url "$urls" status 2>/dev/null)" \
    && [ "$(grep -c ' alive ' <<<"$status")" = 2 ] && grep -q ' leader ' <<<"$status"; then
    ready=yes
    break
  fi
  sleep 0.1
done
[ -n "$ready" ] || give_up "the cluster was not ready within 30 s; see target/cluster/*.log"

cat <<END
$status

The cluster is ready. Any coordinator answers any request:
  http://127.0.0.1:8420   http://127.0.0.1:8430   http://127.0.0.1:8440
Deploy the demo model on both workers, and stream from it:
  target/release/volley model register storyteller --path models/storyteller --deploy 2
  target/release/volley --url http://127.0.0.1:8430 predict storyteller "Tell me a story about a fox."
Logs are in target/cluster/. Ctrl-C stops everything.
END
wait
