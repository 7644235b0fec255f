#!/usr/bin/env bash
# Installs the LiteLLM proxy, which the tests talk to as a real LLM server, into target/, once.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

VERSION=1.102.4
venv="$root/target/venv-litellm"
stamp="$venv/volley-$VERSION"

if [ -f "$stamp" ]; then
  exit 0
fi
need python3
echo "Installing the LiteLLM proxy $VERSION into target/venv-litellm (once) ..." >&2
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check "litellm[proxy]==$VERSION" >&2 || {
  echo "The download failed. With a network, run scripts/get-litellm.sh again." >&2
  exit 1
}
touch "$stamp"
