#!/usr/bin/env bash
# Strikes a cluster of real processes with every kind of fault, under load, and checks what its
# clients saw: docs/evidence/chaos.md. Needs root. Arguments go to the binary `chaos`. With `--if-possible`
# first, a machine that does not allow it is said, and no failure, unless CI is set.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

impossible() {
  if [ -n "$lenient" ] && [ -z "${CI:-}" ]; then
    step "no faults: $*"
    exit 0
  fi
  give_up "$@"
}

# What a run does first, by itself: a namespace, a rule in it, a small disk that stops and goes on.
try_all() {
  local name="vtry$$" folder
  folder="$(mktemp -d)"
  truncate --size 16M "$folder/image" && mkfs.ext4 -q -F "$folder/image" && mkdir "$folder/disk" &&
    mount -o loop "$folder/image" "$folder/disk" &&
    fsfreeze -f "$folder/disk" && fsfreeze -u "$folder/disk" &&
    ip netns add "$name" && ip -n "$name" link add type veth &&
    ip netns exec "$name" nft add table inet chaos
  local outcome=$?
  ip netns del "$name" 2>/dev/null || true
  umount "$folder/disk" 2>/dev/null || true
  rm -rf "$folder"
  return "$outcome"
}

lenient=""
if [ "${1:-}" = --if-possible ]; then
  lenient=yes
  shift
fi
need rust cc
[ "$(id -u)" = 0 ] || impossible "chaos needs root: it makes network namespaces and small disks."
missing=()
for program in ip:iproute2 nft:nftables faketime:faketime mkfs.ext4:e2fsprogs fsfreeze:util-linux; do
  command -v "${program%%:*}" >/dev/null || missing+=("${program##*:}")
done
if [ "${#missing[@]}" != 0 ]; then
  command -v apt-get >/dev/null || impossible "these packages are missing: ${missing[*]}"
  step "installing ${missing[*]}"
  { apt-get update -qq && apt-get install -y -qq "${missing[@]}"; } >&2 ||
    impossible "these packages could not be installed: ${missing[*]}"
fi
try_all || impossible "this machine allows no network namespaces or no disks of one's own."
step "building"
# As the tests are built, so that nothing is built twice.
cargo build --workspace --features volley-cli/sql --locked --bin volley --bin chaos --test whole
step "faults"
target/debug/chaos --volley target/debug/volley "$@"
