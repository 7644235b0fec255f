"""The wheel: what is tested is what is in the checkout, and it is typed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import volley_client

PROJECT = Path(__file__).resolve().parents[1]


def test_the_installed_wheel_is_that_of_the_checkout():
    installed = Path(volley_client.__file__).parent
    sources = PROJECT / "src/volley_client"
    assert sources not in (installed, *installed.parents), "the tests need the wheel"
    stale = [
        file.name
        for file in sources.iterdir()
        if file.is_file() and file.read_bytes() != (installed / file.name).read_bytes()
    ]
    assert not stale, "run scripts/get-python-client.sh: the wheel is older than these files"
    assert (installed / "py.typed").exists()


def test_the_package_passes_mypy_strict():
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir=/dev/null"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout


def test_files_are_short():
    long = [
        f"{file.name}: {len(lines)}"
        for file in [*PROJECT.glob("src/**/*.py"), *PROJECT.glob("tests/*.py")]
        if len(lines := file.read_text().splitlines()) > 500
        or max(map(len, lines), default=0) > 120
    ]
    assert not long
