"""The outbox: messages to the worker, put by many threads and written as few frames.

A piece of text of a stream whose previous piece is not written yet joins it in one message, and so
does a small event. The
thread that puts a message writes it at once when nothing was written for 500 µs; otherwise a
thread of the outbox writes everything 500 µs after the last frame.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from array import array
from itertools import accumulate
from typing import Any, Dict, List, Optional, Union

from . import wire
from .events import Event

#: Seconds between two frames while messages come faster.
INTERVAL = 0.0005
#: Bytes of buffers after which a new frame begins.
FRAME_BODY = 64 << 20
#: Messages of a frame.
FRAME_MESSAGES = 256
#: Bytes of the events of one message, unless it has only one.
EVENTS_BODY = 1 << 20

TEXT_ROWS = (
    '{"op":"rows","id":%d,"rows":%d,"columns":['
    '{"name":"item","type":"uint32","shape":[],"at":[[%d,%d]]},'
    '{"name":"text","type":"utf8","shape":[],%s"at":[[%d,%d],[%d,%d]%s]}%s]}'
)


class Stream:
    """What the outbox knows of a call: its credit and its unsent pieces."""

    id: int
    credit: int
    unsent: Optional[Union["TextRows", "Events"]]


class TextRows:
    """Pieces of text of one stream that travel in one message."""

    __slots__ = ("stream", "items", "texts", "reasons")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.items: List[int] = []
        self.texts: List[Optional[str]] = []
        #: Reasons of the end, by place; empty for nearly all messages.
        self.reasons: Dict[int, str] = {}

    def encode(self, body: wire.Body) -> bytes:
        """The message; its buffers go to the body."""
        texts = [(text or "").encode("utf-8", "replace") for text in self.texts]
        offsets = array("q", accumulate(map(len, texts), initial=0))
        item = body.add(array("I", self.items).tobytes())
        offset = body.add(offsets.tobytes())
        data = body.add(b"".join(texts))
        nulls, valid, reasons = "", "", ""
        if self.reasons:
            if None in self.texts:
                place = body.add(bytes(text is not None for text in self.texts))
                nulls, valid = '"nulls":true,', ",[%d,%d]" % place
            named = [self.reasons.get(at) for at in range(len(self.texts))]
            column = wire.text_column("finish_reason", "utf8", named)
            reasons = "," + body.describe(column)
        text = TEXT_ROWS % (self.stream.id, len(texts), *item, nulls, *offset, *data, valid,
                            reasons)
        return text.encode()


class Events:
    """Events of one stream that travel in one message."""

    __slots__ = ("stream", "events", "size", "cost")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.events: List[Event] = []
        self.size = 0
        self.cost = 0

    def takes(self, event: Event) -> bool:
        """Whether an event can join."""
        if not self.events:
            return True
        columns = self.events[0].columns
        return (self.size + event.size <= EVENTS_BODY and len(columns) == len(event.columns)
                and all(map(wire.can_join, columns, event.columns)))

    def add(self, event: Event) -> None:
        """Appends an event that can join."""
        self.events.append(event)
        self.size += event.size
        self.cost += event.cost

    def encode(self, body: wire.Body) -> bytes:
        """The message; its buffers go to the body."""
        events = [event.rows for event in self.events]
        columns = zip(*[event.columns for event in self.events])
        described = ",".join([body.describe(wire.join(column)) for column in columns])
        text = '{"op":"rows","id":%d,"rows":%d,"events":%s,"credit":%d,"columns":[%s]}' % (
            self.stream.id, sum(events), events, self.cost, described)
        return text.encode()


class Message:
    """Any other message, with the columns that it has."""

    __slots__ = ("fields", "columns")

    def __init__(self, fields: Dict[str, Any], columns: Optional[List[wire.Column]] = None) -> None:
        self.fields = fields
        self.columns = columns

    def encode(self, body: wire.Body) -> bytes:
        """The message; its buffers go to the body."""
        if self.columns is None:
            return json.dumps(self.fields).encode()
        described = ",".join([body.describe(column) for column in self.columns])
        return ('%s,"columns":[%s]}' % (json.dumps(self.fields)[:-1], described)).encode()


class Outbox:
    """The sending half of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        #: Guards the queue and the credits of all streams. Reentrant, because a finaliser of the
        #: model may write a log message wherever memory is allocated.
        self.lock = threading.RLock()
        self._queue: List[Union[TextRows, Events, Message]] = []
        self._written = 0.0
        self._writing = threading.Lock()
        #: Buffers of a frame that a non-blocking write left over.
        self._rest: List[Any] = []
        #: Whether the thread of the outbox will write soon.
        self._armed = False
        self._bell = threading.Lock()
        self._bell.acquire()
        threading.Thread(target=self._flush_later, name="volley-outbox", daemon=True).start()

    def text(self, stream: Stream, item: int, text: Optional[str], reason: Optional[str] = None,
             blocking: bool = True) -> bool:
        """Puts a piece of text; False when the stream has no credit."""
        with self.lock:
            if stream.credit <= 0:
                return False
            stream.credit -= 1
            rows = stream.unsent
            if rows is None:
                rows = stream.unsent = TextRows(stream)
                self._queue.append(rows)
            if reason is not None:
                rows.reasons[len(rows.texts)] = reason
            rows.items.append(item)
            rows.texts.append(text)
            if self._armed:
                return True
            is_due = self._is_due()
        if is_due:
            self._write(blocking)
        return True

    def event(self, stream: Stream, event: Event, blocking: bool = True) -> bool:
        """Puts an event; False when the stream has not enough credit."""
        with self.lock:
            if stream.credit < event.cost:
                return False
            stream.credit -= event.cost
            unsent = stream.unsent
            if not isinstance(unsent, Events) or not unsent.takes(event):
                unsent = stream.unsent = Events(stream)
                self._queue.append(unsent)
            unsent.add(event)
            if self._armed:
                return True
            is_due = self._is_due()
        if is_due:
            self._write(blocking)
        return True

    def put(self, fields: Dict[str, Any], columns: Optional[List[wire.Column]] = None,
            flush: bool = False, hold: bool = False, blocking: bool = True) -> None:
        """Puts a message; `flush` writes it at once, `hold` leaves that to the next message."""
        with self.lock:
            self._queue.append(Message(fields, columns))
            if hold:
                return
            is_due = flush or (not self._armed and self._is_due())
        if is_due:
            self._write(blocking)

    def wait_written(self) -> None:
        """Returns when everything that was put before is written."""
        with self._writing:
            self._write_all(True)
        self._write(True)

    def waiting(self) -> int:
        """Messages that are not written yet."""
        return len(self._queue)

    def _is_due(self) -> bool:
        """Whether to write now; if not, the thread of the outbox is told. Needs the lock."""
        if time.monotonic() - self._written >= INTERVAL:
            return True
        self._arm()
        return False

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._bell.release()

    def _flush_later(self) -> None:
        while True:
            self._bell.acquire()
            left = self._written + INTERVAL - time.monotonic()
            if left > 0:
                time.sleep(left)
            with self.lock:
                self._armed = False
            self.wait_written()

    def _write(self, blocking: bool) -> None:
        """Writes what was put, unless another thread is at it: that one goes on until all is
        written."""
        while self._queue and self._writing.acquire(False):
            try:
                done = self._write_all(blocking)
            finally:
                self._writing.release()
            if not done:
                with self.lock:
                    self._arm()
                return

    def _write_all(self, blocking: bool) -> bool:
        """Writes frames until the queue is empty; False when the socket takes no more now."""
        flags = 0 if blocking else socket.MSG_DONTWAIT
        try:
            if self._rest:
                self._rest = wire.send(self._connection, self._rest, flags)
            while self._queue and not self._rest:
                frame = wire.pack(*self._take())
                self._rest = wire.send(self._connection, frame, flags)
        except OSError:
            # The worker is gone; the thread that reads ends the process.
            with self.lock:
                self._queue.clear()
            self._rest = []
        return not self._rest

    def _take(self) -> "tuple[list[bytes], wire.Body]":
        """The messages of the next frame, encoded."""
        with self.lock:
            taken = self._queue[:FRAME_MESSAGES]
            size = 0
            for count, entry in enumerate(taken):
                if isinstance(entry, TextRows):
                    size += sum(map(len, filter(None, entry.texts)))
                elif isinstance(entry, Events):
                    size += entry.size
                elif entry.columns:
                    size += sum(column.size() for column in entry.columns)
                if count and size > FRAME_BODY:
                    taken = taken[:count]
                    break
            del self._queue[:len(taken)]
            for entry in taken:
                if not isinstance(entry, Message) and entry.stream.unsent is entry:
                    entry.stream.unsent = None
            self._written = time.monotonic()
        body = wire.Body()
        return [entry.encode(body) for entry in taken], body
