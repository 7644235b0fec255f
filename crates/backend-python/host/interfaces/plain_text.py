"""Plain models that generate text, and those that embed it."""

from __future__ import annotations

import inspect
import typing
from collections import abc
from typing import Any, Callable, Dict, List, Optional

from ..answers import AnswerError, column_of
from ..context import InvalidInput, Unsupported
from ..hints import Arguments, hints_of
from ..wire import Column, Field
from .base import LoadError, Model, Row

TEXT_ARGUMENTS = ("prompt", "text", "messages")
ITERATORS = (abc.Iterator, abc.Iterable, abc.Generator, abc.AsyncIterator, abc.AsyncIterable,
             abc.AsyncGenerator)
ASYNC_ITERATORS = ITERATORS[3:]


def is_generation(function: Callable[..., Any]) -> bool:
    """Whether a function answers a prompt or a chat with text."""
    hints = hints_of(function)
    answer = hints.get("return")
    streams = is_generator(function) or typing.get_origin(answer) in ITERATORS or (
        answer in ITERATORS)
    names = list(inspect.signature(function).parameters)
    first = names[0] if names else ""
    if streams:
        # Other generators stream columns.
        return True
    is_named = function.__name__ in ("generate", "stream")
    if first in ("prompt", "messages"):
        return answer is str or (answer is None and is_named)
    return is_named and first == "text" and answer in (str, None)


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether a function is a generator function."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether the answers of a function need an event loop."""
    answer = hints_of(function).get("return")
    return (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
            or (typing.get_origin(answer) or answer) in ASYNC_ITERATORS)


class Generation(Model):
    """A function that answers each row with pieces of text."""

    task = "generate"

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function
        names = list(inspect.signature(function).parameters)
        self._first = names[0]
        self._has_messages = "messages" in names
        skipped = [self._first, "messages"] if self._has_messages else [self._first]
        self._arguments = Arguments(function, skipped)
        self.parameters = self._arguments.names
        self.any_parameter = self._arguments.any_parameter
        self.is_async = is_async(function)
        if self.is_async:
            self.generate = self._generate_async

    def _bound(self, row: Row) -> Dict[str, Any]:
        """The arguments of a call for one row."""
        bound = self._arguments.bind(row.parameters)
        if row.messages is None:
            messages = [{"role": "user", "content": row.prompt}]
            bound[self._first] = messages if self._first == "messages" else row.prompt
            return bound
        if not self._has_messages:
            raise Unsupported("the model takes a prompt and no chat; for chats its function '%s' "
                              "needs the argument 'messages: list[dict]'"
                              % self._function.__name__)
        if self._first != "messages":
            bound[self._first] = None
        bound["messages"] = row.messages
        return bound

    def generate(self, row: Row, emit: Any) -> None:
        """Gives the pieces of one row to `emit`."""
        answer = self._function(**self._bound(row))
        if isinstance(answer, (str, dict)):
            emit(*piece_of(answer))
            return
        try:
            for piece in iterated(answer):
                if type(piece) is str:
                    emit(piece)
                else:
                    emit(*piece_of(piece))
        finally:
            close = getattr(answer, "close", None)
            if close is not None:
                close()

    async def _generate_async(self, row: Row, emit: Any) -> None:
        answer = self._function(**self._bound(row))
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, (str, dict)):
            await emit(*piece_of(answer))
            return
        if not hasattr(answer, "__aiter__"):
            for piece in iterated(answer):
                await emit(*piece_of(piece))
            return
        try:
            async for piece in answer:
                if type(piece) is str:
                    await emit(piece)
                else:
                    await emit(*piece_of(piece))
        finally:
            close = getattr(answer, "aclose", None)
            if close is not None:
                await close()


def iterated(answer: Any) -> Any:
    """An answer that can be iterated, or an error that says what to return."""
    if not hasattr(answer, "__iter__"):
        raise AnswerError("the model returned %s; a model that generates yields or returns str"
                          % type(answer).__name__)
    return answer


