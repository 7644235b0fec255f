#!/usr/bin/env bash
# Makes the generated code of crates/proto from proto/. With --check, only tells whether what is
# there is what would be made.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need rust cc
generated="$root/crates/proto/src/generated"
make() {
  cargo run --locked --quiet --package volley-codegen
}

if [ "${1:-}" != "--check" ]; then
  make
  exit 0
fi

kept="$(mktemp -d)"
cp -a "$generated" "$kept/generated"
restore() {
  rm -rf "$generated"
  mv "$kept/generated" "$generated"
  rmdir "$kept"
}
trap restore EXIT
make
diff -ru "$kept/generated" "$generated" >&2 || give_up \
  "crates/proto/src/generated is not what proto/ makes: run scripts/codegen.sh and commit."
