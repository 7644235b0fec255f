"""Data types: Triton's numbers and names, numpy's types, and those of the contract."""

from __future__ import annotations

from typing import Any, Dict

import numpy

TRITON_TO_NUMPY: Dict[int, Any] = {
    1: numpy.bool_, 2: numpy.uint8, 3: numpy.uint16, 4: numpy.uint32, 5: numpy.uint64,
    6: numpy.int8, 7: numpy.int16, 8: numpy.int32, 9: numpy.int64, 10: numpy.float16,
    11: numpy.float32, 12: numpy.float64, 13: numpy.object_,
}
NUMPY_TO_TRITON: Dict[Any, int] = {type: number for number, type in TRITON_TO_NUMPY.items()}
NUMPY_TO_TRITON.update({numpy.bytes_: 13, numpy.str_: 13})
TRITON_STRING_TO_NUMPY: Dict[str, Any] = {
    "TYPE_BOOL": numpy.bool_, "TYPE_UINT8": numpy.uint8, "TYPE_UINT16": numpy.uint16,
    "TYPE_UINT32": numpy.uint32, "TYPE_UINT64": numpy.uint64, "TYPE_INT8": numpy.int8,
    "TYPE_INT16": numpy.int16, "TYPE_INT32": numpy.int32, "TYPE_INT64": numpy.int64,
    "TYPE_FP16": numpy.float16, "TYPE_FP32": numpy.float32, "TYPE_FP64": numpy.float64,
    "TYPE_STRING": numpy.object_,
}
#: Types of the contract. A text is any bytes.
WIRE: Dict[str, str] = {
    "TYPE_BOOL": "bool", "TYPE_UINT8": "uint8", "TYPE_UINT16": "uint16", "TYPE_UINT32": "uint32",
    "TYPE_UINT64": "uint64", "TYPE_INT8": "int8", "TYPE_INT16": "int16", "TYPE_INT32": "int32",
    "TYPE_INT64": "int64", "TYPE_FP16": "fp16", "TYPE_FP32": "fp32", "TYPE_FP64": "fp64",
    "TYPE_STRING": "bytes",
}


def of_numpy(dtype: Any) -> int:
    """Triton's number of a numpy type."""
    kind = numpy.dtype(dtype)
    found = NUMPY_TO_TRITON.get(kind.type)
    if found is None and kind.kind in "iu":
        # numpy has two types for integers of 64 bits.
        name = "%s%d" % ("int" if kind.kind == "i" else "uint", kind.itemsize * 8)
        found = NUMPY_TO_TRITON.get(getattr(numpy, name))
    if found is None:
        raise TypeError("Triton has no data type for numpy's %s" % dtype)
    return found
