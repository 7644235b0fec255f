"""Arrow batches of plain models that ask for them. pyarrow is imported only for those."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from .answers import column_of, input_values
from .interfaces.base import AnswerError
from .wire import NUMPY, WIDTHS, Column, Field

_NAMES = {"fp16": "float16", "fp32": "float32", "fp64": "float64", "bool": "bool_",
          "utf8": "string", "json": "string", "bytes": "binary"}


def arrow_type(field: Field) -> Any:
    """The Arrow type of a field."""
    import pyarrow
    value = getattr(pyarrow, _NAMES.get(field.type, field.type))()
    for length in reversed(field.shape):
        value = pyarrow.list_(value, length)
    return value


def batch_of(fields: Sequence[Field], columns: Dict[str, Column], rows: int) -> Any:
    """The batch of a request. Numbers without nulls are not copied."""
    import pyarrow
    arrays = []
    for field in fields:
        column = columns.get(field.name)
        is_plain = column is not None and column.valid is None and column.type == field.type
        if is_plain and field.type in NUMPY and field.type != "bool":
            values = pyarrow.py_buffer(column.buffers[0])
            inner = arrow_type(field._replace(shape=()))
            array = pyarrow.Array.from_buffers(inner, rows * field.size(), [None, values])
            for length in reversed(field.shape):
                array = pyarrow.FixedSizeListArray.from_arrays(array, length)
        else:
            # JSON stays a text in Arrow.
            texts = field._replace(type="utf8") if field.type == "json" else field
            array = pyarrow.array(input_values(texts, columns, rows), arrow_type(field))
        arrays.append(array)
    return pyarrow.RecordBatch.from_arrays(arrays, [field.name for field in fields])


def columns_of(fields: Sequence[Field], batch: Any) -> List[Column]:
    """The columns of an answer."""
    found = []
    for field in fields:
        if field.name not in batch.schema.names:
            raise AnswerError("the model's answer has no output '%s'" % field.name)
        array = batch.column(batch.schema.get_field_index(field.name))
        if array.type != arrow_type(field):
            raise AnswerError("output column '%s' of the model has the type %s and declares %s"
                              % (field.name, array.type, arrow_type(field)))
        if field.type in NUMPY and field.type != "bool" and array.null_count == 0:
            data = _numbers(array, field)
            found.append(Column(field.name, field.type, field.shape, batch.num_rows, [data]))
            continue
        values = array.to_pylist()
        texts = field._replace(type="utf8") if field.type == "json" else field
        column = column_of(texts, values, batch.num_rows)
        column.type = field.type
        found.append(column)
    return found


def _numbers(array: Any, field: Field) -> Any:
    """The memory of an array's numbers. Arrow's memory stays as it is."""
    count = len(array) * field.size()
    for _ in field.shape:
        array = array.flatten()
    if array.null_count:
        raise AnswerError("output column '%s' of the model has a null inside of a row" % field.name)
    width = WIDTHS[field.type]
    values = array.buffers()[1]
    if count == 0 or values is None:
        return b""
    start = array.offset * width
    return memoryview(values).cast("B")[start:start + count * width]
