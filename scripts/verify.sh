#!/usr/bin/env bash
# Checks everything but the tests' outcome, and changes nothing. VOLLEY_ADVISORY_DB may name a
# checkout of the RustSec advisory database; without it, advisories are fetched.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need rust cc python3
deny="$(tool cargo-deny 0.20.2)"
audit="$(tool cargo-audit 0.22.2)"
machete="$(tool cargo-machete 0.9.2)"
mdbook="$(tool mdbook 0.5.4 --no-default-features --features search)"

step "formatting"
cargo fmt --all --check || give_up "Run scripts/fix.sh."
# The list of providers declares its modules in a macro, which cargo fmt does not look into.
rustfmt --edition 2024 --check crates/providers/src/*.rs || give_up "Run scripts/fix.sh."

step "the lock file"
cargo metadata --locked --format-version 1 >/dev/null

step "licences, bans and sources"
"$deny" --log-level error check licenses bans sources

step "unused dependencies"
"$machete"

step "advisories"
if [ -n "${VOLLEY_ADVISORY_DB:-}" ]; then
  "$audit" audit --quiet --deny warnings --no-fetch --stale --db "$VOLLEY_ADVISORY_DB"
else
  "$audit" audit --quiet --deny warnings
fi

step "the bill of materials"
scripts/sbom.sh >/dev/null

step "clippy"
cargo clippy --workspace --all-targets --features volley-cli/sql --locked --quiet -- -D warnings

step "generated code"
scripts/codegen.sh --check

step "borders between crates, sizes of files, links of documents"
cargo test --locked --quiet --package volley-tests --test tidy

scripts/verify-deploy.sh

step "the book"
"$mdbook" build

step "documentation of the code"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
