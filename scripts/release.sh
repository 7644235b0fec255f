#!/usr/bin/env bash
# Makes what a release consists of, in target/archive: an archive with the binary and ONNX Runtime,
# its bill of materials, and SHA256SUMS of both.
#   release.sh [--profile dist|release] [--features LIST] [--binary PATH]
#   release.sh --check [FOLDER]    unpacks the archive and runs it as a user would
# `dist` optimizes across crates and takes a long time; `release` is what scripts/up.sh builds.
# --binary packs a binary that is there. The archive is the same, byte for byte, for the same binary
# and commit. docs/contributing/release.md describes a release.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

out="$root/target/archive"

# Unpacks the archive of a folder into an empty one, runs `volley up` there with an empty home and no
# variables, and makes a streamed prediction.
check() {
  local from="$1" archive port url log="$scratch/log" home="$scratch/home"
  need python3
  step "checksums"
  (cd "$from" && sha256sum --check --strict SHA256SUMS) >&2 || give_up "$from is not as it was made."
  archive="$(find "$from" -maxdepth 1 -name 'volley-*.tar.gz')"
  [ -f "$archive" ] || give_up "$from has no archive, or several."
  mkdir "$home" "$scratch/unpacked"
  tar -xzf "$archive" -C "$scratch/unpacked"
  cd "$scratch/unpacked/$(basename "$archive" .tar.gz)"
  # Nothing of this machine's settings reaches it.
  clean=(env -i "PATH=/usr/bin:/bin" "HOME=$home")
  # Four in a row, below those that the system gives to whoever asks for any.
  port="$(python3 -c 'import random, socket
def free(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) != 0
print(next(p for p in random.sample(range(20000, 32000, 8), 1000) if all(map(free, range(p, p + 4)))))')"
  url="http://127.0.0.1:$port"
  step "volley up"
  "${clean[@]}" ./volley up --port "$port" >"$log" 2>&1 &
  volley=$!
  for _ in $(seq 300); do
    kill -0 "$volley" 2>/dev/null || give_up "volley up ended:" "$(tail -n 20 "$log")"
    # What it prints when the demo models are ready.
    ! grep -q '^Volley is ready' "$log" || break
    sleep 0.2
  done
  grep -q '^Volley is ready' "$log" || give_up "volley up was not ready:" "$(tail -n 20 "$log")"
  step "a streamed prediction"
  python3 - "$url" <<'PYTHON' || give_up "The prediction failed:" "$(tail -n 20 "$log")"
import json
import sys
import urllib.request

body = {
    "model": "storyteller",
    "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
    "stream": True,
}
request = urllib.request.Request(
    sys.argv[1] + "/v1/chat/completions",
    json.dumps(body).encode(),
    {"content-type": "application/json"},
)
texts, ended = [], False
with urllib.request.urlopen(request, timeout=60) as answer:
    for line in answer:
        data = line.decode().removeprefix("data: ").strip()
        ended |= data == "[DONE]"
        if data.startswith("{"):
            for choice in json.loads(data)["choices"]:
                texts.append(choice["delta"].get("content") or "")
texts = [text for text in texts if text]
print("".join(texts), file=sys.stderr)
if not ended or len(texts) < 5:
    sys.exit(f"{len(texts)} events with text; ended: {ended}")
PYTHON
  "${clean[@]}" ./volley --url "$url" predict storyteller "Tell me a story about a fox." >"$scratch/told"
  [ -s "$scratch/told" ] || give_up "volley predict printed nothing."
  step "the end"
  kill -TERM "$volley"
  wait "$volley" || give_up "volley up did not end cleanly:" "$(tail -n 20 "$log")"
  volley=
  step "$(basename "$archive") runs"
}

scratch="$(mktemp -d)"
volley=
end() {
  if [ -n "$volley" ]; then
    kill "$volley" 2>/dev/null || true
    wait "$volley" 2>/dev/null || true
  fi
  rm -rf "$scratch"
}
trap end EXIT

profile=dist features="" binary=""
while [ "$#" -gt 0 ]; do
  case "$1" in
    --check)
      check "$(realpath "${2:-$out}")"
      exit 0
      ;;
    --profile | --features | --binary)
      [ "$#" -ge 2 ] || give_up "$1 needs a value."
      declare "${1#--}=$2"
      shift 2
      ;;
    *) give_up "usage: release.sh [--profile dist|release] [--features LIST] [--binary PATH] | --check [FOLDER]" ;;
  esac
done

need rust cc python3
target="$(rustc --version --verbose | awk '/^host:/ { print $2 }')"
# What every file's time is, so that the archive does not depend on the clock.
epoch="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null)}" || give_up \
  "There is no commit here; set SOURCE_DATE_EPOCH to the seconds since 1970 of the release."

step "ONNX Runtime"
unset VOLLEY_ONNXRUNTIME
# An older checkout has the library without its licence.
[ -f target/ort/ThirdPartyNotices.txt ] || rm -f target/ort/libonnxruntime.so*
scripts/get-ort.sh

if [ -z "$binary" ]; then
  step "building (profile $profile)"
  cargo build --locked --profile "$profile" --package volley-cli --bin volley ${features:+--features "$features"}
  binary="target/$profile/volley"
fi
version="$("$binary" --version | awk '{ print $2 }')"
name="volley-$version-$target"
grep -q "^## \[\?$version" CHANGELOG.md || step "note: CHANGELOG.md has no section $version"
[ -z "$(git status --porcelain 2>/dev/null)" ] || step "note: the checkout has changes that are not committed"

step "bill of materials"
scripts/sbom.sh --features "$features"

step "archive"
folder="$scratch/$name"
mkdir -p "$folder"/{completions,config,systemd}
install -m 0755 "$binary" "$folder/volley"
# Beside the binary, where it looks first.
install -m 0755 target/ort/libonnxruntime.so.*.* "$folder/"
install -m 0644 target/ort/LICENSE "$folder/LICENSE-onnxruntime"
install -m 0644 target/ort/ThirdPartyNotices.txt "$folder/ThirdPartyNotices-onnxruntime.txt"
install -m 0644 LICENSE CHANGELOG.md deploy/archive/README.md deploy/archive/Containerfile "$folder/"
install -m 0644 target/sbom/volley.cdx.json "$folder/"
install -m 0644 cluster-config/*.toml "$folder/config/"
install -m 0644 deploy/systemd/*.service "$folder/systemd/"
"$folder/volley" completions bash >"$folder/completions/volley.bash"
"$folder/volley" completions zsh >"$folder/completions/_volley"
"$folder/volley" completions fish >"$folder/completions/volley.fish"
rm -rf "$out"
mkdir -p "$out"
tar --create --format=gnu --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner \
  --mode='u+rwX,go+rX,go-w' --directory "$scratch" "$name" | gzip --no-name --best >"$out/$name.tar.gz"
cp target/sbom/volley.cdx.json "$out/volley-$version.cdx.json"
(cd "$out" && sha256sum -- *.tar.gz *.json >SHA256SUMS)

# The oldest C library that it runs with.
if command -v objdump >/dev/null; then
  glibc="$(objdump -T "$folder/volley" "$folder"/libonnxruntime.so.* |
    grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)"
  step "it needs glibc ${glibc#GLIBC_} or newer"
fi
ls -l "$out" >&2
