"""Values of models as columns: checked against what the model declares."""

from __future__ import annotations

import json
import struct
from array import array
from functools import lru_cache
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .context import InvalidInput
from .hints import members
from .interfaces.base import AnswerError
from .wire import FORMATS, NUMPY, TEXTS, Column, Field, text_column


def input_values(field: Field, columns: Dict[str, Column], rows: int) -> List[Any]:
    """One Python value per row of an input."""
    column = columns.get(field.name)
    if column is None:
        return _missing(field, rows)
    try:
        return column.values(read_json=field.type == "json")
    except ValueError as error:
        raise InvalidInput("input column '%s' has a text that is not JSON" % field.name) from error


def input_array(field: Field, columns: Dict[str, Column], rows: int) -> Any:
    """A numpy array of an input; texts and values with nulls are objects."""
    import numpy
    column = columns.get(field.name)
    if column is not None and column.valid is None and field.type in NUMPY:
        values = column.array()
        return values if column.type == field.type else values.astype(NUMPY[field.type])
    values = numpy.empty(rows, dtype=object)
    values[:] = input_values(field, columns, rows)
    return values


def _missing(field: Field, rows: int) -> List[Any]:
    if not field.nullable:
        raise InvalidInput("the model needs the input column '%s'" % field.name)
    return [None] * rows


def output_columns(fields: Sequence[Field], answer: Any, rows: int) -> List[Column]:
    """The columns of an answer with whole columns: one for the only output, or named ones."""
    names = [field.name for field in fields]
    is_one = names == ["output"] and not isinstance(answer, dict)
    found = {"output": answer} if is_one else members(answer, names)
    check_names(names, found)
    return [column_of(field, found[field.name], rows) for field in fields]


def check_names(names: Sequence[str], found: Dict[str, Any]) -> None:
    """Raises when an answer has other names than those declared."""
    for name in names:
        if name not in found:
            raise AnswerError("the model's answer has no output '%s'; it has %s"
                              % (name, ", ".join(map(str, found)) or "none"))
    for name in found:
        if name not in names:
            raise AnswerError("the model's answer has the output '%s', which it does not declare"
                              % str(name)[:64])


def column_of(field: Field, answer: Any, rows: int) -> Column:
    """A column of an answer with all rows: a list, a tuple or an array."""
    if type(answer) is list and len(answer) == rows:
        return of_values(field, answer)
    if hasattr(answer, "detach") and hasattr(answer, "cpu"):
        answer = answer.detach().cpu().numpy()
    if hasattr(answer, "__array_interface__") and hasattr(answer, "dtype"):
        if field.type in NUMPY and answer.dtype.kind != "O":
            return _of_array(field, answer, rows)
        answer = answer.tolist()
    if isinstance(answer, array):
        answer = answer.tolist()
    if not isinstance(answer, (list, tuple)):
        raise AnswerError("output column '%s' is %s and must be a list or an array with %d values"
                          % (field.name, type(answer).__name__, rows))
    if len(answer) != rows:
        raise _wrong_rows(field, len(answer), rows)
    return of_values(field, answer)


def _wrong_rows(field: Field, found: int, rows: int) -> AnswerError:
    return AnswerError("output column '%s' of the model has %d rows and the request has %d"
                       % (field.name, found, rows))


@lru_cache(maxsize=None)
def _dtype(type: str) -> Any:
    """The numpy type of a type of fixed width, little endian."""
    import numpy
    return numpy.dtype(NUMPY[type]).newbyteorder("<")


def _of_array(field: Field, answer: Any, rows: int) -> Column:
    import numpy
    wanted = _dtype(field.type)
    if answer.dtype != wanted and not numpy.can_cast(answer.dtype, wanted, "safe"):
        raise AnswerError("output column '%s' of the model has the type %s and declares %s"
                          % (field.name, answer.dtype.name, field.type))
    if answer.ndim == 0 or answer.shape[0] != rows:
        raise _wrong_rows(field, answer.shape[0] if answer.ndim else 0, rows)
    if tuple(answer.shape[1:]) != field.shape:
        raise _wrong_shape(field, answer.shape[1:])
    flat = numpy.ascontiguousarray(answer, dtype=wanted)
    data = memoryview(flat.reshape(-1).view("uint8")) if flat.size else b""
    return Column(field.name, field.type, field.shape, rows, [data])


