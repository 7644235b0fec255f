"""The Python of the guide runs, and the reference is that of the docstrings."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from cluster import ROOT

GUIDE = ROOT / "docs/how-to/clients/python.md"
REFERENCE = ROOT / "docs/reference/python-client.md"


def test_the_commands_of_the_guide_run(cluster):
    text = GUIDE.read_text()
    blocks = re.findall(r"(<!-- run: no[^\n]*-->\n)?```python\n(.*?)```", text, re.DOTALL)
    run = [code for skipped, code in blocks if not skipped]
    assert len(run) >= 8
    script = "\n".join(run)
    for old, new in (
        ("grpc://127.0.0.1:8421", cluster.flight[0]),
        ("http://127.0.0.1:8420", cluster.rest[0]),
    ):
        assert old in script
        script = script.replace(old, new)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_the_reference_is_that_of_the_docstrings():
    made = subprocess.run(
        [sys.executable, str(ROOT / "clients/python/reference.py")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if os.environ.get("VOLLEY_WRITE_DOCS"):
        REFERENCE.write_text(made)
    assert REFERENCE.read_text() == made, (
        "write the page again: VOLLEY_WRITE_DOCS=1 scripts/test-python-client.sh tests/test_docs.py"
    )
