#!/usr/bin/env bash
# Prints the path of promtool: the one that is installed, else Debian's in target/tools, fetched
# once. Fails where neither can be had.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

if command -v promtool; then
  exit 0
fi
own="$root/target/tools/prometheus/usr/bin/promtool"
if [ ! -x "$own" ]; then
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || exit 1
  step "fetching Debian's package of Prometheus (20 MB, once)"
  folder="$(mktemp -d)"
  trap 'rm -rf "$folder"' EXIT
  (cd "$folder" && apt-get download --quiet --quiet prometheus >&2) || exit 1
  mkdir -p "$root/target/tools/prometheus"
  dpkg-deb --extract "$folder"/prometheus_*.deb "$root/target/tools/prometheus"
fi
printf '%s\n' "$own"
