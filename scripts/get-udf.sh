#!/usr/bin/env bash
# Makes target/venv-udf once: the packages of RisingWave and Databend for functions over Arrow
# Flight, a whole Databend that runs in a process, and MessagePack for what DuckDB's Airport reads.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

packages=(arrow-udf==0.3.2 databend-udf==0.2.20 databend==1.2.453 pyarrow==25.0.1 msgpack==1.1.2)
venv="$root/target/venv-udf"

if [ "$(cat "$venv/volley-packages" 2>/dev/null)" = "${packages[*]}" ]; then
  exit 0
fi
need python3
step "fetching ${packages[*]} (100 MB, once)"
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
  "${packages[@]}" || {
  rm -rf "$venv"
  give_up "the packages could not be fetched; is the network there? Run this again when it is."
}
printf '%s' "${packages[*]}" > "$venv/volley-packages"
