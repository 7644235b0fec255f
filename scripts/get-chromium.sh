#!/usr/bin/env bash
# Sees to it that there is a Chromium for the stories of browsers: the one that is installed, else
# the distribution's, by apt.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null && "$name" --version >/dev/null 2>&1; then
    exit 0
  fi
done
by_hand="Install Chromium (or Google Chrome) as your system does it, and run this again."
command -v apt-get >/dev/null || give_up "Chromium was not found, and apt is not here." "$by_hand"
as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null && sudo -n true 2>/dev/null || give_up \
    "Chromium was not found, and installing it needs root." "$by_hand"
  as_root=(sudo -n)
fi
step "installing chromium (once)"
"${as_root[@]}" apt-get update -qq || give_up \
  "apt's lists could not be fetched; is the network there? Run this again when it is."
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
  --no-install-recommends chromium >/dev/null || give_up \
  "chromium could not be installed." "$by_hand"
chromium --version >/dev/null || give_up "chromium was installed and does not run." "$by_hand"
