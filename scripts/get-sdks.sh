#!/usr/bin/env bash
# Makes target/venv-sdks, a Python environment with the official clients of OpenAI and Anthropic,
# once.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

PACKAGES=(openai==3.52.0 anthropic==2.11.0)
venv="$root/target/venv-sdks"
stamp="$venv/volley-$(IFS=-; echo "${PACKAGES[*]//==/-}")"

if [ -f "$stamp" ]; then
  exit 0
fi
command -v python3 >/dev/null || give_up \
  "python3 was not found; the tests with the official clients need it."
step "fetching ${PACKAGES[*]} (once)"
rm -rf "$venv"
python3 -m venv "$venv" || give_up \
  "python3 cannot make virtual environments (on Debian: apt install python3-venv)."
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
  "${PACKAGES[@]}" || give_up \
  "the official clients could not be fetched; is the network there? Run this again when it is."
touch "$stamp"
