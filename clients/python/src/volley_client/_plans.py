"""What a call over many rows sends: pure, and the same for both clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    TypedDict,
    Union,
)

import pyarrow as pa

from . import _inputs
from ._inputs import Data
from ._progress import Progress
from .settings import Call, Deadline, Parameter

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

    Message: TypeAlias = Mapping[str, Any]
    Prompt: TypeAlias = Union[str, Sequence[Message]]

BATCH_SIZE = 1024
"""Rows of an exchange. A text encoder answers larger batches in parts of this size."""
GENERATIONS = 32
"""Prompts of an exchange."""
CONCURRENCY = 4
"""Exchanges of one call at a time."""

MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


class RowOptions(TypedDict, total=False):
    """Options of calls over many rows.

    Attributes:
        column: The column with the texts; needed if there are several and none has the model's name.
        keep: The columns of the request that the result has too, or ``True`` for all.
        batch_size: Most rows of one exchange.
        concurrency: Exchanges at a time.
        progress: ``True`` for a progress bar, or a function that gets numbers of answered rows.
        parameters: Parameters of the model.
        timeout: Seconds until the whole call must be complete.
        transport: ``"flight"`` or ``"rest"``; default Flight if the client has a Flight URL.
        session: Requests of one session go to the same replica while they can.
    """

    column: Optional[str]
    keep: Union[bool, Sequence[str]]
    batch_size: int
    concurrency: int
    progress: Progress
    parameters: Optional[Mapping[str, Parameter]]
    timeout: Optional[float]
    transport: Optional[str]
    session: Optional[str]


@dataclass
class Unit:
    """The rows of one exchange."""

    sent: pa.RecordBatch
    kept: Optional[pa.RecordBatch]

    def answered(self, answer: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the kept columns and the answer, side by side."""
        if self.kept is None:
            return answer
        twice = sorted(set(self.kept.schema.names) & set(answer.schema.names))
        if twice:
            raise ValueError(
                f"the answer has a column '{twice[0]}' too; rename the one that is kept"
            )
        fields = list(self.kept.schema) + list(answer.schema)
        columns = list(self.kept.columns) + list(answer.columns)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


@dataclass
class Plan:
    """A call over many rows."""

    call: Call
    units: Iterator[Unit]
    generates: bool
    total: Optional[int]
    concurrency: int
    progress: Progress
    transport: Optional[str]

    def first_or(self, empty: Optional[pa.RecordBatch]) -> Plan:
        """Sends one exchange without rows if there are none, for the columns of the answer."""
        first = next(self.units, None)
        if first is None:
            if empty is None:
                raise ValueError("there are no rows and no columns; give a table with its columns")
            first = Unit(empty, None)
        self.units = chain([first], self.units)
        return self


Pick = Callable[[pa.RecordBatch], Dict[str, pa.Array]]


def plan(
    model: str,
    data: Data,
    pick: Pick,
    empty: Optional[Dict[str, pa.DataType]],
    only: str,
    options: RowOptions,
    *,
    generates: bool = False,
) -> Plan:
    """Plans a call.

    Args:
        model: The name, or `name:version`.
        data: Rows of any accepted kind.
        pick: The columns to send of a batch.
        empty: The columns to send if there are no rows.
        only: The name of the only column of data without names.
        options: Options of the caller.
        generates: Whether the model generates texts.
    """
    known = set(RowOptions.__annotations__)
    unknown = sorted(set(options) - known)
    if unknown:
        raise TypeError(f"there is no option '{unknown[0]}'; known are {sorted(known)}")
    size = options.get("batch_size", GENERATIONS if generates else BATCH_SIZE)
    concurrency = options.get("concurrency", CONCURRENCY)
    if concurrency < 1:
        raise ValueError("'concurrency' must be at least 1")
    keep = options.get("keep", False)
    if isinstance(keep, str):
        raise ValueError("'keep' must be a list of columns, or True")
    call = Call(
        model,
        dict(options.get("parameters") or {}),
        Deadline(options.get("timeout")),
        options.get("session"),
    )

    def units() -> Iterator[Unit]:
        for batch in _inputs.batches(data, only, size):
            sent = pa.RecordBatch.from_pydict(pick(batch))
            yield Unit(sent, _kept(batch, keep))

    planned = Plan(
        call,
        units(),
        generates,
        _inputs.count(data),
        concurrency,
        options.get("progress", False),
        options.get("transport"),
    )
    nothing = None
    if empty is not None:
        nothing = _inputs.no_rows(pa.schema(list(empty.items())))
    return planned.first_or(nothing)


