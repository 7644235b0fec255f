#!/usr/bin/env bash
# Runs a million texts through Spark and Ray Data, beside a single exchange and the Python client,
# and kills an executor and an actor in the middle. Arguments go to
# clients/python/benchmarks/scale_out.py, such as `spark-killed --rows 100000`. The first run fetches
# Spark and Ray into target/venv-spark (2 GB). VOLLEY_BINARY names another binary, which is then not
# built.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

PACKAGES=(
  pyspark==4.3.0 "ray[data]==2.60.0" pyarrow==26.0.1 httpx==0.28.1 pandas==3.1.1 numpy==2.4.6
)
venv="$root/target/venv-spark"
stamp="$venv/volley-$(IFS=-; echo "${PACKAGES[*]//==/-}")"

need python3 java disk:4
scripts/get-python-client.sh
if [ ! -f "$stamp" ]; then
  step "fetching ${PACKAGES[*]} (500 MB, once)"
  rm -rf "$venv"
  python3 -m venv "$venv"
  # Spark has no wheel: its package is built from Python and jars alone.
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --only-binary=:all: --no-binary=pyspark "${PACKAGES[@]}" || give_up \
    "the packages could not be fetched; is the network there? Run this again when it is."
  touch "$stamp"
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index \
  --force-reinstall target/wheels/volley_client-*.whl
if [ -z "${VOLLEY_BINARY:-}" ]; then
  need rust cc
  scripts/get-ort.sh
  step "building Volley (minutes the first time)"
  cargo build --release --locked --package volley-cli
  export VOLLEY_BINARY="$root/target/release/volley"
fi
step "measuring"
exec "$venv/bin/python" clients/python/benchmarks/scale_out.py "$@"
