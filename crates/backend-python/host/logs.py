"""Records of Python's `logging`, on their way to the worker."""

from __future__ import annotations

import logging
import os
import time

from .context import CURRENT
from .errors import clean
from .outbox import Outbox

#: Bytes of a message.
LONGEST = 8_192
#: Messages per second.
MOST = 1_000
#: Messages that wait while the worker does not read.
MOST_WAITING = 2_000


class Forwarder(logging.Handler):
    """A handler of the root logger. What comes too fast is counted and dropped."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox
        self._second = 0
        self._count = 0
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._count = second, 0
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                self._put("warning", "%d log messages were dropped" % dropped)
        self._count += 1
        if self._count > MOST or self._outbox.waiting() > MOST_WAITING:
            self._dropped += 1
            return
        try:
            message = self.format(record)
        except Exception:  # a record whose arguments do not fit its text
            message = str(record.msg)
        self._put(level_of(record.levelno), message)

    def _put(self, level: str, message: str) -> None:
        call = CURRENT.get()
        text = clean(message)
        if len(text.encode()) > LONGEST:
            text = text.encode()[:LONGEST].decode("utf-8", "ignore")
        id = None if call is None else call.id
        self._outbox.put({"op": "log", "level": level, "message": text, "id": id}, blocking=False)


def level_of(number: int) -> str:
    """The name of a level in the contract."""
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"


def install(outbox: Outbox) -> None:
    """Attaches the handler to the root logger, which passes "info" and above by default."""
    root = logging.getLogger()
    forwarder = Forwarder(outbox)
    root.addHandler(forwarder)
    # A forked child has no thread that would write its messages.
    os.register_at_fork(after_in_child=lambda: root.removeHandler(forwarder))
    if root.level == logging.WARNING:
        root.setLevel(logging.INFO)
