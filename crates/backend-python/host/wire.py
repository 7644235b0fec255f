"""Frames and columns of the contract between a worker and the process of a model.

A frame is a list of messages as JSON and one body with the buffers of all of them. Numbers are
never copied on their way in: a column is a view of the frame's memory, which is writable.
"""

from __future__ import annotations

import ctypes
import json
import socket
import struct
import sys
from array import array
from functools import lru_cache
from itertools import accumulate
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

ALIGN = 64
MAX_JSON = 16 << 20
MAX_BODY = 1 << 30
HEADER = struct.Struct("<IIQ")
#: Buffers that one call of sendmsg takes (IOV_MAX).
MAX_BUFFERS = 1024
#: Formats of the types of fixed width, for `memoryview.cast`, `array` and `struct`.
FORMATS = {
    "bool": "B", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B",
    "uint16": "H", "uint32": "I", "uint64": "Q", "fp16": "e", "fp32": "f", "fp64": "d",
}
WIDTHS = {name: struct.calcsize(letter) for name, letter in FORMATS.items()}
#: Types of texts: offsets and bytes.
TEXTS = ("utf8", "bytes", "json")
NUMPY = {
    "bool": "bool", "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64",
    "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
    "fp16": "float16", "fp32": "float32", "fp64": "float64",
}


class WireError(Exception):
    """A frame or column that breaks the contract."""


class Field(NamedTuple):
    """The declaration of an input or output."""

    name: str
    type: str
    #: Shape of one row; -1 is a length that differs from row to row.
    shape: Tuple[int, ...] = ()
    nullable: bool = False

    def described(self) -> Dict[str, Any]:
        """The declaration as the worker reads it."""
        return {
            "name": self.name, "type": self.type, "shape": list(self.shape),
            "nullable": self.nullable,
        }

    def size(self) -> int:
        """Values per row of a shape without -1."""
        return product(self.shape)


def product(lengths: Iterable[int]) -> int:
    """The number of values of a shape."""
    size = 1
    for length in lengths:
        size *= length
    return size


