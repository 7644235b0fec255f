"""A small client of the contract: starts the real host and speaks to it over a socket pair."""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import types
import unittest
from typing import Any, Callable, Dict, List, Optional

HOST = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "host")
package = types.ModuleType("volley_host")
package.__path__ = [HOST]
sys.modules.setdefault("volley_host", package)
from volley_host import wire  # noqa: E402

TIMEOUT = 20.0
#: The directory of the sources.
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
MLSERVER = os.environ.get(
    "VOLLEY_TEST_MLSERVER", os.path.join(ROOT, "target/venv-mlserver/bin/python"))
#: An interpreter with numpy only.
NUMPY = os.environ.get("VOLLEY_TEST_NUMPY", os.path.join(ROOT, "target/venv-triton/bin/python"))
PYARROW = os.environ.get("VOLLEY_TEST_PYARROW", os.path.join(ROOT, "target/venv/bin/python"))
ENVIRONMENT = {"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", "HOME": "/tmp"}


class Answer:
    """What has come for a call."""

    def __init__(self) -> None:
        self.columns: List[Dict[str, wire.Column]] = []
        self.frames = 0
        self.end: Optional[Dict[str, Any]] = None

    def texts(self, item: int = 0) -> List[Optional[str]]:
        """The pieces of one row."""
        found: List[Optional[str]] = []
        for columns in self.columns:
            pairs = zip(columns["item"].values(), columns["text"].values())
            found.extend(text for at, text in pairs if at == item)
        return found

    def values(self, name: str) -> List[Any]:
        """The values of an output."""
        return [value for columns in self.columns for value in columns[name].values()]

    def error(self) -> "tuple[str, str]":
        """Code and message of the error that ended the call."""
        assert self.end is not None and self.end["op"] == "error", self.end
        return self.end["code"], self.end["message"]


