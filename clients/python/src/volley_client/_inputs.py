"""Rows of every accepted kind, as record batches of bounded size.

Accepted are Arrow tables, batches, readers, arrays and datasets' scanners; pandas and polars frames
and series; whatever has `__arrow_c_stream__`; a dict of columns, NumPy arrays among them; and any
iterable of values, of dicts, or of record batches, which is read only as far as needed.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Union

import pyarrow as pa

Data = Any
"""Rows: see the documentation of this module."""

MAX_BATCH_BYTES = 8 << 20
"""A batch is split above this size, as half of a message of Flight may have."""

_UNCOUNTED = (pa.RecordBatchReader,)


def count(data: Data) -> Optional[int]:
    """Returns the number of rows if it is known without reading them."""
    if isinstance(data, Mapping):
        for values in data.values():
            return count(values)
        return None
    if isinstance(data, _UNCOUNTED):
        return None
    if isinstance(data, (pa.Table, pa.RecordBatch)):
        return int(data.num_rows)
    if isinstance(data, Sequence) and data and isinstance(data[0], (pa.Table, pa.RecordBatch)):
        return sum(int(part.num_rows) for part in data)
    try:
        return len(data)
    except TypeError:
        return None


def batches(data: Data, column: str, size: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows of `data` in batches of at most `size` rows and `MAX_BATCH_BYTES`.

    Args:
        data: Rows of any accepted kind.
        column: The name of the only column of data without column names.
        size: Most rows of a batch.

    Raises:
        TypeError: `data` is of no accepted kind.
    """
    if size < 1:
        raise ValueError("'batch_size' must be at least 1")
    for whole in _regrouped(_parts(data, column, size), size):
        yield from _bounded(whole)


