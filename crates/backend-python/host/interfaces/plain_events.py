"""Plain models that stream events of columns: generators of dicts, objects or Arrow batches.

The columns are those of `outputs`, or of the hint of what the generator yields:

    class Token(TypedDict):
        token: str
        score: float

    def stream(prompt: str) -> Iterator[Token]: ...
"""

from __future__ import annotations

import inspect
import typing
from typing import Any, Callable, Dict, List, Tuple

from .. import events
from ..context import InvalidInput
from ..hints import hints_of, is_structure, parse
from ..wire import Column, Field
from .base import LoadError, Model
from .plain_table import ROW, Table, fill, structure_fields
from .plain_text import ITERATORS, TEXT_ARGUMENTS, is_generator, iterated


def streams(function: Callable[..., Any]) -> bool:
    """Whether a function answers with an iterator."""
    answer = hints_of(function).get("return")
    origin = typing.get_origin(answer)
    return is_generator(function) or origin in ITERATORS or answer in ITERATORS


def is_events(function: Callable[..., Any], outputs: Any) -> bool:
    """Whether a function streams columns, and not pieces of text."""
    if not streams(function):
        return False
    if outputs is not None:
        return True
    hint = yielded(function)
    if hint is not None and hint is not dict and hint is not str:
        is_batch = getattr(hint, "__name__", "") == "RecordBatch"
        parsed = None if is_batch else parse(hint)
        if is_batch or is_structure(hint) or (parsed is not None
                                              and parsed.type not in ("utf8", "json")):
            return True
    names = list(inspect.signature(function).parameters)
    first = names[0] if names else ""
    return first not in TEXT_ARGUMENTS and hints_of(function).get(first) is not str


def yielded(function: Callable[..., Any]) -> Any:
    """The hint of what a generator yields; None without one."""
    answer = hints_of(function).get("return")
    arguments = typing.get_args(answer)
    return arguments[0] if typing.get_origin(answer) in ITERATORS and arguments else None


def load(function: Callable[..., Any], inputs: Any, outputs: Any) -> Model:
    """The model of a generator."""
    model = fill(Events(function), inputs, outputs)
    if not model.inputs:
        raise LoadError("the generator '%s' takes no input; write: def %s(prompt: str)"
                        % (function.__name__, function.__name__))
    return model


class Events(Table):
    """A generator that is called once for each request."""

    task = "events"

    def outputs_of(self, hint: Any, is_whole: bool) -> List[Field]:
        """The columns of an event."""
        event = yielded(self.function)
        if is_structure(event):
            return structure_fields(event, True)
        parsed = None if event is None or event is dict else parse(event)
        if parsed is None or typing.get_origin(event) is dict:
            name = self.function.__name__
            raise LoadError(
                "the events of '%s' have no type that tells their columns; write: outputs = "
                "[{\"name\": \"token\", \"type\": \"utf8\", \"shape\": []}], or a TypedDict: "
                "-> Iterator[Token]; to stream text, write: def %s(prompt: str)" % (name, name))
        return [parsed.field("output")]

    def _begin(self, rows: int, columns: Dict[str, Column],
               parameters: Dict[str, Any]) -> Tuple[Any, Dict[str, Any]]:
        """The arguments of the call."""
        bound = self.bound.bind(parameters)
        if self.style == ROW and rows != 1:
            raise InvalidInput("the model streams the answer to one row and the request has %d; "
                               "send a request for each row" % rows)
        return self.calls(rows, columns)[0], bound

    def stream(self, rows: int, columns: Dict[str, Column], parameters: Dict[str, Any],
               send: Any) -> Any:
        """Gives each event to `send`."""
        if self.is_async:
            return self._stream_async(rows, columns, parameters, send)
        values, bound = self._begin(rows, columns, parameters)
        answer = self.function(*values, **bound)
        try:
            for event in iterated(answer):
                send(events.columns_of(self.outputs, event))
        finally:
            close = getattr(answer, "close", None)
            if close is not None:
                close()
        return None

    async def _stream_async(self, rows: int, columns: Dict[str, Column],
                            parameters: Dict[str, Any], send: Any) -> None:
        values, bound = self._begin(rows, columns, parameters)
        answer = self.function(*values, **bound)
        if inspect.isawaitable(answer):
            answer = await answer
        if not hasattr(answer, "__aiter__"):
            for event in iterated(answer):
                await send(events.columns_of(self.outputs, event))
            return
        try:
            async for event in answer:
                await send(events.columns_of(self.outputs, event))
        finally:
            close = getattr(answer, "aclose", None)
            if close is not None:
                await close()
