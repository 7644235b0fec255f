#!/usr/bin/env bash
# Strikes a cluster of real processes with every kind of fault, under load, and checks what its
# clients saw: docs/chaos.md. Needs root. Arguments go to the binary `chaos`.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need_rust
[ "$(id -u)" = 0 ] || give_up "chaos needs root: it makes network namespaces and small disks."
missing=()
for program in ip:iproute2 nft:nftables faketime:faketime mkfs.ext4:e2fsprogs fsfreeze:util-linux; do
  command -v "${program%%:*}" >/dev/null || missing+=("${program##*:}")
done
if [ "${#missing[@]}" != 0 ]; then
  command -v apt-get >/dev/null || give_up "these packages are missing: ${missing[*]}"
  step "installing ${missing[*]}"
  apt-get update -qq && apt-get install -y -qq "${missing[@]}" >&2
fi
step "building"
cargo build --locked --package volley-cli --package volley-tests --bins
step "faults"
target/debug/chaos --volley target/debug/volley "$@"
