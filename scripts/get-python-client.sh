#!/usr/bin/env bash
# Makes target/venv-client: a Python environment with the wheel of clients/python, built from this
# checkout, and with what its tests need. The environment is made once, the wheel whenever its
# sources changed.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

PACKAGES=(
  pyarrow==26.0.1 httpx==0.28.1 pandas==3.1.1 numpy==2.4.6 polars==2.1.0 duckdb==2.0.0 tqdm==4.70.1
  pytest==9.2.0 mypy==2.4.1 hatchling==1.33.0 cryptography==50.0.2 nbclient==0.11.0
  ipykernel==7.4.0 ipywidgets==8.1.9
)
venv="$root/target/venv-client"
stamp="$venv/volley-$(IFS=-; echo "${PACKAGES[*]//==/-}")"

need python3
if [ ! -f "$stamp" ]; then
  step "fetching ${PACKAGES[*]} (200 MB, once)"
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
    "${PACKAGES[@]}" || give_up \
    "the packages could not be fetched; is the network there? Run this again when it is."
  touch "$stamp"
fi

sources="$(cd clients/python && find pyproject.toml README.md src -type f -not -name '*.pyc' -print0 \
  | sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1)"
if [ "$(cat "$venv/volley-wheel" 2>/dev/null)" = "$sources" ]; then
  exit 0
fi
step "building the wheel of clients/python"
rm -rf target/wheels
mkdir -p target/wheels
(cd clients/python && "$venv/bin/python" -m hatchling build --target wheel --directory "$root/target/wheels" >/dev/null)
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index \
  --force-reinstall target/wheels/volley_client-*.whl
printf '%s' "$sources" >"$venv/volley-wheel"
