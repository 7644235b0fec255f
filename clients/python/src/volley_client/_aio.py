"""Small parts for asyncio: a loop in a thread, and closing of asynchronous iterators."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, AsyncGenerator, AsyncIterator, Callable, Coroutine, Generic, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def closing(generator: AsyncGenerator[T, None]) -> AsyncIterator[AsyncGenerator[T, None]]:
    """Closes an asynchronous generator at the end of the block, also after a cancellation."""
    try:
        yield generator
    finally:
        await generator.aclose()


class Portal:
    """An event loop in a thread of its own, which synchronous code gives work to."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="volley-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts work; cancelling the future cancels the work."""
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("the client is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs work to its end. An interrupt of the caller cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Cancels what still runs, does `last`, and ends the thread."""
        if self._loop.is_closed():
            return
        self.submit(_cancel_others()).result(timeout=10)
        self.submit(last()).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._loop.is_closed()


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Handover(Generic[T]):
    """Items of a thread that one task of an event loop takes, with a bounded number in between."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bound: int) -> None:
        self._loop = loop
        self._queue: asyncio.Queue[T] = asyncio.Queue()
        self._places = threading.Semaphore(bound)
        self._left = False

    def put(self, item: T) -> bool:
        """Waits for a place and hands an item over. Returns false if nobody takes it. Blocks."""
        if not self._left:
            self._places.acquire()
        if self._left:
            return False
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)
        except RuntimeError:  # The loop was closed meanwhile.
            return False
        return True

    async def get(self) -> T:
        """Returns the next item."""
        item = await self._queue.get()
        self._places.release()
        return item

    def leave(self) -> None:
        """Lets the thread go: nothing will be taken any more."""
        self._left = True
        self._places.release()