def _regrouped(parts: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Splits and joins batches so that all but the last have `size` rows."""
    held: List[pa.RecordBatch] = []
    rows, any_rows = 0, False
    empty: Optional[pa.RecordBatch] = None
    for part in parts:
        empty = part.slice(0, 0) if empty is None else empty
        at = 0
        while at < part.num_rows:
            piece = part.slice(at, size - rows)
            held.append(piece)
            rows += piece.num_rows
            at += piece.num_rows
            if rows == size:
                yield joined(held)
                held, rows, any_rows = [], 0, True
    if held:
        yield joined(held)
    elif empty is not None and not any_rows:
        # The columns matter although there are no rows.
        yield empty


def joined(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Returns the rows of at least one batch as one batch."""
    if len(parts) == 1:
        return parts[0]
    found = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return found[0] if found else parts[0]


def _bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows < 2 or batch.nbytes <= MAX_BATCH_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _bounded(batch.slice(0, half))
    yield from _bounded(batch.slice(half))


def _parts(data: Data, column: str, size: int) -> Iterator[pa.RecordBatch]:
    """Yields batches of any size, with plain types."""
    return (_plain(batch) for batch in _raw(data, column, size))


def _raw(data: Data, column: str, size: int) -> Iterator[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        return iter([data])
    if isinstance(data, pa.Table):
        return _table(data)
    if isinstance(data, pa.RecordBatchReader):
        return iter(data)
    if isinstance(data, (pa.Array, pa.ChunkedArray)):
        return _table(pa.table({column: data}))
    module = type(data).__module__.partition(".")[0]
    if module == "polars":
        return _polars(data, column)
    if module == "pandas":
        return _pandas(data, column)
    if module == "numpy":
        return iter([pa.record_batch({column: array(data)})])
    if hasattr(data, "__arrow_c_stream__"):
        return iter(pa.RecordBatchReader.from_stream(data))
    if hasattr(data, "to_batches"):
        return iter(data.to_batches())
    if isinstance(data, Mapping):
        return _columns(data)
    if isinstance(data, (str, bytes)):
        raise TypeError("rows must be a list or a table; put the only value into a list")
    if isinstance(data, Iterable):
        return _iterable(data, column, size)
    raise TypeError(
        f"rows of the type '{type(data).__name__}' are not supported; use an Arrow, pandas or "
        "polars table, a dict of columns, or an iterable"
    )


def _columns(data: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    columns = {name: array(values) for name, values in data.items()}
    return _table(pa.table(columns))


def _table(table: pa.Table) -> Iterator[pa.RecordBatch]:
    return iter(table.to_batches() or [no_rows(table.schema)])


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Returns a batch without rows."""
    columns = [
        pa.ExtensionArray.from_storage(kind, pa.array([], kind.storage_type))
        if isinstance(kind, pa.BaseExtensionType)
        else pa.array([], kind)
        for kind in schema.types
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def array(values: Any) -> Union[pa.Array, pa.ChunkedArray]:
    """Converts one column: a NumPy array of several dimensions is one tensor per row."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    if type(values).__module__.partition(".")[0] == "polars":
        return values.to_arrow()
    if type(values).__module__.partition(".")[0] != "numpy" or values.ndim < 2:
        return pa.array(values)
    import numpy

    width = int(numpy.prod(values.shape[1:]))
    flat = pa.array(numpy.ascontiguousarray(values).reshape(-1))
    lists = pa.FixedSizeListArray.from_arrays(flat, width)
    if values.ndim == 2:
        return lists
    kind = pa.fixed_shape_tensor(flat.type, values.shape[1:])
    return pa.ExtensionArray.from_storage(kind, lists)


def _polars(data: Any, column: str) -> Iterator[pa.RecordBatch]:
    import polars

    if isinstance(data, polars.LazyFrame):
        raise TypeError("a polars LazyFrame has no rows yet; call collect() first")
    if isinstance(data, polars.Series):
        return _table(pa.table({column: data.to_arrow()}))
    if isinstance(data, polars.DataFrame):
        return _table(data.to_arrow())
    raise TypeError(f"rows of the polars type '{type(data).__name__}' are not supported")


def _pandas(data: Any, column: str) -> Iterator[pa.RecordBatch]:
    import pandas

    if isinstance(data, pandas.Series):
        data = data.to_frame(name=column)
    if isinstance(data, pandas.DataFrame):
        # The index is no column of a model; rows keep their order.
        return _table(pa.Table.from_pandas(data, preserve_index=False))
    raise TypeError(f"rows of the pandas type '{type(data).__name__}' are not supported")


def _iterable(data: Iterable[Any], column: str, size: int) -> Iterator[pa.RecordBatch]:
    items = iter(data)
    for first in items:
        every = chain([first], items)
        if isinstance(first, (pa.RecordBatch, pa.Table)):
            for part in every:
                yield from _raw(part, column, size)
        elif type(first).__module__.partition(".")[0] in ("pandas", "polars") or isinstance(
            first, (pa.Array, pa.ChunkedArray)
        ):
            for part in every:
                yield from _raw(part, column, size)
        elif isinstance(first, Mapping):
            yield from _dicts(every, size)
        else:
            yield from _values(every, column, size)
        return


def _dicts(rows: Iterator[Mapping[str, Any]], size: int) -> Iterator[pa.RecordBatch]:
    schema: Optional[pa.Schema] = None
    while True:
        taken = list(islice(rows, size))
        if not taken:
            return
        names = list(taken[0]) if schema is None else schema.names
        for row in taken:
            if set(row) != set(names):
                raise ValueError(f"every row must have the columns {names}; one has {list(row)}")
        batch = pa.RecordBatch.from_pylist([dict(row) for row in taken], schema=schema)
        schema = batch.schema if schema is None else schema
        yield batch


def _values(values: Iterator[Any], column: str, size: int) -> Iterator[pa.RecordBatch]:
    kind: Optional[pa.DataType] = None
    while True:
        taken = list(islice(values, size))
        if not taken:
            return
        found = pa.array(taken, type=kind)
        kind = found.type if kind is None else kind
        yield pa.RecordBatch.from_arrays([found], names=[column])


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Casts the large and view types, which nodes do not accept everywhere, to the plain ones."""
    fields = [field.with_type(plain_type(field.type)) for field in batch.schema]
    schema = pa.schema(fields)
    if schema.types == batch.schema.types:
        return batch.replace_schema_metadata(None)
    columns = [
        values if values.type == field.type else values.cast(field.type)
        for values, field in zip(batch.columns, fields)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type with 32-bit offsets that a large or view type has the values of."""
    if pa.types.is_large_string(kind) or _is(kind, "is_string_view"):
        return pa.string()
    if pa.types.is_large_binary(kind) or _is(kind, "is_binary_view"):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    return kind


def _is(kind: pa.DataType, name: str) -> bool:
    test = getattr(pa.types, name, None)
    return test is not None and bool(test(kind))


def only_column(batch: pa.RecordBatch, column: Optional[str], wanted: str) -> pa.Array:
    """Returns the column that holds the texts of a batch.

    Args:
        batch: The rows.
        column: The name that the caller gave.
        wanted: The name that the model's column has.

    Raises:
        ValueError: There is no such column, or several and none was named.
    """
    names = batch.schema.names
    name = column or (wanted if wanted in names else names[0] if len(names) == 1 else None)
    if name is None:
        raise ValueError(
            f"the rows have the columns {names}; name the one with the texts: column='{names[0]}'"
        )
    if names.count(name) != 1:
        raise ValueError(f"the rows have no single column '{name}', but {names}")
    return batch.column(name)


def constants(batch: pa.RecordBatch, values: Mapping[str, str]) -> Dict[str, pa.Array]:
    """Returns columns with the same text in each row of `batch`."""
    return {name: pa.array([value] * batch.num_rows, pa.string()) for name, value in values.items()}