class Client:
    """A host with its socket."""

    def __init__(self, directory: str, interface: str = "auto", python: str = sys.executable,
                 triton: Optional[Dict[str, Any]] = None, **parameters: Any) -> None:
        self.directory = directory
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.output = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [python, "-I", "-B", "-u", HOST], stdin=theirs, stdout=self.output,
            stderr=self.output, cwd=directory, env=ENVIRONMENT, start_new_session=True)
        theirs.close()
        ours.settimeout(TIMEOUT)
        self.socket = ours
        self.reader = wire.Reader(ours)
        self.answers: Dict[int, Answer] = {}
        self.logs: List[Dict[str, Any]] = []
        self.frames = 0
        self.loaded: Optional[Dict[str, Any]] = None
        self.failed: Optional[str] = None
        self.send({"op": "load", "directory": directory, "interface": interface, "model": "m",
                   "version": 1, "parameters": parameters, "triton": triton})
        self.wait(lambda: self.loaded is not None or self.failed is not None)

    def send(self, message: Dict[str, Any], columns: Optional[List[wire.Column]] = None) -> None:
        """Sends one message in a frame of its own."""
        body = wire.Body()
        if columns is not None:
            described = [json.loads(body.describe(column)) for column in columns]
            message = {**message, "columns": described}
        wire.send(self.socket, wire.pack([json.dumps(message).encode()], body))

    def read(self) -> bool:
        """Takes one frame; False at the end of the socket."""
        frame = self.reader.read()
        if frame is None:
            return False
        self.frames += 1
        messages, body = frame
        for message in messages:
            self.take(message, body)
        return True

    def take(self, message: Dict[str, Any], body: memoryview) -> None:
        """Keeps one message."""
        op = message["op"]
        if op == "loaded":
            self.loaded = message
        elif op == "failed":
            self.failed = message["message"]
        elif op == "log":
            self.logs.append(message)
        elif op == "rows":
            answer = self.answers[message["id"]]
            assert answer.end is None, "rows after the end"
            columns, start = wire.decode_columns(message, body), 0
            events = message.get("events", [message["rows"]])
            assert sum(events) == message["rows"]
            for rows in events:
                answer.columns.append({name: column.slice(start, start + rows)
                                       for name, column in columns.items()})
                start += rows
        else:
            assert self.answers[message["id"]].end is None, "a second end"
            self.answers[message["id"]].end = message

    def wait(self, condition: Callable[[], bool]) -> None:
        """Reads frames until the condition holds."""
        end = time.monotonic() + TIMEOUT
        while not condition():
            if not self.read():
                raise AssertionError("the host ended: " + self.log())
            assert time.monotonic() < end, "timeout: " + self.log()

    def quiet(self, seconds: float) -> bool:
        """Whether nothing comes for so long."""
        has_rest = self.reader._start < self.reader._end
        return not has_rest and not select.select([self.socket], [], [], seconds)[0]

    def call(self, id: int, columns: List[wire.Column], credit: int = 1 << 40,
             whole: bool = False, **parameters: Any) -> Answer:
        """Starts a call."""
        self.answers[id] = Answer()
        rows = columns[0].rows
        self.send({"op": "call", "id": id, "rows": rows, "parameters": parameters,
                   "request_id": "request-%d" % id, "deadline_ms": 60_000, "trace": "00-ab-cd-01",
                   "credit": credit, "whole": whole}, columns)
        return self.answers[id]

    def prompt(self, id: int, *prompts: str, credit: int = 1 << 40, **parameters: Any) -> Answer:
        """Starts a call of a model that generates."""
        columns = [wire.text_column("prompt", "utf8", prompts),
                   wire.text_column("messages", "json", [None] * len(prompts))]
        return self.call(id, columns, credit, **parameters)

    def chat(self, id: int, messages: List[Dict[str, Any]], **parameters: Any) -> Answer:
        """Starts a call with a chat."""
        columns = [wire.text_column("prompt", "utf8", [None]),
                   wire.text_column("messages", "json", [json.dumps(messages)])]
        return self.call(id, columns, **parameters)

    def finish(self, *answers: Answer) -> None:
        """Reads until these calls have ended."""
        self.wait(lambda: all(answer.end is not None for answer in answers))

    def log(self) -> str:
        """What the process has written to its output."""
        self.output.seek(0)
        return self.output.read().decode("utf-8", "replace")

    def exit_status(self) -> int:
        """The status of the process, which has to end."""
        return self.process.wait(TIMEOUT)

    def close(self) -> None:
        """Ends the process."""
        self.socket.close()
        if self.process.poll() is None:
            self.process.wait(TIMEOUT)
        self.output.close()


class HostTest(unittest.TestCase):
    """A test with models of its own."""

    def directory(self, **files: str) -> str:
        """A new directory with these files; `__` in a name is a dot."""
        directory = tempfile.mkdtemp(prefix="volley-host-test-")
        self.addCleanup(shutil.rmtree, directory)
        for name, text in files.items():
            path = os.path.join(directory, name.replace("__", "."))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(textwrap.dedent(text))
        return directory

    def start(self, directory: str, **settings: Any) -> Client:
        """A host of the model in a directory."""
        client = Client(directory, **settings)
        self.addCleanup(client.close)
        return client

    def model(self, text: str, **settings: Any) -> Client:
        """A host of a plain model that must load."""
        client = self.start(self.directory(model__py=text), **settings)
        self.assertIsNone(client.failed, client.log())
        return client

    def load_failure(self, text: str, **settings: Any) -> str:
        """The message of a model that cannot be loaded."""
        client = self.start(self.directory(model__py=text), **settings)
        self.assertIsNone(client.loaded)
        self.assertEqual(client.exit_status() & 1, 1)
        return client.failed or ""

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition outside of the socket."""
        end = time.monotonic() + TIMEOUT
        waiter = select.poll()
        while not condition():
            self.assertLess(time.monotonic(), end, "timeout")
            waiter.poll(2)
