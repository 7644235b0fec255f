#!/usr/bin/env bash
# Makes target/venv-sdks, a Python environment with the official clients of OpenAI, Anthropic,
# Cohere, OpenSearch and Ollama, with LangChain's classes and with httpx-sse; and, where node is at hand, target/node-sdks with the npm
# packages of examples/sdks/package.json. Once.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

PACKAGES=(
  openai==3.52.0 anthropic==2.11.0 cohere==7.3.1 langchain-openai==1.5.2 langchain-core==1.5.6
  opensearch-py==3.2.0 aiohttp==3.14.5 ollama==0.6.3 httpx==0.28.1 httpx-sse==0.4.3
)
venv="$root/target/venv-sdks"
stamp="$venv/volley-$(IFS=-; echo "${PACKAGES[*]//==/-}")"

fetch_node() {
  local folder="$root/target/node-sdks"
  if cmp -s "$root/examples/sdks/package.json" "$folder/volley-package.json"; then
    return
  fi
  if ! command -v npm >/dev/null; then
    step "npm was not found; the tests with the npm clients say so and do nothing"
    return
  fi
  step "fetching the npm clients (once)"
  rm -rf "$folder"
  mkdir -p "$folder"
  cp "$root/examples/sdks/package.json" "$folder/package.json"
  npm install --prefix "$folder" --silent --no-audit --no-fund --ignore-scripts || give_up \
    "the npm clients could not be fetched; is the network there? Run this again when it is."
  cp "$root/examples/sdks/package.json" "$folder/volley-package.json"
}

fetch_node
if [ -f "$stamp" ]; then
  exit 0
fi
need python3
step "fetching ${PACKAGES[*]} (once)"
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
  "${PACKAGES[@]}" || give_up \
  "the official clients could not be fetched; is the network there? Run this again when it is."
touch "$stamp"
