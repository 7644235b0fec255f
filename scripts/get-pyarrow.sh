#!/usr/bin/env bash
# Makes target/venv, a Python environment with pyarrow, once.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

VERSION=26.0.1
venv="$root/target/venv"

if "$venv/bin/python" -c "import pyarrow; assert pyarrow.__version__ == '$VERSION'" 2>/dev/null; then
  exit 0
fi
need python3
step "fetching pyarrow $VERSION (50 MB, once)"
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
  "pyarrow==$VERSION" || {
  rm -rf "$venv"
  give_up "pyarrow could not be fetched; is the network there? Run this again when it is, or make" \
    "target/venv yourself: a virtual environment with pyarrow $VERSION."
}