class Column:
    """Values of one name, one per row, in the layout of the contract."""

    __slots__ = ("name", "type", "shape", "rows", "buffers", "valid", "dims")

    def __init__(self, name: str, type: str, shape: Sequence[int], rows: int, buffers: List[Any],
                 valid: Optional[Any] = None, dims: Optional[Any] = None) -> None:
        self.name = name
        self.type = type
        self.shape = tuple(shape)
        self.rows = rows
        #: The values, or the offsets and the bytes of texts.
        self.buffers = buffers
        #: One byte per row, or None when there are no nulls.
        self.valid = valid
        #: The shape of each row as int64, where `shape` has a -1; otherwise None.
        self.dims = dims

    def row_shape(self, row: int) -> Tuple[int, ...]:
        """The shape of one row."""
        if self.dims is None:
            return self.shape
        rank = len(self.shape)
        return tuple(memoryview(self.dims).cast("B").cast("q")[row * rank:(row + 1) * rank])

    def bounds(self, start: int, stop: int) -> Tuple[int, int]:
        """The places of the values of the rows from `start` up to `stop`."""
        if self.dims is None:
            size = product(self.shape)
            return start * size, stop * size
        sizes = [product(self.row_shape(row)) for row in range(stop)]
        first = sum(sizes[:start])
        return first, first + sum(sizes[start:])

    def numbers(self) -> Any:
        """All values of a type of fixed width, in a flat view or list."""
        data = self.buffers[0]
        if self.type == "fp16":
            return struct.unpack("<%de" % (len(data) // 2), data)
        return memoryview(data).cast(FORMATS[self.type]) if len(data) else []

    def values(self, read_json: bool = False) -> List[Any]:
        """One Python value per row, None for null. JSON texts are parsed if `read_json`."""
        if self.type in TEXTS:
            values = self._texts(read_json or self.type == "json")
        else:
            values = list(self.numbers())
            if self.type == "bool":
                values = [value != 0 for value in values]
        if self.dims is not None:
            flat, values, at = values, [], 0
            for row in range(self.rows):
                shape = self.row_shape(row)
                size = product(shape)
                values.append((nested(flat[at:at + size], shape, 1) or [[]])[0])
                at += size
        elif self.shape:
            values = nested(values, self.shape, self.rows)
        if self.valid is None:
            return values
        return [value if is_valid else None for value, is_valid in zip(values, self.valid)]

    def _texts(self, read_json: bool) -> List[Any]:
        offsets = memoryview(self.buffers[0]).cast("q")
        data = self.buffers[1]
        places = zip(offsets, offsets[1:])
        if self.type == "bytes" and not read_json:
            return [bytes(data[start:stop]) for start, stop in places]
        texts = [str(data[start:stop], "utf-8") for start, stop in places]
        if not read_json:
            return texts
        return [None if self.is_null(row) else json.loads(text) for row, text in enumerate(texts)]

    def is_null(self, row: int) -> bool:
        """Whether the row has no value."""
        return self.valid is not None and not self.valid[row]

    def array(self) -> Any:
        """A numpy array of the values; its memory is the frame's, and writable. All rows must have
        one shape."""
        import numpy
        shape = (self.rows,) + (self.row_shape(0) if self.dims is not None and self.rows else
                                tuple(max(length, 0) for length in self.shape))
        if self.type in TEXTS:
            texts = self._texts(self.type == "json") if self.shape else self.values()
            flat = numpy.empty(len(texts), dtype=object)
            flat[:] = texts
        else:
            flat = numpy.frombuffer(self.buffers[0], dtype=NUMPY[self.type])
        return flat.reshape(shape)

    def slice(self, start: int, stop: int) -> "Column":
        """The rows from `start` up to `stop`, without a copy of numbers."""
        valid = None if self.valid is None else memoryview(self.valid)[start:stop]
        rows = stop - start
        begin, end = self.bounds(start, stop)
        if self.type in TEXTS:
            offsets = memoryview(self.buffers[0]).cast("q")[begin:end + 1]
            first, last = offsets[0], offsets[-1]
            rebased = array("q", [offset - first for offset in offsets])
            data = memoryview(self.buffers[1])[first:last]
            buffers = [memoryview(rebased).cast("B"), data]
        else:
            width = WIDTHS[self.type]
            buffers = [memoryview(self.buffers[0])[begin * width:end * width]]
        dims = None
        if self.dims is not None:
            width = 8 * len(self.shape)
            dims = memoryview(self.dims)[start * width:stop * width]
        return Column(self.name, self.type, self.shape, rows, buffers, valid, dims)

    def size(self) -> int:
        """Bytes of all buffers."""
        size = sum(len(buffer) for buffer in self.buffers)
        return size + len(self.valid or b"") + len(self.dims or b"")


def nested(flat: Sequence[Any], shape: Sequence[int], rows: int) -> List[Any]:
    """Lists of lists of `flat`, one per row of `shape`."""
    values = list(flat)
    for length in reversed(tuple(shape)):
        count = rows if length == 0 else len(values) // length
        values = [values[at * length:(at + 1) * length] for at in range(count)]
    return values


class Texts(Column):
    """A column of texts whose buffers are made when they are needed."""

    __slots__ = ("texts",)

    def __init__(self, name: str, type: str, texts: List[bytes],
                 valid: Optional[bytes] = None) -> None:
        # The buffers are a property here.
        # pylint: disable=super-init-not-called
        self.name = name
        self.type = type
        self.shape = ()
        self.rows = len(texts)
        self.texts = texts
        self.valid = valid
        self.dims = None

    @property
    def buffers(self) -> List[Any]:  # type: ignore[override]
        """The offsets and the bytes."""
        offsets = array("q", accumulate(map(len, self.texts), initial=0))
        return [memoryview(offsets).cast("B"), b"".join(self.texts)]

    def slice(self, start: int, stop: int) -> Column:
        valid = None if self.valid is None else self.valid[start:stop]
        return Texts(self.name, self.type, self.texts[start:stop], valid)

    def size(self) -> int:
        return sum(map(len, self.texts)) + 8 * self.rows + 8 + len(self.valid or b"")


def text_column(name: str, type: str, values: Iterable[Optional[Any]]) -> Column:
    """A column of texts (str or bytes), None for null."""
    values = values if isinstance(values, list) else list(values)
    valid = None
    if None in values:
        valid = bytes([value is not None for value in values])
    return Texts(name, type, [
        value if isinstance(value, bytes) else (value or "").encode("utf-8", "replace")
        for value in values
    ], valid)


def can_join(first: Column, second: Column) -> bool:
    """Whether two columns can be one."""
    return (first.name == second.name and first.type == second.type
            and first.shape == second.shape and (first.dims is None) == (second.dims is None))


def join(columns: Sequence[Column]) -> Column:
    """One column with the rows of all, which `can_join` allows."""
    first = columns[0]
    if len(columns) == 1:
        return first
    valid = None
    if any(column.valid is not None for column in columns):
        valid = b"".join([b"\1" * column.rows if column.valid is None else column.valid
                          for column in columns])
    if all(isinstance(column, Texts) for column in columns):
        texts = [text for column in columns for text in column.texts]  # type: ignore[attr-defined]
        return Texts(first.name, first.type, texts, valid)
    buffers = [b"".join(parts) for parts in zip(*[column.buffers for column in columns])]
    if first.type in TEXTS:
        buffers[0] = joined_offsets(columns)
    dims = None if first.dims is None else b"".join([column.dims for column in columns])
    rows = sum(column.rows for column in columns)
    return Column(first.name, first.type, first.shape, rows, buffers, valid, dims)


def joined_offsets(columns: Sequence[Column]) -> bytes:
    """The offsets of the texts of all columns; those of each column begin at 0."""
    joined, end = array("q", [0]), 0
    for column in columns:
        offsets = memoryview(column.buffers[0]).cast("B").cast("q")
        joined.extend([end + offset for offset in offsets[1:]])
        end = joined[-1]
    return joined.tobytes()


def decode_columns(message: Dict[str, Any], body: memoryview) -> Dict[str, Column]:
    """The columns of a message, by name."""
    rows = message["rows"]
    columns = {}
    for described in message["columns"]:
        column = decode_column(described, rows, body)
        columns[column.name] = column
    return columns


def decode_column(described: Dict[str, Any], rows: int, body: memoryview) -> Column:
    """One column of a message; checks that its buffers fit."""
    name, type, shape = described["name"], described["type"], described.get("shape", [])
    buffers = []
    for offset, length in described["at"]:
        if offset + length > len(body) or offset % ALIGN:
            raise WireError("a buffer of column '%s' is outside of the frame" % name)
        buffers.append(body[offset:offset + length])
    valid = buffers.pop() if described.get("nulls") else None
    dims = buffers.pop() if buffers and any(length < 0 for length in shape) else None
    column = Column(name, type, shape, rows, buffers, valid, dims)
    fits = dims is None or len(dims) == rows * len(shape) * 8
    count = column.bounds(0, rows)[1] if fits else 0
    if type in TEXTS:
        fits = fits and len(buffers) == 2 and len(buffers[0]) == (count + 1) * 8
    else:
        fits = fits and len(buffers) == 1 and len(buffers[0]) == count * WIDTHS[type]
    if not fits or (valid is not None and len(valid) != rows):
        raise WireError("a buffer of column '%s' has a wrong length" % name)
    return column


class Body:
    """The body of a frame that is being built."""

    __slots__ = ("parts", "length")

    def __init__(self) -> None:
        self.parts: List[Any] = []
        self.length = 0

    def add(self, buffer: Any) -> Tuple[int, int]:
        """Appends a buffer of bytes; returns its offset and its length."""
        gap = -self.length % ALIGN
        if gap:
            self.parts.append(bytes(gap))
            self.length += gap
        place = (self.length, len(buffer))
        if place[1]:
            self.parts.append(buffer)
            self.length += place[1]
        return place

    def describe(self, column: Column) -> str:
        """The descriptor of a column, as JSON; its buffers are appended."""
        places = [self.add(buffer) for buffer in column.buffers]
        if column.dims is not None:
            places.append(self.add(column.dims))
        nulls = ""
        if column.valid is not None:
            places.append(self.add(column.valid))
            nulls = '"nulls":true,'
        at = ",".join(["[%d,%d]" % place for place in places])
        return '{%s%s"at":[%s]}' % (
            described_type(column.name, column.type, column.shape), nulls, at)


@lru_cache(maxsize=1024)
def described_type(name: str, type: str, shape: Tuple[int, ...]) -> str:
    """The part of a descriptor that all columns of a declaration share."""
    return json.dumps({"name": name, "type": type, "shape": list(shape)})[1:-1] + ","


def pack(messages: Sequence[bytes], body: Body) -> List[Any]:
    """The buffers of one frame, in order; short neighbours are joined."""
    text = b"[" + b",".join(messages) + b"]"
    if len(text) > MAX_JSON or body.length > MAX_BODY:
        raise WireError("a frame is too long")
    short: List[Any] = [HEADER.pack(len(text), 0, body.length), text]
    joined: List[Any] = []
    for part in body.parts:
        if len(part) < 65_536:
            short.append(part)
            continue
        joined.append(b"".join(short))
        joined.append(part)
        short = []
    if short:
        joined.append(b"".join(short))
    return joined


def send(connection: socket.socket, parts: List[Any], flags: int = 0) -> List[Any]:
    """Writes the buffers; returns those that a non-blocking send left over."""
    parts = [memoryview(part).cast("B") for part in parts]
    while parts:
        try:
            sent = connection.sendmsg(parts[:MAX_BUFFERS], [], flags)
        except (BlockingIOError, InterruptedError):
            return parts
        first = 0
        while first < len(parts) and sent >= len(parts[first]):
            sent -= len(parts[first])
            first += 1
        del parts[:first]
        if sent:
            parts[0] = parts[0][sent:]
    return parts


def aligned(length: int) -> memoryview:
    """Writable memory that begins at a multiple of 64 bytes."""
    if length == 0:
        return memoryview(bytearray())
    numpy = sys.modules.get("numpy")
    if length >= 65_536 and numpy is not None and hasattr(numpy, "empty"):
        # Memory that is not filled with zeros first.
        memory = numpy.empty(length + ALIGN, dtype="uint8")
        start = -memory.ctypes.data % ALIGN
    else:
        memory = bytearray(length + ALIGN)
        start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % ALIGN
    return memoryview(memory)[start:start + length]


class Reader:
    """The frames of a socket. Short ones arrive with one system call."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = memoryview(bytearray(65_536))
        self._start = 0
        self._end = 0

    def read(self) -> Optional[Tuple[List[Dict[str, Any]], memoryview]]:
        """The messages and the body of the next frame; None at the end of the socket."""
        head = bytearray(HEADER.size)
        if not self._fill(memoryview(head)):
            return None
        json_length, _, body_length = HEADER.unpack(head)
        if json_length > MAX_JSON or body_length > MAX_BODY:
            raise WireError("a frame is too long")
        text = bytearray(json_length)
        body = aligned(body_length)
        if not (self._fill(memoryview(text)) and self._fill(body)):
            return None
        return json.loads(text), body

    def _fill(self, target: memoryview) -> bool:
        """Reads until `target` is full; False when the socket ends before."""
        filled = 0
        while filled < len(target):
            ready = self._end - self._start
            missing = len(target) - filled
            if ready:
                count = min(ready, missing)
                target[filled:filled + count] = self._buffer[self._start:self._start + count]
                self._start += count
            elif missing >= len(self._buffer):
                # One system call, however many turns the sender needs.
                count = self._connection.recv_into(target[filled:], 0, socket.MSG_WAITALL)
            else:
                self._end = self._connection.recv_into(self._buffer)
                self._start = 0
                if self._end == 0:
                    return False
                continue
            if count == 0:
                return False
            filled += count
        return True