def piece_of(piece: Any) -> "tuple[Optional[str], Optional[str]]":
    """Text and finish reason of a piece: a str, or a dict with the key "text"."""
    if isinstance(piece, str):
        return piece, None
    if isinstance(piece, dict) and ("text" in piece or "finish_reason" in piece):
        text, reason = piece.get("text"), piece.get("finish_reason")
        fits = isinstance(reason, str) or (reason is None and text is not None)
        if fits and (text is None or isinstance(text, str)):
            return text, reason
        raise AnswerError("the model yielded a dict whose \"text\" is %s and must be str"
                          % type(text).__name__)
    raise AnswerError("the model yielded %s; a model that generates yields str, or a dict with "
                      "the key \"text\"" % type(piece).__name__)


class Embedding(Model):
    """A method `embed` that turns texts into vectors."""

    task = "embed"

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function
        names = list(inspect.signature(function).parameters)
        if not names:
            raise LoadError("'embed' takes no texts; write: def embed(self, texts: list[str])")
        self._has_type = "input_type" in names
        skipped = names[:1] + ["input_type"] if self._has_type else names[:1]
        self._arguments = Arguments(function, skipped)
        self._optional_type = self._has_type and (
            inspect.signature(function).parameters["input_type"].default
            is not inspect.Parameter.empty)
        self.parameters = list(self._arguments.names)
        if self._has_type:
            self.parameters.append("input_type")
        self.any_parameter = self._arguments.any_parameter
        self.is_async = is_async(function)
        if self.is_async:
            self.answer = self._answer_async

    def learn_dimensions(self, declared: Optional[int]) -> None:
        """The length of the vectors: declared, or that of a first one."""
        if declared is not None:
            self.dimensions = int(declared)
            return
        answer = self._call(["a"], None, {})
        if inspect.isawaitable(answer):
            from ..loop import event_loop
            answer = event_loop().run_until_complete(answer)
        vectors = answer.tolist() if hasattr(answer, "tolist") else answer
        if not isinstance(vectors, (list, tuple)) or len(vectors) != 1:
            raise LoadError("embed([\"a\"]) must return a list with one vector")
        self.dimensions = len(vectors[0])

    def _call(self, texts: List[str], input_type: Optional[str], parameters: Dict[str, Any]) -> Any:
        bound = self._arguments.bind(parameters)
        if self._has_type and (input_type is not None or not self._optional_type):
            bound["input_type"] = input_type
        return self._function(texts, **bound)

    def _start(self, columns: Dict[str, Column], parameters: Dict[str, Any]) -> Any:
        texts = columns["text"].values()
        parameters = dict(parameters)
        input_type = parameters.pop("input_type", None) if self._has_type else None
        column = columns.get("input_type")
        if column is not None and self._has_type:
            types = set(column.values())
            if len(types) > 1:
                raise InvalidInput("the rows of a request must have the same 'input_type'")
            input_type = types.pop() if types else input_type
        return self._call(texts, input_type, parameters)

    def _finish(self, rows: int, answer: Any) -> List[Column]:
        field = Field("embedding", "fp32", (self.dimensions or 0,))
        if hasattr(answer, "astype"):
            answer = answer.astype("float32", copy=False)
        return [column_of(field, answer, rows)]

    def answer(self, rows: int, columns: Dict[str, Column],
               parameters: Dict[str, Any]) -> List[Column]:
        """The vectors of all rows."""
        return self._finish(rows, self._start(columns, parameters))

    async def _answer_async(self, rows: int, columns: Dict[str, Column],
                            parameters: Dict[str, Any]) -> List[Column]:
        answer = self._start(columns, parameters)
        return self._finish(rows, await answer if inspect.isawaitable(answer) else answer)


__all__ = ["Embedding", "Generation", "is_generation"]
