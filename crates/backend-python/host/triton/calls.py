"""Calls of Triton's models: requests that wait run in one call of `execute`, and senders answer
them during it or after it.

The main thread runs `execute`, one call of it at a time. A coroutine runs on an event loop on a
thread of its own: the main thread waits for it, or in decoupled mode goes on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional

from .. import errors
from ..calls import Call, Calls
from ..context import CURRENT, Cancelled, InvalidInput
from ..interfaces.base import AnswerError
from ..loop import event_loop
from ..outbox import Outbox
from ..wire import Column
from . import tensors, values

#: Seconds that requests may take to end when the model is unloaded.
UNLOAD_GRACE = 3.0
CODES = {
    values.TritonError.NOT_FOUND: "not_found",
    values.TritonError.INVALID_ARG: "invalid_input",
    values.TritonError.ALREADY_EXISTS: "invalid_input",
    values.TritonError.UNSUPPORTED: "unsupported",
    values.TritonError.UNAVAILABLE: "overloaded",
    values.TritonError.CANCELLED: "cancelled",
}


class Work:
    """A call with its requests."""

    __slots__ = ("call", "arrived", "left", "parts", "has_begun", "has_ended")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.arrived = time.monotonic()
        #: Requests without their last response.
        self.left = 0
        #: The arrays of the responses, by the place of the request.
        self.parts: List[Optional[List[Any]]] = []
        self.has_begun = False
        self.has_ended = False


class Request:
    """One request of a call: some of its rows."""

    __slots__ = ("work", "place", "start", "stop", "is_closed", "has_sender")

    def __init__(self, work: Work, place: int, start: int, stop: int) -> None:
        self.work = work
        self.place = place
        self.start = start
        self.stop = stop
        self.is_closed = False
        self.has_sender = False

    @property
    def rows(self) -> int:
        """The rows of the request."""
        return self.stop - self.start


class TritonCalls(Calls):
    """The calls of one model."""

    def __init__(self, model: Any, outbox: Outbox, directory: str) -> None:
        super().__init__(model, outbox, directory)
        self._changed = threading.Condition()
        self._waiting: Deque[Work] = deque()
        #: Requests of calls that have begun, in order. Only the main thread uses it.
        self._requests: Deque[Request] = deque()
        self._works: Dict[int, Work] = {}
        self._is_closing = False
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._has_warned = False

    def enqueue(self, call: Call) -> None:
        work = Work(call)
        with self._changed:
            self._works[call.id] = work
            self._waiting.append(work)
            self._changed.notify_all()

    def stop(self, call: Call) -> None:
        """Ends a cancelled call that waits, or one that runs beside others: the worker kills the
        process of a call that does not end, and the others would end with it."""
        with self._changed:
            work = self._works.get(call.id)
            if work is None:
                return
            others = [other for other in self._works.values()
                      if other.has_begun and not other.call.cancelled]
            ends = not work.has_begun or bool(others)
        if ends:
            self._end(work)

    def run(self) -> None:
        while True:
            batch = self._next()
            if batch is None:
                break
            self._execute(batch)
            batch = None
        end = time.monotonic() + UNLOAD_GRACE
        with self._changed:
            self._changed.wait_for(lambda: not self._works, max(0.0, end - time.monotonic()))
        self.model.unload()

    def finish(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    # Which requests run.

    def _next(self) -> Optional[List[Request]]:
        """The requests of the next call of `execute`; None at the end."""
        first = self._take(None)
        if first is None:
            return None
        batch, rows = [first], first.rows
        if not self.model.merges:
            return batch
        due = first.work.arrived + self.model.delay
        while rows < self.model.target:
            following = self._take(due, self.model.target - rows, first)
            if following is None:
                break
            batch.append(following)
            rows += following.rows
        return batch

    def _take(self, due: Optional[float], most: Optional[int] = None,
              like: Optional[Request] = None) -> Optional[Request]:
        """The next request, if it has `most` rows at most and fits to another one; waits for it
        until `due`, or without `due` until the end."""
        while True:
            while not self._requests:
                with self._changed:
                    left = None if due is None else due - time.monotonic()
                    if not self._waiting:
                        if self._is_closing or (left is not None and left <= 0):
                            return None
                        self._changed.wait(left)
                        continue
                    work = self._waiting.popleft()
                    if work.has_ended:
                        continue
                self._cut(work)
            request = self._requests[0]
            if request.work.call.cancelled or request.work.call.error is not None:
                self._requests.popleft()
                self._close(request)
                continue
            if most is not None and request.rows > most:
                return None
            if like is not None and not self.model.fits(self._columns(like), self._columns(request),
                                                        like.start, request.start):
                return None
            return self._requests.popleft()

    @staticmethod
    def _columns(request: Request) -> Dict[str, Column]:
        return request.work.call.columns

    def _cut(self, work: Work) -> None:
        """Makes the requests of a call."""
        call = work.call
        places = tensors.cut(call.columns, call.rows, self.model.most)
        if self.model.decoupled and len(places) > 1:
            # Nobody could say which of them an event answers.
            error = InvalidInput(
                "the request has %d rows and the model, which streams, takes %s; send a request "
                "for each" % (call.rows, self.model.takes()))
            self.failed(call, error)
            places = []
        if not places:
            self._end(work)
        work.left = len(places)
        work.parts = [None] * len(places)
        self._requests.extend(Request(work, place, start, stop)
                              for place, (start, stop) in enumerate(places))

    # Running.

    def _execute(self, batch: List[Request]) -> None:
        """Runs the model's code on requests."""
        if self.model.decoupled:
            self._abandon()
        for request in batch:
            request.work.has_begun = True
        token = CURRENT.set(batch[0].work.call)
        try:
            requests = [self._request(request) for request in batch]
            result = self.model.instance.execute(requests)
            if asyncio.iscoroutine(result):
                future = asyncio.run_coroutine_threadsafe(result, self._event_loop())
                if self.model.decoupled:
                    future.add_done_callback(lambda done: self._returned(batch, done))
                    return
                result = future.result()
            self._respond(batch, result)
        except BaseException as error:  # noqa: B902 - sys.exit in a model ends its calls only
            self._fail(batch, error)
        finally:
            CURRENT.reset(token)
        # The model may write into its arrays again.
        self.outbox.wait_written()

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = loop = event_loop()

            def run() -> None:
                asyncio.set_event_loop(loop)
                while True:
                    try:
                        loop.run_forever()
                    except (SystemExit, KeyboardInterrupt):
                        # asyncio raises them through the loop; the call itself has failed already.
                        continue

            threading.Thread(target=run, name="volley-loop", daemon=True).start()
        return self._loop

    def _returned(self, batch: List[Request], done: Any) -> None:
        """The end of a coroutine in decoupled mode."""
        error = done.exception() if not done.cancelled() else asyncio.CancelledError()
        try:
            if error is not None:
                raise error
            self._respond(batch, done.result())
        except BaseException as raised:  # noqa: B902 - as in `_execute`
            self._fail(batch, raised)

    def _request(self, request: Request) -> values.InferenceRequest:
        """A request as the model gets it."""
        call = request.work.call
        made = self.model.request(call, request.start, request.stop)

        def is_cancelled() -> bool:
            return call.cancelled

        def put(response: Optional[values.InferenceResponse], is_final: bool) -> None:
            self._put(request, response, is_final)

        def open_sender() -> values.InferenceResponseSender:
            request.has_sender = True
            return values.InferenceResponseSender(put, is_cancelled)

        made._ask_cancelled = is_cancelled
        made._open_sender = open_sender
        return made

    # Responses.

    def _respond(self, batch: List[Request], responses: Any) -> None:
        """Takes what `execute` returned."""
        if self.model.decoupled:
            if responses is not None:
                raise AnswerError("execute of a decoupled model returned %s; it must return None "
                                  "and send its responses" % type(responses).__name__)
            silent = [request for request in batch
                      if not request.has_sender and not request.is_closed]
            if silent:
                self._fail(silent, AnswerError("execute of a decoupled model returned and did not "
                                               "get the response sender of a request"))
            return
        if responses is None and all(request.has_sender for request in batch):
            return
        if not isinstance(responses, (list, tuple)):
            raise AnswerError("execute returned %s and must return a list of responses"
                              % type(responses).__name__)
        if len(responses) != len(batch):
            raise AnswerError("execute returned %d responses for %d requests"
                              % (len(responses), len(batch)))
        for request, response in zip(batch, responses):
            if response is None and request.has_sender:
                continue
            if not isinstance(response, values.InferenceResponse):
                self._fail([request], AnswerError(
                    "execute returned %s in its list; it must have an InferenceResponse for each "
                    "request" % type(response).__name__))
            else:
                self._accept(request, response, True)
                self._close(request)

    def _put(self, request: Request, response: Optional[values.InferenceResponse],
             is_final: bool) -> None:
        """Takes what a response sender sends."""
        if request.is_closed:
            raise values.TritonModelException(
                "the response sender is closed: its request has had its last response, or an error")
        if response is not None:
            refused = self._accept(request, response, is_final)
            if refused is not None:
                # The caller gets the error now, and the model need not go on.
                self._end(request.work)
                raise values.TritonModelException(str(refused)) from refused
        if is_final:
            self._close(request)
            self.outbox.wait_written()

    def _accept(self, request: Request, response: values.InferenceResponse,
                is_final: bool) -> Optional[BaseException]:
        """Keeps or sends the response to a request; returns why it cannot be sent."""
        work = request.work
        error = response.error()
        if error is not None:
            work.call.fail(CODES.get(error.code(), "internal"), errors.clean(error.message()))
            return None
        if work.call.cancelled or work.has_ended:
            return None
        if response.parameters() != "{}" and not self._has_warned:
            self._has_warned = True
            logging.getLogger("triton").warning("parameters of responses are not sent to callers")
        try:
            if self.model.decoupled:
                self._send_event(work.call, response, is_final)
            else:
                self._keep(request, response, is_final)
        except BaseException as raised:  # noqa: B902 - arrays of the model may raise anything
            self.failed(work.call, raised)
            return raised
        return None

    def _send_event(self, call: Call, response: values.InferenceResponse, is_final: bool) -> None:
        """Sends a response at once; waits while the caller does not read."""
        if is_final and not response.output_tensors():
            # The mark of the end only.
            return
        arrays = self.model.outputs_of(response.output_tensors(), None)
        try:
            call.send(self.model.columns_of([arrays]))
        except Cancelled:
            # As in Triton, a model learns of it with is_cancelled().
            pass

    def _keep(self, request: Request, response: values.InferenceResponse, is_final: bool) -> None:
        """Keeps a response until those to all requests of the call are there."""
        work = request.work
        if work.parts[request.place] is not None:
            raise AnswerError("the model sent a second response to a request; several need "
                              "'model_transaction_policy { decoupled: true }' in config.pbtxt")
        arrays = self.model.outputs_of(response.output_tensors(), request.rows)
        if not is_final or len(work.parts) > 1:
            # They are sent later, and the model may write into its arrays before.
            arrays = [part.copy() for part in arrays]
        work.parts[request.place] = arrays

    def _fail(self, batch: List[Request], error: BaseException) -> None:
        """Fails the requests that have not ended."""
        unfinished = [request for request in batch if not request.is_closed]
        for request in unfinished:
            self.failed(request.work.call, error)
            self._close(request)
        if not unfinished:
            errors.report(error, batch[0].work.call.request.request_id)

    def _close(self, request: Request) -> None:
        """Takes the end of a request, and with the last one that of its call."""
        work = request.work
        with self._changed:
            if request.is_closed:
                return
            request.is_closed = True
            work.left -= 1
            if work.left or work.has_ended:
                return
        call = work.call
        if call.error is None and not call.cancelled and not self.model.decoupled:
            try:
                if None in work.parts:
                    raise AnswerError("the model ended a request without a response")
                if self.emit_columns(call, self.model.columns_of(work.parts)):
                    return
            except BaseException as error:  # noqa: B902 - as in `_accept`
                self.failed(call, error)
        self._end(work)

    def emit_columns(self, call: Call, columns: List[Column]) -> bool:
        """Sends the columns of a response; whether another thread sends the rest of them and ends
        the call."""
        self.check(call, columns)
        start = self.part(call, columns, 0)
        if start == call.rows:
            return False
        # The reader is slow. The model goes on, and may write into its arrays.
        rest = tensors.copied(columns)
        threading.Thread(target=self._emit_rest, args=(call, rest, start), name="volley-rest",
                         daemon=True).start()
        return True

    def _emit_rest(self, call: Call, columns: List[Column], start: int) -> None:
        while start < call.rows and not call.cancelled:
            after = self.part(call, columns, start)
            if after == start:
                call.wait_for_credit()
            start = after
        work = self._works.get(call.id)
        if work is not None:
            self._end(work)

    # Ends.

    def _abandon(self) -> None:
        """Ends the cancelled calls whose code goes on: other calls begin beside them now."""
        with self._changed:
            cancelled = [work for work in self._works.values()
                         if work.has_begun and work.call.cancelled]
        for work in cancelled:
            self._end(work)

    def _end(self, work: Work) -> None:
        """Ends a call, once."""
        with self._changed:
            if work.has_ended:
                return
            work.has_ended = True
            self._works.pop(work.call.id, None)
            self._changed.notify_all()
        self.done(work.call)
