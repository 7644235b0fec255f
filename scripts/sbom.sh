#!/usr/bin/env bash
# Writes target/sbom/volley.cdx.json: what the binary `volley` is made of, in CycloneDX's form.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

need_rust
sbom="$(tool cargo-sbom 0.10.0)"
mkdir -p target/sbom
"$sbom" sbom --cargo-package volley-cli --output-format cyclone_dx_json_1_6 >target/sbom/volley.cdx.json
step "target/sbom/volley.cdx.json"
