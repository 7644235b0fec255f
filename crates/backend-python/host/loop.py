"""Calls of asynchronous models, on one event loop."""

from __future__ import annotations

import asyncio
from typing import List, Optional

from .calls import TURN, Call, Calls
from .context import CURRENT, Cancelled
from .events import Event
from .interfaces.base import Model, row_of
from .outbox import Outbox
from .wire import Column

_LOOP: Optional[asyncio.AbstractEventLoop] = None


def event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of the process; interfaces that load asynchronously use it too."""
    global _LOOP
    if _LOOP is None:
        _LOOP = asyncio.new_event_loop()
        asyncio.set_event_loop(_LOOP)
    return _LOOP


class LoopCalls(Calls):
    """Calls on the event loop, as many at once as the model declares."""

    def __init__(self, model: Model, outbox: Outbox, directory: str) -> None:
        super().__init__(model, outbox, directory)
        self._loop = event_loop()
        self._slots: Optional[asyncio.Semaphore] = None

    def enqueue(self, call: Call) -> None:
        self._loop.call_soon_threadsafe(self._begin, call)

    def _begin(self, call: Call) -> None:
        for item in range(call.open):
            task = self._loop.create_task(self._work(call, item))
            call.tasks.append(task)
            # Also for a task that is cancelled before it begins.
            task.add_done_callback(lambda _: self.done(call))

    def stop(self, call: Call) -> None:
        def cancel() -> None:
            for task in call.tasks:
                task.cancel()

        self._loop.call_soon_threadsafe(cancel)

    def run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
                break
            except (SystemExit, KeyboardInterrupt):
                # asyncio raises them through the loop; the call itself has failed already.
                continue
        result = self.model.unload()
        if asyncio.iscoroutine(result):
            self._loop.run_until_complete(result)

    def finish(self) -> None:
        asyncio.run_coroutine_threadsafe(self._drain(), self._loop)

    async def _drain(self) -> None:
        """Stops the loop when all calls have ended."""
        tasks = [task for call in list(self._calls.values()) for task in call.tasks]
        if tasks:
            await asyncio.wait(tasks)
        self._loop.stop()

    async def _work(self, call: Call, item: int) -> None:
        if self._slots is None:
            self._slots = asyncio.Semaphore(self.model.concurrency)
        CURRENT.set(call)
        try:
            async with self._slots:
                if not call.cancelled:
                    await self._run(call, item)
        except asyncio.CancelledError as error:
            if not call.cancelled:
                self.failed(call, error)
        except BaseException as error:  # sys.exit in a model ends its call only
            self.failed(call, error)

    async def _run(self, call: Call, item: int) -> None:
        if self.model.task == "generate":
            row = row_of(call.columns, item, call.parameters)
            await self.model.generate(row, Emitter(call, item))
            return
        if self.model.task == "events":
            await self.model.stream(call.rows, call.columns, call.parameters, Sender(call))
            return
        columns = await self.model.answer(call.rows, call.columns, call.parameters)
        self.check(call, columns)
        start = 0
        while start < call.rows and not call.cancelled:
            after = self.part(call, columns, start)
            if after == start:
                await wait_for_credit(call)
            start = after


class Emitter:
    """Where an asynchronous model puts its pieces: `await emit(text, reason)`."""

    def __init__(self, call: Call, item: int) -> None:
        self._call = call
        self._item = item
        self._count = 0

    async def __call__(self, text: Optional[str], reason: Optional[str] = None) -> None:
        call = self._call
        self._count += 1
        if self._count % TURN == 0:
            # A generator that never waits would keep the others from their turn.
            await asyncio.sleep(0)
        if call.cancelled:
            raise Cancelled()
        while not call.try_emit(self._item, text, reason):
            await wait_for_credit(call)


class Sender:
    """Where an asynchronous model puts its events: `await send(columns)`."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._count = 0

    async def __call__(self, columns: List[Column]) -> None:
        call = self._call
        event = Event(columns)
        self._count += 1
        if self._count % TURN == 0:
            await asyncio.sleep(0)
        if call.cancelled:
            raise Cancelled()
        while not call.outbox.event(call, event, False):
            await wait_for_credit(call, event.cost)


async def wait_for_credit(call: Call, wanted: int = 1) -> None:
    """Waits until there is so much credit or the call is cancelled."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(changed.set)

    while not call.cancelled:
        with call.outbox.lock:
            if call.credit >= wanted:
                return
            changed.clear()
            call.waiters.append(wake)
        try:
            await changed.wait()
        finally:
            with call.outbox.lock:
                call.waiters.remove(wake)
    raise Cancelled()
