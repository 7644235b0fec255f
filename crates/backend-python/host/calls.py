"""Calls: what runs, on which thread, how it waits for credit and how it ends.

The main thread loads the model and then runs its code, so that objects that belong to a thread
work. Further threads are started for a model that declares more concurrency. Asynchronous models
run on one event loop, which is the main thread's.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from . import errors, events, wire
from .context import CURRENT, Cancelled, Request, Unsupported
from .interfaces.base import AnswerError, Model, row_of
from .outbox import Outbox, Stream

#: Longest piece of a stream, in characters.
LONGEST_PIECE = 64 << 20
#: Pieces after which an asynchronous stream lets others go on.
TURN = 32
#: Bytes of the columns of one message.
LONGEST_PART = 512 << 20


class Call(Stream):
    """A call from its first message to its last."""

    def __init__(self, message: Dict[str, Any], columns: Dict[str, wire.Column],
                 outbox: Outbox) -> None:
        self.id = message["id"]
        self.rows: int = message["rows"]
        self.columns = columns
        self.parameters: Dict[str, Any] = message.get("parameters") or {}
        self.credit = message.get("credit", 0)
        #: Whether the caller takes the answer as a whole.
        self.whole = bool(message.get("whole"))
        self.unsent = None
        self.cancelled = False
        #: Pieces of work that have not ended, and those of them that have not begun.
        self.open = 0
        self.queued = 0
        self.error: Optional[tuple] = None
        self.outbox = outbox
        #: Wake the code that waits for credit; called with the outbox' lock.
        self.waiters: List[Callable[[], None]] = []
        #: The tasks of an asynchronous model.
        self.tasks: List[Any] = []
        left = message.get("deadline_ms")
        deadline = None if left is None else time.monotonic() + left / 1_000
        self.request = Request(self, message.get("request_id") or "", deadline,
                               message.get("trace"))

    def emit(self, item: int, text: Optional[str], reason: Optional[str] = None) -> None:
        """Puts a piece of text; waits for credit. Raises `Cancelled`."""
        check_piece(text)
        while not self.cancelled:
            if self.outbox.text(self, item, text, reason):
                return
            self.wait_for_credit()
        raise Cancelled()

    def try_emit(self, item: int, text: Optional[str], reason: Optional[str] = None) -> bool:
        """Puts a piece of text from the event loop; False when there is no credit."""
        check_piece(text)
        return self.outbox.text(self, item, text, reason, False)

    def send(self, columns: List[wire.Column]) -> None:
        """Sends one event; waits for credit. Raises `Cancelled`."""
        event = events.Event(columns)
        while not self.cancelled:
            if self.outbox.event(self, event):
                return
            self.wait_for_credit(event.cost)
        raise Cancelled()

    def wait_for_credit(self, wanted: int = 1) -> None:
        """Blocks until there is so much credit or the call is cancelled."""
        changed = threading.Condition(self.outbox.lock)
        with changed:
            self.waiters.append(changed.notify_all)
            changed.wait_for(lambda: self.credit >= wanted or self.cancelled)
            self.waiters.remove(changed.notify_all)

    def grant(self, rows: int) -> None:
        """Adds credit."""
        with self.outbox.lock:
            self.credit += rows
            for wake in self.waiters:
                wake()

    def cancel(self) -> None:
        """Marks the call as cancelled and wakes its code."""
        with self.outbox.lock:
            self.cancelled = True
            for wake in self.waiters:
                wake()

    def take_credit(self, wanted: int) -> int:
        """Up to `wanted` rows of the credit."""
        with self.outbox.lock:
            taken = min(wanted, self.credit)
            self.credit -= taken
            return taken

    def fail(self, code: str, message: str) -> None:
        """Keeps the first error; the other rows of the request end early."""
        if self.error is None:
            self.error = (code, message)
        if self.open > 1:
            self.cancel()


def check_piece(text: Optional[str]) -> None:
    """Raises for a piece that is too long to send."""
    if text is not None and len(text) > LONGEST_PIECE:
        raise Unsupported("a piece of the answer is longer than 64 MiB")


class Calls:
    """All calls of a model. Subclasses run the code."""

    def __init__(self, model: Model, outbox: Outbox, directory: str) -> None:
        self.model = model
        self.outbox = outbox
        self.directory = directory
        self._calls: Dict[int, Call] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()

    def start(self, message: Dict[str, Any], body: memoryview) -> None:
        """Starts a call."""
        try:
            columns = wire.decode_columns(message, body)
            call = Call(message, columns, self.outbox)
        except Exception as error:  # a malformed message fails its call only
            errors.report(error, str(message.get("request_id")))
            self._send_error(message["id"], "internal", "the request is malformed")
            return
        call.open = call.rows if self.model.task == "generate" else 1
        self._calls[call.id] = call
        if call.open == 0:
            call.open = 1
            self.done(call)
        else:
            self.enqueue(call)

    def credit(self, id: int, rows: int) -> None:
        """Adds credit to a call."""
        call = self._calls.get(id)
        if call is not None:
            call.grant(rows)

    def cancel(self, id: int) -> None:
        """Cancels a call."""
        call = self._calls.get(id)
        if call is not None:
            call.cancel()
            self.stop(call)

    def cancel_all(self) -> None:
        """Cancels every call."""
        for id in list(self._calls):
            self.cancel(id)

    def failed(self, call: Call, error: BaseException) -> None:
        """Records what the model's code raised."""
        if isinstance(error, Cancelled) and call.cancelled:
            return
        code, message = errors.describe(error, self.directory, self.model.error_of)
        if code == "internal":
            errors.report(error, call.request.request_id)
        call.fail(code, message)
        if call.cancelled:
            self.stop(call)

    def done(self, call: Call, count: int = 1) -> None:
        """Ends pieces of work of a call, and the call with the last one."""
        if os.getpid() != self._process:
            # A child that the model forked came back from the model's code.
            os._exit(1)
        with self._lock:
            call.open -= count
            if call.open:
                return
        self._calls.pop(call.id, None)
        if call.error is not None:
            self._send_error(call.id, *call.error)
        elif call.cancelled:
            self._send_error(call.id, "cancelled", "the call was cancelled")
        else:
            self.outbox.put({"op": "end", "id": call.id}, flush=True,
                            blocking=not self.model.is_async)

    def _send_error(self, id: int, code: str, message: str) -> None:
        fields = {"op": "error", "id": id, "code": code, "message": message}
        self.outbox.put(fields, flush=True, blocking=False)

    def check(self, call: Call, columns: List[wire.Column]) -> None:
        """Raises when an answer does not have the request's rows."""
        for column in columns:
            if column.rows != call.rows:
                raise AnswerError(
                    "output column '%s' of the model has %d rows and the request has %d"
                    % (column.name, column.rows, call.rows))
            if call.rows and column.size() // call.rows > LONGEST_PART:
                raise AnswerError("output column '%s' of the model has rows longer than 512 MiB"
                                  % column.name)

    def part(self, call: Call, columns: List[wire.Column], start: int) -> int:
        """Puts the next rows of an answer, as far as there is credit; returns where they end."""
        size = sum(column.size() for column in columns)
        most = call.rows - start
        if size > LONGEST_PART:
            most = min(most, max(1, call.rows * LONGEST_PART // size))
        stop = start + call.take_credit(most)
        if stop == start:
            return start
        if stop - start < call.rows:
            columns = [column.slice(start, stop) for column in columns]
        # The last rows travel with the end of the call.
        self.outbox.put({"op": "rows", "id": call.id, "rows": stop - start}, columns,
                        hold=stop == call.rows, blocking=not self.model.is_async)
        return stop

    def enqueue(self, call: Call) -> None:
        """Has the code of a call run."""
        raise NotImplementedError

    def stop(self, call: Call) -> None:
        """Stops the work of a cancelled call that does not wait for credit."""
        raise NotImplementedError

    def run(self) -> None:
        """Runs calls on this thread until `finish`."""
        raise NotImplementedError

    def finish(self) -> None:
        """Has `run` unload the model and return."""
        raise NotImplementedError


class ThreadCalls(Calls):
    """Calls of synchronous models, on threads."""

    def __init__(self, model: Model, outbox: Outbox, directory: str) -> None:
        super().__init__(model, outbox, directory)
        self._jobs: "queue.SimpleQueue[Optional[tuple]]" = queue.SimpleQueue()
        self._threads: List[threading.Thread] = []

    def enqueue(self, call: Call) -> None:
        call.queued = call.open
        for item in range(call.open):
            self._jobs.put((call, item))

    def stop(self, call: Call) -> None:
        # Work that has not begun ends now, however long the work before it takes.
        with self._lock:
            dropped, call.queued = call.queued, 0
        if dropped:
            self.done(call, dropped)

    def _begin(self, call: Call) -> bool:
        """Whether the next piece of work of a call is still wanted."""
        with self._lock:
            if call.queued == 0:
                return False
            call.queued -= 1
            return True

    def run(self) -> None:
        for number in range(1, self.model.concurrency):
            thread = threading.Thread(target=self._work, name="volley-%d" % number, daemon=True)
            thread.start()
            self._threads.append(thread)
        self._work()
        for thread in self._threads:
            thread.join()
        self.model.unload()

    def finish(self) -> None:
        for _ in range(len(self._threads) + 1):
            self._jobs.put(None)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            call, item = job
            if not self._begin(call):
                continue
            token = CURRENT.set(call)
            is_borrowed = False
            try:
                is_borrowed = self._run(call, item)
            except BaseException as error:  # sys.exit in a model ends its call only
                self.failed(call, error)
                error = None
            finally:
                CURRENT.reset(token)
            self.done(call)
            if is_borrowed:
                # The model may write into its arrays again.
                self.outbox.wait_written()
            # Memory of the request is not kept until the next one.
            job = call = None

    def _run(self, call: Call, item: int) -> bool:
        """Runs the model's code; whether the outbox has got memory of the model."""
        if self.model.task == "generate":
            def emit(text: Optional[str], reason: Optional[str] = None) -> None:
                call.emit(item, text, reason)

            self.model.generate(row_of(call.columns, item, call.parameters), emit)
            return False
        if self.model.task == "events":
            self.model.stream(call.rows, call.columns, call.parameters, call.send)
            return False
        columns = self.model.answer(call.rows, call.columns, call.parameters)
        self.check(call, columns)
        start = 0
        while start < call.rows and not call.cancelled:
            after = self.part(call, columns, start)
            if after == start:
                call.wait_for_credit()
            start = after
        return any(column.type not in wire.TEXTS for column in columns)


def make(model: Model, outbox: Outbox, directory: str) -> Calls:
    """Runs calls as the model wants it."""
    own = model.own_calls(outbox, directory)
    if own is not None:
        return own
    if model.is_async:
        from .loop import LoopCalls
        return LoopCalls(model, outbox, directory)
    sys.setswitchinterval(0.001)
    return ThreadCalls(model, outbox, directory)
