"""The two protobuf messages of the Flight protocol, written and read by hand.

`PredictCommand` and `ErrorDetail` are in proto/volley/predict/v1/predict.proto. Two messages do not
justify a dependency on protobuf.
"""

from __future__ import annotations

import json
import struct
from typing import Dict, Mapping, Tuple, Union

from .settings import Parameter

MAGIC = b"VLY1"
END = b"end"
"""The application metadata that marks the end of the input."""


def predict_command(
    model: str,
    version: int,
    request_id: str,
    timeout_ms: int,
    parameters: Mapping[str, Parameter],
    session: str,
) -> bytes:
    """Encodes a descriptor's command that promises an end marker."""
    message = _text(1, model) + _number(2, version) + _text(3, request_id)
    message += _number(4, timeout_ms)
    for name, value in parameters.items():
        message += _bytes(8, _text(1, name) + _bytes(2, _value(name, value)))
    return MAGIC + message + _number(9, 1) + _text(10, session)


def error_detail(data: bytes) -> Dict[str, Union[str, int]]:
    """Decodes an `ErrorDetail`; unknown fields are skipped. Empty if the bytes are malformed."""
    names = {1: "code", 2: "retry_after_ms", 3: "origin", 4: "request_id", 5: "reason"}
    detail: Dict[str, Union[str, int]] = {}
    at = 0
    try:
        while at < len(data):
            key, at = _read_varint(data, at)
            value, at = _read_varint(data, at)
            kept: Union[str, int] = value
            if key & 7 == 2:
                kept, at = data[at : at + value].decode(), at + value
            elif key & 7 != 0:
                return {}
            if key >> 3 in names:
                detail[names[key >> 3]] = kept
    except (IndexError, UnicodeDecodeError):
        return {}
    return detail


def _value(name: str, value: Parameter) -> bytes:
    if isinstance(value, bool):
        return _tag(1, 0) + _varint(int(value))
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"parameter '{name}' has more than 64 bits")
        return _tag(2, 0) + _varint(value & (2**64 - 1))
    if isinstance(value, float):
        return _tag(3, 1) + struct.pack("<d", value)
    if isinstance(value, str):
        return _bytes(4, value.encode())
    if isinstance(value, (list, dict)):
        return _bytes(5, json.dumps(value, allow_nan=False).encode())
    raise TypeError(f"parameter '{name}' must be a bool, a number, a text, a list or a dict")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> Tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _number(number: int, value: int) -> bytes:
    return _tag(number, 0) + _varint(value) if value else b""


def _bytes(number: int, value: bytes) -> bytes:
    return _tag(number, 2) + _varint(len(value)) + value


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode()) if value else b""
