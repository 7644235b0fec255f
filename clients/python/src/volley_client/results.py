"""Answers: rows as Arrow, pandas or polars, and generated texts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence

import pyarrow as pa

from .errors import VolleyError, of_code


class Rows:
    """The answer to rows: one row for each row of the request, in the same order."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, column: str) -> pa.ChunkedArray:
        return self._table.column(column)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"Rows({len(self)} rows: {', '.join(self.columns)})"

    @property
    def columns(self) -> List[str]:
        """The names of the columns."""
        return list(self._table.column_names)

    def to_arrow(self) -> pa.Table:
        """Returns the rows as a `pyarrow.Table`, without a copy."""
        return self._table

    def to_pandas(self) -> Any:
        """Returns the rows as a `pandas.DataFrame`."""
        return self._table.to_pandas()

    def to_polars(self) -> Any:
        """Returns the rows as a `polars.DataFrame`."""
        import polars

        return polars.from_arrow(self._table)

    def to_pylist(self) -> List[Dict[str, Any]]:
        """Returns the rows as dicts."""
        rows: List[Dict[str, Any]] = self._table.to_pylist()
        return rows


@dataclass(frozen=True)
class Chunk:
    """A part of a generated answer.

    Attributes:
        item: Index of the prompt in the request, from 0.
        choice: Index of the answer to that prompt, from 0.
        text, thinking: New text, and new text of the reasoning.
        tool_calls: Deltas of tool calls in OpenAI's form.
        citations: Sources of the text.
        logprob: Natural logarithm of the probability of the tokens, if requested.
        finish_reason: On the last chunk of a choice: ``"stop"``, ``"length"``, ``"tool_calls"``,
            ``"content_filter"`` or ``"error"``.
        prompt_tokens, completion_tokens: On the last chunk of the stream, the sum over all
            items, if known; a chunk with `prompt_tokens` alone is no usage.
        error_code, error_message: Why this item failed while others continue.
        last: Whether this is the last chunk of the stream.
        event_id: The id of the event in a resumable stream.
    """

    item: int = 0
    choice: int = 0
    text: str = ""
    thinking: str = ""
    tool_calls: Sequence[Dict[str, Any]] = ()
    citations: Sequence[Dict[str, Any]] = ()
    logprob: Optional[float] = None
    finish_reason: Optional[str] = None
    prompt_tokens: Optional[int] = None
    completion_tokens: Optional[int] = None
    error_code: Optional[str] = None
    error_message: Optional[str] = None
    last: bool = False
    event_id: Optional[str] = None


@dataclass
class Choice:
    """One complete answer to a prompt."""

    text: str = ""
    thinking: str = ""
    tool_calls: List[Dict[str, Any]] = field(default_factory=list)
    citations: List[Dict[str, Any]] = field(default_factory=list)
    finish_reason: Optional[str] = None
    error: Optional[VolleyError] = None

    def add(self, chunk: Chunk) -> None:
        """Appends a chunk of this choice."""
        self.text += chunk.text
        self.thinking += chunk.thinking
        self.citations.extend(chunk.citations)
        for delta in chunk.tool_calls:
            _merge_call(self.tool_calls, delta)
        if chunk.error_code is not None:
            self.error = of_code(chunk.error_code, chunk.error_message or "the item failed")
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason


@dataclass
class Generation:
    """The complete answers to one prompt.

    Attributes:
        choices: The answers; several if the parameter `n` asks for them.
        prompt_tokens, completion_tokens: Tokens of the prompt and of all answers, if known.
    """

    choices: List[Choice]
    prompt_tokens: Optional[int] = None
    completion_tokens: Optional[int] = None

    @property
    def text(self) -> str:
        """The text of the first answer."""
        return self.choices[0].text

    @property
    def thinking(self) -> str:
        """The reasoning of the first answer."""
        return self.choices[0].thinking

    @property
    def tool_calls(self) -> List[Dict[str, Any]]:
        """The tool calls of the first answer, each with ``id``, ``name`` and ``arguments``."""
        return self.choices[0].tool_calls

    @property
    def finish_reason(self) -> Optional[str]:
        """Why the first answer ended."""
        return self.choices[0].finish_reason


class Assembler:
    """Joins the chunks of a stream into the answers of each item."""

    def __init__(self) -> None:
        self._items: Dict[int, Dict[int, Choice]] = {}
        self._prompt_tokens: Optional[int] = None
        self._completion_tokens: Optional[int] = None
        self.is_complete = False

    def add(self, chunk: Chunk) -> None:
        """Adds the next chunk of the stream."""
        choice = self._items.setdefault(chunk.item, {}).setdefault(chunk.choice, Choice())
        choice.add(chunk)
        if chunk.completion_tokens is not None:
            # Other rows have the tokens of the prompt alone, which these count again.
            self._completion_tokens = (self._completion_tokens or 0) + chunk.completion_tokens
            self._prompt_tokens = (self._prompt_tokens or 0) + (chunk.prompt_tokens or 0)
        self.is_complete = self.is_complete or chunk.last

    def ended(self, item: int) -> bool:
        """Returns whether an item has an answer, and every answer of it has its end."""
        choices = self._items.get(item, {})
        return bool(choices) and all(it.finish_reason is not None for it in choices.values())

    def generation(self, item: int) -> Generation:
        """Returns the answers of an item.

        Raises:
            VolleyError: The item failed.
        """
        choices = self._items.get(item, {})
        generation = Generation(
            [choices[index] for index in sorted(choices)] or [Choice()],
            self._prompt_tokens,
            self._completion_tokens,
        )
        for choice in generation.choices:
            if choice.error is not None:
                raise choice.error
        return generation

    def first(self, item: int) -> Choice:
        """Returns the first answer of an item."""
        return self._items.get(item, {}).get(0, Choice())


GENERATED = pa.schema(
    [
        pa.field("text", pa.string()),
        pa.field("thinking", pa.string()),
        pa.field("tool_calls", pa.string()),
        pa.field("finish_reason", pa.string()),
        pa.field("error_code", pa.string()),
        pa.field("error_message", pa.string()),
    ]
)
"""The columns of generations of many rows."""


def generated(choices: Sequence[Choice]) -> pa.RecordBatch:
    """Returns the answers as rows of `GENERATED`."""
    rows = [
        {
            "text": choice.text,
            "thinking": choice.thinking or None,
            "tool_calls": json.dumps(choice.tool_calls) if choice.tool_calls else None,
            "finish_reason": choice.finish_reason,
            "error_code": None if choice.error is None else choice.error.code,
            "error_message": None if choice.error is None else choice.error.message,
        }
        for choice in choices
    ]
    return pa.RecordBatch.from_pylist(rows, schema=GENERATED)


def _merge_call(calls: List[Dict[str, Any]], delta: Dict[str, Any]) -> None:
    """Adds a delta of a tool call in OpenAI's form to the calls that it belongs to."""
    index = delta.get("index", len(calls))
    while len(calls) <= index:
        calls.append({"id": None, "name": None, "arguments": ""})
    call, function = calls[index], delta.get("function") or {}
    call["id"] = delta.get("id") or call["id"]
    call["name"] = function.get("name") or call["name"]
    call["arguments"] += function.get("arguments") or ""
