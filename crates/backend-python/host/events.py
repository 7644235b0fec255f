"""Events: the answer of a model that streams columns.

An event has at least one row of the columns that the model declares. It takes credit for its rows
and its bytes, so that neither many small events nor a few large ones fill the worker's memory.
Small events of one call that are not sent yet travel in one message "rows" (`outbox.Events`).
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from .answers import column_of
from .hints import members
from .interfaces.base import AnswerError
from .wire import NUMPY, TEXTS, Column, Field, Texts

#: Bytes of an event that take as much credit as a row.
CREDIT_BYTES = 64 << 10
#: Credit that one event takes at most: half of what the worker grants.
MOST_CREDIT = 128
#: Bytes of one event.
LONGEST_EVENT = 64 << 20


class Event:
    """The columns of an event, in memory that the model does not write to."""

    __slots__ = ("columns", "rows", "size", "cost")

    def __init__(self, columns: List[Column]) -> None:
        if not columns:
            raise AnswerError("the model streamed an event without columns")
        self.columns = columns
        self.rows = columns[0].rows
        self.size = 0
        for column in columns:
            if column.rows != self.rows:
                raise _wrong_rows(columns)
            self.size += column.size()
            if not isinstance(column, Texts):
                column.buffers = [buffer if isinstance(buffer, bytes) else bytes(buffer)
                                  for buffer in column.buffers]
        if self.rows == 0:
            raise AnswerError(
                "the model streamed an event without rows; an event has at least one row")
        if self.size > LONGEST_EVENT:
            raise AnswerError("the model streamed an event over 64 MiB; stream smaller ones")
        #: The credit that it takes.
        self.cost = max(1, min(MOST_CREDIT, max(self.rows, self.size // CREDIT_BYTES)))


def _wrong_rows(columns: Sequence[Column]) -> AnswerError:
    counts = ", ".join("%s %d" % (column.name, column.rows) for column in columns)
    return AnswerError("the columns of an event have different numbers of rows: " + counts)


def check_names(names: Sequence[str], found: Sequence[str]) -> None:
    """Raises for an event that has other columns than the first one, or than those declared."""
    missing = [name for name in names if name not in found]
    added = [str(name)[:64] for name in found if name not in names]
    if not missing and not added:
        return
    parts = []
    if missing:
        parts.append("missing: " + ", ".join(missing))
    if added:
        parts.append("added: " + ", ".join(added))
    raise AnswerError("the columns of an event differ from those of the model (%s); %s"
                      % (", ".join(names), "; ".join(parts)))


def columns_of(fields: Sequence[Field], event: Any) -> List[Column]:
    """The columns of an event: an Arrow batch, an object with a member for each column, or the
    value of the only column "output". A member is one value, or a list or array of rows."""
    if type(event).__name__ == "RecordBatch":
        from . import arrow
        check_names([field.name for field in fields], event.schema.names)
        return arrow.columns_of(fields, event)
    names = [field.name for field in fields]
    is_one = names == ["output"] and not (isinstance(event, dict) and "output" in event)
    found: Dict[str, Any] = {"output": event} if is_one else members(event, names)
    check_names(names, list(found))
    return [member_column(field, found[field.name]) for field in fields]


def member_column(field: Field, value: Any) -> Column:
    """The column of one member of an event."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu().numpy()
    if depth_of(field, value) <= len(field.shape):
        return column_of(field, [value], 1)
    return column_of(field, value, len(value))


def depth_of(field: Field, value: Any) -> int:
    """The dimensions of a value. JSON has none: a list is one value."""
    if field.type == "json":
        return 0
    if field.type in NUMPY and hasattr(value, "ndim"):
        return int(value.ndim)
    if field.type in TEXTS and hasattr(value, "tolist"):
        return int(getattr(value, "ndim", 0))
    depth = 0
    while isinstance(value, (list, tuple)):
        depth += 1
        if not value:
            break
        value = value[0]
    return depth
