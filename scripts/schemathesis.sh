#!/usr/bin/env bash
# Checks every REST route of a running `volley up` against the OpenAPI document that it serves,
# with schemathesis: no answer of the 500s, no undocumented status, media type or form of body.
# The first argument is the binary (target/debug/volley where none is given), the second how many
# seconds it may take (150). VOLLEY_SEED says which requests are made.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

VERSION=4.32.5
binary="${1:-$root/target/debug/volley}"
seconds="${2:-150}"
venv="$root/target/venv-schemathesis"
stamp="$venv/volley-$VERSION"

if [ ! -f "$stamp" ]; then
  need python3
  step "fetching schemathesis $VERSION (once)"
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
    "schemathesis==$VERSION" || give_up \
    "schemathesis could not be fetched; is the network there? Run this again when it is."
  touch "$stamp"
fi
if [ "$binary" = --fetch ]; then
  exit 0
fi
[ -x "$binary" ] || give_up "$binary is not there; build it: cargo build --package volley-cli"

folder="$(mktemp -d)"
# Four in a row, below those that the system gives to whoever asks for any.
port="${VOLLEY_PORT:-$(python3 -c 'import random, socket
def free(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) != 0
print(next(p for p in random.sample(range(20000, 32000, 8), 1000) if all(map(free, range(p, p + 4)))))')}"
"$binary" up --port "$port" --data-dir "$folder/data" >"$folder/log" 2>&1 &
volley=$!
end() {
  kill "$volley" 2>/dev/null || true
  wait "$volley" 2>/dev/null || true
  rm -rf "$folder"
}
trap end EXIT

url="http://127.0.0.1:$port"
for _ in $(seq 300); do
  "$venv/bin/python" - "$url" <<'PY' && break
import json, sys, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1] + "/v1/models?all=true", timeout=2) as answer:
        models = {each["id"] for each in json.load(answer)["data"]}
    sys.exit(0 if {"storyteller", "classifier"} <= models else 1)
except OSError:
    sys.exit(1)
PY
  kill -0 "$volley" 2>/dev/null || give_up "volley up ended:" "$(tail -5 "$folder/log")"
  sleep 0.2
done

# Nodes and keys are left alone: a made-up member takes the quorum, a key shuts everybody out.
cd "$folder"
"$venv/bin/schemathesis" --config-file "$root/tests/python/schemathesis.toml" \
  run "$url/openapi.json" \
  --seed "${VOLLEY_SEED:-1}" --max-time "$seconds" --no-color --no-shrink \
  --exclude-path-regex '^/_volley/(nodes|keys)' --warnings off

kill -0 "$volley" || give_up "volley up ended:" "$(tail -5 "$folder/log")"
