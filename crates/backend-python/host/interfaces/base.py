"""What an interface gives to the host: a loaded model."""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ..context import ModelError
from ..wire import Column, Field


class LoadError(Exception):
    """A model that cannot be loaded; the text is for the operator."""


class AnswerError(ModelError):
    """An answer of the model that is not what it declares."""


class Source(NamedTuple):
    """The model that the worker wants to have loaded."""

    directory: str
    model: str
    version: int
    parameters: Dict[str, Any]
    #: For a model of a Triton repository: `config` (config.pbtxt as JSON), `version` (the name of
    #: the version's folder) and `instance` (the number of this process in its replica).
    triton: Optional[Dict[str, Any]] = None


class Row(NamedTuple):
    """One row of a request to a model that generates: either a prompt or a chat."""

    prompt: Optional[str]
    messages: Optional[List[Dict[str, Any]]]
    parameters: Dict[str, Any]


class Model:
    """A loaded model. One subclass or more per interface."""

    interface = "plain"
    #: "generate", "tensors", "embed" or "events".
    task = "tensors"
    #: Whether `generate`, `answer` and `stream` are coroutines that run on the event loop.
    is_async = False
    concurrency = 1
    max_rows: Optional[int] = None
    #: Seconds that a request waits for others that share its call; None for the worker's default.
    batch_window: Optional[float] = None
    any_parameter = False
    dimensions: Optional[int] = None
    description = ""
    #: The route that the model declares, such as "/generate-stream".
    route: Optional[str] = None

    def __init__(self) -> None:
        self.inputs: List[Field] = []
        self.outputs: List[Field] = []
        self.parameters: List[str] = []

    def generate(self, row: Row, emit: Any) -> Any:
        """Answers one row: gives each piece to `emit(text, finish_reason)`."""
        raise NotImplementedError

    def answer(self, rows: int, columns: Dict[str, Column], parameters: Dict[str, Any]) -> Any:
        """Answers all rows of a call with a list of columns."""
        raise NotImplementedError

    def stream(self, rows: int, columns: Dict[str, Column], parameters: Dict[str, Any],
               send: Any) -> Any:
        """Answers a call with events: gives the columns of each to `send`, which waits while the
        caller does not read. A coroutine awaits `send`."""
        raise NotImplementedError

    def unload(self) -> Any:
        """The end of the model."""

    def own_calls(self, outbox: Any, directory: str) -> Any:
        """How calls run, where neither threads nor the event loop fit; None for those."""
        return None

    def error_of(self, error: BaseException) -> Optional[Tuple[str, str]]:
        """Code and message of the interface's own errors; None for all others."""
        return None

    def described(self) -> Dict[str, Any]:
        """The message "loaded"."""
        is_table = self.task in ("tensors", "events")
        return {
            "op": "loaded",
            "interface": self.interface,
            "task": self.task,
            "inputs": [field.described() for field in self.inputs] if is_table else [],
            "outputs": [field.described() for field in self.outputs] if is_table else [],
            "parameters": self.parameters,
            "any_parameter": self.any_parameter,
            "concurrency": max(1, self.concurrency),
            "max_rows": self.max_rows,
            "batch_window_seconds": self.batch_window,
            "dimensions": self.dimensions,
            "description": self.description[:LONGEST_DESCRIPTION],
            "route": self.route,
        }


LONGEST_DESCRIPTION = 8_192


def row_of(columns: Dict[str, Column], item: int, parameters: Dict[str, Any]) -> Row:
    """One row of a request to a model that generates."""
    prompt, messages = columns.get("prompt"), columns.get("messages")
    if prompt is not None and not prompt.is_null(item):
        return Row(prompt.slice(item, item + 1).values()[0], None, parameters)
    if messages is not None and not messages.is_null(item):
        text = messages.slice(item, item + 1).buffers[1]
        return Row(None, json.loads(bytes(text)), parameters)
    return Row("", None, parameters)
