#!/usr/bin/env bash
# Gets ONNX Runtime's shared library out of its Python wheel into target/ort/, once.
set -euo pipefail

VERSION=1.31.1
root="$(cd "$(dirname "$0")/.." && pwd)"
dir="$root/target/ort"
library="$dir/libonnxruntime.so.$VERSION"

case "$(uname -s)-$(uname -m)" in
  Linux-x86_64)
    platform=manylinux_2_28_x86_64
    sha256=5752bd508126ae7c49894d3b9d2e83f0c3d487319246d04c444b393308d7ad7f
    ;;
  *)
    echo "No ONNX Runtime wheel is pinned for $(uname -s) on $(uname -m)." >&2
    echo "Install ONNX Runtime $VERSION and set VOLLEY_ONNXRUNTIME to its shared library." >&2
    exit 1
    ;;
esac

if [ -f "$library" ]; then
  exit 0
fi

give_up() {
  echo "$1" >&2
  echo "Either download the wheel onnxruntime==$VERSION for CPython 3.11, $platform, on another" >&2
  echo "machine and put it into target/ort/, or set VOLLEY_ONNXRUNTIME to the shared library of" >&2
  echo "an ONNX Runtime $VERSION that is installed here." >&2
  exit 1
}

command -v python3 >/dev/null || give_up "python3 is needed to fetch ONNX Runtime, and was not found."
mkdir -p "$dir"
wheel="$(find "$dir" -maxdepth 1 -name "onnxruntime-$VERSION-cp311-*$platform.whl" | head -n 1)"
if [ -z "$wheel" ]; then
  echo "Fetching ONNX Runtime $VERSION (24 MB, once) ..." >&2
  python3 -m pip --version >/dev/null 2>&1 || give_up "python3 has no pip (on Debian: apt install python3-pip)."
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version 311 --implementation cp --platform "$platform" \
    --dest "$dir" "onnxruntime==$VERSION" >&2 || give_up "The download failed."
  wheel="$(find "$dir" -maxdepth 1 -name "onnxruntime-$VERSION-cp311-*.whl" | head -n 1)"
fi

found="$(sha256sum "$wheel" | cut -d ' ' -f 1)"
if [ "$found" != "$sha256" ]; then
  rm -f "$wheel"
  give_up "The wheel's SHA-256 is $found, not $sha256; it was removed."
fi

python3 - "$wheel" "onnxruntime/capi/libonnxruntime.so.$VERSION" "$library.part" <<'PYTHON'
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(sys.argv[2]) as source:
    with open(sys.argv[3], "wb") as target:
        shutil.copyfileobj(source, target)
PYTHON
mv "$library.part" "$library"
rm -f "$wheel"
echo "ONNX Runtime $VERSION is in target/ort/." >&2
