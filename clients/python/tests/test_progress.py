"""Progress bars in terminals and notebooks."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import nbformat
import pytest
from nbclient import NotebookClient

CODE = """
from volley_client import Client
with Client({urls!r}) as client:
    rows = client.embed("text-embed", ["row"] * 3000, progress=True)
print(len(rows))
"""


def test_a_function_gets_every_row(client, transport):
    seen = []
    client.embed(
        "text-embed", ["x"] * 2_500, progress=seen.append, batch_size=1_000, transport=transport
    )
    assert seen == [1_000, 1_000, 500]


def test_a_terminal_shows_a_bar(cluster):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    code = CODE.format(urls=cluster.urls)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, stdin=theirs
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # The other end is closed.
            break
        if not piece:
            break
        shown += piece
    out, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0 and out.strip() == b"3000"
    text = shown.decode()
    assert "text-embed: 100%" in text and "3.00k/3.00k" in text, text


def test_a_notebook_shows_a_widget(cluster):
    cell = nbformat.v4.new_code_cell(CODE.format(urls=cluster.urls))
    notebook = nbformat.v4.new_notebook(cells=[cell])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = notebook.cells[0].outputs
    assert any("3000" in output.get("text", "") for output in outputs)
    widgets = [it.data for it in outputs if it.output_type == "display_data"]
    assert any("application/vnd.jupyter.widget-view+json" in data for data in widgets), outputs
    state = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    values = [it["state"].get("value") for it in state.values()]
    assert 3000.0 in values, "the bar is at its end"


def test_a_bar_without_its_package_is_an_error(client, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match=r"volley-client\[progress\]"):
        client.embed("text-embed", ["x"], progress=True)
