"""Server-sent events, from bytes as they arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, List, Optional

MAX_EVENT_BYTES = 16 << 20


@dataclass(frozen=True)
class Event:
    """One event with its data, and its id if it has one."""

    data: str
    id: Optional[str]


class EventReader:
    """Splits bytes into events. Only line feeds end a line, as the JSON inside may have others."""

    def __init__(self) -> None:
        self._buffer = b""
        self._data: List[str] = []
        self._id: Optional[str] = None

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Yields the events that are complete with this piece.

        Raises:
            ValueError: A line is too long, or is not UTF-8.
        """
        lines = (self._buffer + piece).split(b"\n")
        self._buffer = lines.pop()
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise ValueError("an event is over 16 MiB")
        for line in lines:
            event = self._line(line[:-1] if line.endswith(b"\r") else line)
            if event is not None:
                yield event

    def _line(self, line: bytes) -> Optional[Event]:
        if not line:
            data, self._data = self._data, []
            event_id, self._id = self._id, None
            return Event("\n".join(data), event_id) if data else None
        name, _, value = line.decode("utf-8").partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "data":
            self._data.append(value)
        elif name == "id":
            self._id = value
        return None