def _kept(batch: pa.RecordBatch, keep: Union[bool, Sequence[str]]) -> Optional[pa.RecordBatch]:
    if keep is False:
        return None
    if keep is True:
        return batch
    missing = [name for name in keep if name not in batch.schema.names]
    if missing:
        raise ValueError(f"'keep' names the column '{missing[0]}', but there is none")
    return batch.select(list(keep))


def embed(model: str, data: Data, input_type: Optional[str], options: RowOptions) -> Plan:
    """Plans embeddings of texts."""
    column = options.get("column")
    more = {} if input_type is None else {"input_type": input_type}

    def pick(batch: pa.RecordBatch) -> Dict[str, pa.Array]:
        texts = _inputs.only_column(batch, column, "text")
        return {"text": texts, **_inputs.constants(batch, more)}

    return plan(model, data, pick, {"text": pa.string()}, "text", options)


def texts(model: str, data: Data, options: RowOptions) -> Plan:
    """Plans a task of one text per row: `classify`, `classify_tokens`, `encode_sparse`."""
    return embed(model, data, None, options)


def rerank(model: str, query: Optional[str], data: Data, options: RowOptions) -> Plan:
    """Plans scores of texts for one query, or for the query of each row."""
    column = options.get("column")

    def pick(batch: pa.RecordBatch) -> Dict[str, pa.Array]:
        found = _inputs.only_column(batch, column, "text")
        if query is None:
            return {"query": _inputs.only_column(batch, "query", "query"), "text": found}
        return {**_inputs.constants(batch, {"query": query}), "text": found}

    empty = {"query": pa.string(), "text": pa.string()}
    return plan(model, data, pick, empty, "text", options)


def predict(model: str, data: Data, options: RowOptions) -> Plan:
    """Plans a prediction on all columns that are not merely kept."""
    column, keep = options.get("column"), options.get("keep", False)
    kept = set() if isinstance(keep, bool) else set(keep)

    def pick(batch: pa.RecordBatch) -> Dict[str, pa.Array]:
        names = [column] if column is not None else batch.schema.names
        missing = [name for name in names if name not in batch.schema.names]
        if missing:
            raise ValueError(f"the rows have no column '{missing[0]}', but {batch.schema.names}")
        return {name: batch.column(name) for name in names if name not in kept or column == name}

    only = column or "input"
    return plan(model, data, pick, None, only, options)


def generate(model: str, data: Data, options: RowOptions) -> Plan:
    """Plans one generation for each row."""
    parameters = options.get("parameters") or {}
    if parameters.get("n") not in (None, 1):
        raise ValueError("generations of rows have one answer each; parameter 'n' must be 1")
    column = options.get("column")

    def pick(batch: pa.RecordBatch) -> Dict[str, pa.Array]:
        wanted = "messages" if "messages" in batch.schema.names else "prompt"
        found = _inputs.only_column(batch, column, wanted)
        if pa.types.is_list(found.type):
            return {"messages": found.cast(MESSAGES)}
        return {"prompt": found}

    return plan(model, data, pick, {"prompt": pa.string()}, "prompt", options, generates=True)


def function(name: str, arguments: Sequence[Any], timeout: Optional[float]) -> Plan:
    """Plans the call of a model as a function of one array per argument."""
    columns = {f"arg{place}": _inputs.array(it) for place, it in enumerate(arguments, 1)}
    options: RowOptions = {"timeout": timeout, "transport": "flight"}
    table = pa.table(columns)
    planned = plan(name, table, lambda batch: dict(zip(columns, batch.columns)), None, "", options)
    return replace(planned, call=replace(planned.call, function=True))


def prompts(prompt: Prompt) -> pa.RecordBatch:
    """Returns one prompt, a text or the messages of a chat, as a row."""
    if isinstance(prompt, str):
        return pa.record_batch({"prompt": pa.array([prompt], pa.string())})
    messages: List[Dict[str, Any]] = []
    for message in prompt:
        if set(message) != {"role", "content"}:
            raise ValueError("each message must have the fields 'role' and 'content'")
        messages.append(dict(message))
    return pa.record_batch({"messages": pa.array([messages], MESSAGES)})


def ranked(scores: pa.Table, top_n: Optional[int]) -> pa.Table:
    """Returns the rows with their index, the best score first, at most `top_n`."""
    if top_n is not None and top_n < 1:
        raise ValueError("'top_n' must be at least 1")
    indexed = scores.add_column(0, "index", pa.array(range(scores.num_rows), pa.int64()))
    best = indexed.sort_by([("score", "descending"), ("index", "ascending")])
    return best if top_n is None else best.slice(0, top_n)
