#!/usr/bin/env bash
# Checks what is in deploy/, each part where its tool is there; a missing tool is said, and no
# failure. VOLLEY_STRICT_DEPLOY=1 makes it one.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

missing() {
  step "not checked: $1 ($2 is not there)"
  if [ -n "${VOLLEY_STRICT_DEPLOY:-}" ]; then
    give_up "VOLLEY_STRICT_DEPLOY is set, and $2 is not there."
  fi
}

if promtool="$(scripts/get-promtool.sh)"; then
  step "alerts"
  (
    cd deploy/prometheus
    "$promtool" check rules volley.rules.yaml
    "$promtool" test rules volley.tests.yaml
    "$promtool" check config --syntax-only prometheus.yaml
  ) >&2
else
  missing "alerts" promtool
fi

if command -v systemd-analyze >/dev/null; then
  step "systemd units"
  folder="$(mktemp -d)"
  trap 'rm -rf "$folder"' EXIT
  for unit in deploy/systemd/*.service; do
    # Volley itself is not installed here; everything else of the unit is checked.
    sed 's#/usr/bin/volley#/bin/true#' "$unit" >"$folder/$(basename "$unit")"
  done
  systemd-analyze verify --man=no "$folder"/*.service || give_up "deploy/systemd is wrong."
else
  missing "systemd units" systemd-analyze
fi

if scripts/get-deploy-tools.sh; then
  judge=target/venv-deploy/bin
  step "Helm chart, and what it renders"
  "$judge/python" tests/python/deploy chart >&2 || give_up "deploy/helm is wrong."
  step "compose file"
  "$judge/python" tests/python/deploy compose >&2 || give_up "deploy/compose is wrong."
  step "container files"
  "$judge/hadolint" --no-color --failure-threshold info deploy/{container,archive}/Containerfile >&2 ||
    give_up "A container file is wrong."
else
  missing "Helm chart, compose file and container files" "Helm's library"
fi
