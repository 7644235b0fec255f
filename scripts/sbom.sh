#!/usr/bin/env bash
# Writes target/sbom/volley.cdx.json: what the binary `volley` is made of, in CycloneDX's form. Reads
# the lock file and the crates' own descriptions; builds nothing. `--features LIST` names the features
# of volley-cli; without it, all are in.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

features=sql
if [ "${1:-}" = --features ]; then
  features="${2?--features needs a value}"
fi
need rust python3
mkdir -p target/sbom
target="$(rustc --version --verbose | awk '/^host:/ { print $2 }')"
cargo metadata --locked --format-version 1 --filter-platform "$target" \
  --manifest-path crates/cli/Cargo.toml --features "$features" >target/sbom/metadata.json
python3 - target/sbom/metadata.json Cargo.lock >target/sbom/volley.cdx.json <<'PYTHON'
import json
import sys
import tomllib

metadata = json.load(open(sys.argv[1]))
lock = tomllib.load(open(sys.argv[2], "rb"))
hashes = {(it["name"], it["version"]): it.get("checksum") for it in lock["package"]}
packages = {it["id"]: it for it in metadata["packages"]}
nodes = {it["id"]: it for it in metadata["resolve"]["nodes"]}
root = next(it["id"] for it in metadata["packages"] if it["name"] == "volley-cli")


def needed(node):
    """What is linked into it, or runs when it is compiled; not what tests it."""
    for it in nodes[node]["deps"]:
        if any(kind["kind"] != "dev" for kind in it["dep_kinds"]):
            yield it["pkg"]


reached, waiting = set(), [root]
while waiting:
    node = waiting.pop()
    if node not in reached:
        reached.add(node)
        waiting.extend(needed(node))


def purl(it):
    return f"pkg:cargo/{it['name']}@{it['version']}"


def component(it):
    told = {
        "type": "library",
        "bom-ref": purl(it),
        "name": it["name"],
        "version": it["version"],
        "purl": purl(it),
    }
    if it["license"]:
        told["licenses"] = [{"expression": it["license"].replace("/", " OR ")}]
    checksum = hashes.get((it["name"], it["version"]))
    if checksum:
        told["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if it["repository"]:
        told["externalReferences"] = [{"type": "vcs", "url": it["repository"]}]
    return told


binary = component(packages[root]) | {"type": "application", "name": "volley"}
order = sorted(reached - {root}, key=lambda node: purl(packages[node]))
links = [
    {
        "ref": purl(packages[node]),
        "dependsOn": sorted({purl(packages[it]) for it in needed(node)}),
    }
    for node in [root, *order]
]
json.dump(
    {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": binary},
        "components": [component(packages[node]) for node in order],
        "dependencies": links,
    },
    sys.stdout,
    indent=1,
)
unlicensed = [purl(packages[node]) for node in order if not packages[node]["license"]]
if len(order) < 100 or unlicensed:
    sys.exit(f"{len(order)} components; without a licence: {unlicensed}")
PYTHON
rm target/sbom/metadata.json
step "target/sbom/volley.cdx.json"
