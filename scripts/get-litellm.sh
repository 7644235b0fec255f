#!/usr/bin/env bash
# Installs the LiteLLM proxy, which the tests talk to as a real LLM server, into target/, once.
set -euo pipefail

VERSION=1.102.4
root="$(cd "$(dirname "$0")/.." && pwd)"
venv="$root/target/venv-litellm"
stamp="$venv/volley-$VERSION"

if [ -f "$stamp" ]; then
  exit 0
fi
command -v python3 >/dev/null || {
  echo "python3 is needed for the tests against the LiteLLM proxy, and was not found." >&2
  exit 1
}
echo "Installing the LiteLLM proxy $VERSION into target/venv-litellm (once) ..." >&2
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check "litellm[proxy]==$VERSION" >&2 || {
  echo "The download failed. With a network, run scripts/get-litellm.sh again." >&2
  exit 1
}
touch "$stamp"