def _wrong_shape(field: Field, found: Sequence[int]) -> AnswerError:
    return AnswerError("output column '%s' of the model has rows of the shape %s and declares %s"
                       % (field.name, list(found), list(field.shape)))


def _wrong_type(field: Field, value: Any) -> AnswerError:
    found = "null" if value is None else type(value).__name__
    return AnswerError("output column '%s' of the model has a value of the type %s and declares %s"
                       % (field.name, found, field.type))


def of_values(field: Field, values: Sequence[Any]) -> Column:
    """A column of Python values, one per row."""
    if field.type in TEXTS:
        if not field.nullable and None in values:
            raise _wrong_type(field, None)
        texts = [value if value is None else _text(field, value) for value in values]
        return text_column(field.name, field.type, texts)
    valid = None
    if any([value is None for value in values]):
        if not field.nullable:
            raise _wrong_type(field, None)
        valid = bytes([value is not None for value in values])
    if field.shape and any(hasattr(value, "dtype") for value in values):
        return _of_arrays(field, values, valid)
    if field.shape:
        empty = [0] * field.size()
        flat: List[Any] = []
        for value in values:
            flat.extend(empty if value is None else _flat(field, value, field.shape))
    else:
        flat = [0 if value is None else value for value in values]
    data = _pack(field, flat)
    return Column(field.name, field.type, field.shape, len(values), [data], valid)


def _of_arrays(field: Field, values: Sequence[Any], valid: Optional[bytes]) -> Column:
    """A column of numpy arrays, one per row."""
    import numpy
    rows = [numpy.zeros(field.shape, NUMPY[field.type]) if value is None else numpy.asarray(value)
            for value in values]
    for row in rows:
        if row.shape != field.shape:
            raise _wrong_shape(field, row.shape)
    column = _of_array(field, numpy.stack(rows), len(rows))
    column.valid = valid
    return column


def _text(field: Field, value: Any) -> Any:
    if field.type == "utf8" and isinstance(value, str):
        return value
    if field.type == "json":
        try:
            return json.dumps(value, allow_nan=False, default=_plain)
        except (TypeError, ValueError) as error:
            raise AnswerError("output column '%s' of the model has a value that is not JSON (%s)"
                              % (field.name, type(value).__name__)) from error
    if field.type == "bytes" and isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise _wrong_type(field, value)


def _plain(value: Any) -> Any:
    """Values of numpy in JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(type(value).__name__)


def _flat(field: Field, value: Any, shape: Tuple[int, ...]) -> List[Any]:
    """The values of nested lists, whose lengths must be those of the shape."""
    if not isinstance(value, (list, tuple)):
        raise _wrong_type(field, value)
    if len(value) != shape[0]:
        found = field.shape[:len(field.shape) - len(shape)] + (len(value),)
        raise _wrong_shape(field, found)
    if len(shape) == 1:
        return list(value)
    return [one for part in value for one in _flat(field, part, shape[1:])]


def _pack(field: Field, flat: List[Any]) -> Any:
    """The buffer of numbers."""
    if field.type == "bool":
        wrong = [value for value in flat if value not in (True, False)]
        if wrong:
            raise _wrong_type(field, wrong[0])
        return bytes(map(bool, flat))
    try:
        if field.type == "fp16":
            return struct.pack("<%de" % len(flat), *flat)
        return memoryview(array(FORMATS[field.type], flat)).cast("B") if flat else b""
    except (TypeError, struct.error):
        is_float = field.type.startswith("fp")
        for value in flat:
            number = hasattr(value, "__index__") or (is_float and hasattr(value, "__float__"))
            if not number:
                raise _wrong_type(field, value) from None
        raise _wrong_type(field, flat[0]) from None
    except OverflowError:
        raise AnswerError("output column '%s' of the model has a value outside of %s"
                          % (field.name, field.type)) from None
