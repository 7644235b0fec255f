"""Columns of calls as tensors of requests, and tensors of responses as columns."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy

from ..interfaces.base import AnswerError
from ..wire import NUMPY, TEXTS, Column, product
from .config import Port
from .values import Tensor


def cut(columns: Dict[str, Column], rows: int, most: int) -> List[Tuple[int, int]]:
    """The rows of each request of a call: `most` at a time, all of one shape."""
    uneven = [column for column in columns.values()
              if column.dims is not None or column.valid is not None]
    if not uneven:
        return [(start, min(start + most, rows)) for start in range(0, rows, most)]
    keys = [[(column.row_shape(row), column.is_null(row)) for column in uneven]
            for row in range(rows)]
    found, start = [], 0
    for row in range(1, rows + 1):
        if row == rows or row - start == most or keys[row] != keys[start]:
            found.append((start, row))
            start = row
    return found


def inputs_of(ports: Sequence[Port], columns: Dict[str, Column], start: int, stop: int,
              is_batched: bool) -> List[Tensor]:
    """The tensors of the rows from `start` up to `stop`; without a batch it is one row."""
    tensors = []
    for port in ports:
        column = columns.get(port.field.name)
        if column is None or column.is_null(start):
            # An optional input that the request does not have.
            continue
        values = column.slice(start, stop).array()
        if values.dtype.name != NUMPY.get(port.field.type, "object"):
            values = values.astype(NUMPY[port.field.type])
        shape = values.shape[1:] if port.inner is None else port.inner
        shape = ((stop - start,) if is_batched else ()) + tuple(shape)
        tensors.append(Tensor(port.field.name, values.reshape(shape)))
    return tensors


def outputs_of(ports: Sequence[Port], tensors: Sequence[Tensor], rows: Optional[int],
               is_batched: bool) -> List[Any]:
    """The arrays of a response, each with a first dimension of `rows`; without `rows` there may be
    any number of them in a batch."""
    found = {tensor.name(): tensor.as_numpy() for tensor in tensors}
    known = [port.field.name for port in ports]
    for name in found:
        if name not in known:
            raise AnswerError("the model's response has the output '%s', which config.pbtxt does "
                              "not declare" % name[:64])
    return [_output(port, found, rows, is_batched) for port in ports]


def _output(port: Port, found: Dict[str, Any], rows: Optional[int], is_batched: bool) -> Any:
    field = port.field
    if field.name not in found:
        raise AnswerError("the model's response has no output '%s'; it has %s"
                          % (field.name, ", ".join(found) or "none"))
    values = _typed(port, found[field.name])
    is_open = -1 in field.shape
    if rows is None:
        size = 0 if is_open else product(field.shape)
        rows = 1 if not is_batched else values.size // size if size else len(values.shape[:1])
        if is_batched and values.ndim == 1 + len(field.shape):
            rows = values.shape[0]
    shape = values.shape if is_batched else (1,) + values.shape
    wanted = (rows,) + field.shape
    fits = len(shape) == len(wanted) and all(
        length in (-1, given) for given, length in zip(shape, wanted))
    if fits:
        return values.reshape(shape)
    if not is_open and values.size == product(wanted):
        # Triton does not check shapes, so models may return [rows] for [rows, 1].
        return values.reshape(wanted)
    raise AnswerError("the output '%s' of the model has the shape %s and config.pbtxt declares %s"
                      % (field.name, list(values.shape), list(wanted if is_batched else
                                                              wanted[1:])))


def _typed(port: Port, values: Any) -> Any:
    """The array with the declared type."""
    field = port.field
    is_text = values.dtype.kind in "OSU"
    if is_text or field.type in TEXTS:
        if is_text != (field.type in TEXTS):
            raise _wrong_type(port, values)
        return values
    wanted = numpy.dtype(NUMPY[field.type]).newbyteorder("<")
    is_precise = numpy.can_cast(values.dtype, wanted, "safe")
    # numpy computes in float64 by default, so float64 for float32 is common.
    is_float = values.dtype.kind == "f" and wanted.kind == "f"
    if not (is_precise or is_float):
        raise _wrong_type(port, values)
    return numpy.ascontiguousarray(values, dtype=wanted).reshape(values.shape)


def _wrong_type(port: Port, values: Any) -> AnswerError:
    return AnswerError("the output '%s' of the model has the type %s and config.pbtxt declares %s"
                       % (port.field.name, values.dtype, port.field.type))


def column_of(port: Port, arrays: Sequence[Any]) -> Column:
    """The column of an output from its parts, each with a first dimension of rows."""
    field = port.field
    rows = sum(part.shape[0] for part in arrays)
    dims = None
    if -1 in field.shape:
        lengths = array("q")
        for part in arrays:
            lengths.extend(list(part.shape[1:]) * part.shape[0])
        dims = memoryview(lengths).cast("B")
    if field.type in TEXTS:
        texts = [_bytes(value) for part in arrays for value in part.ravel().tolist()]
        offsets = array("q", accumulate(map(len, texts), initial=0))
        buffers = [memoryview(offsets).cast("B"), b"".join(texts)]
    else:
        flat = [numpy.ascontiguousarray(part).reshape(-1) for part in arrays]
        whole = flat[0] if len(flat) == 1 else numpy.concatenate(flat)
        buffers = [memoryview(whole.view("uint8")) if whole.size else b""]
    return Column(field.name, field.type, field.shape, rows, buffers, None, dims)


def _bytes(value: Any) -> bytes:
    """An element of a text tensor, as Triton encodes it."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


def copied(columns: Sequence[Column]) -> List[Column]:
    """The columns in memory of their own."""
    return [Column(one.name, one.type, one.shape, one.rows,
                   [bytes(buffer) for buffer in one.buffers], one.valid, one.dims)
            for one in columns]
