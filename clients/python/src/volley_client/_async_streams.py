"""Streams of the asynchronous client."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import AsyncGenerator, AsyncIterator, Deque, List, Optional, Tuple, Type, TypeVar

import pyarrow as pa

from ._core import Core
from ._plans import Plan, Unit
from ._progress import Bar
from ._streams import answer
from .errors import CancelledError
from .results import Assembler, Chunk, Generation, Rows

S = TypeVar("S", bound="_Closeable")


class _Closeable:
    async def aclose(self) -> None:
        raise NotImplementedError

    async def __aenter__(self: S) -> S:
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.aclose()


class AsyncRowStream(_Closeable):
    """Answers to rows as record batches, in the order of the rows.

    At most `concurrency` exchanges run or wait to be read. A cancellation of the task that reads,
    and `aclose`, cancel them. The rows of the request are read in another thread, because reading
    them may block.
    """

    def __init__(self, core: Core, plan: Plan) -> None:
        self._core = core
        self._plan = plan
        self._transport = core.transport(plan.transport)
        self._waiting: Deque[Tuple[Unit, asyncio.Task[pa.RecordBatch]]] = deque()
        self._bar = Bar(plan.progress, plan.total, plan.call.model)
        self._is_closed = self._has_ended = False

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        if self._has_ended:
            raise StopAsyncIteration
        if self._is_closed:
            raise CancelledError("the stream was closed before its last row")
        try:
            await self._fill()
            if not self._waiting:
                self._has_ended = True
                raise StopAsyncIteration
            unit, task = self._waiting[0]
            found = unit.answered(await task)
            self._waiting.popleft()
        except BaseException:
            await self.aclose()
            raise
        self._bar.add(found.num_rows)
        return found

    async def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        while len(self._waiting) < self._plan.concurrency:
            unit = await loop.run_in_executor(None, next, self._plan.units, None)
            if unit is None:
                return
            work = answer(self._core, self._transport, self._plan, unit)
            self._waiting.append((unit, asyncio.ensure_future(work)))

    async def aclose(self) -> None:
        """Cancels what is not answered yet."""
        if self._is_closed:
            return
        self._is_closed = True
        tasks = [task for _, task in self._waiting]
        self._waiting.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._bar.close()

    async def collect(self) -> Rows:
        """Returns all answers at once."""
        async with self:
            return Rows(pa.Table.from_batches([batch async for batch in self]))


class AsyncGenerationStream(_Closeable):
    """The chunks of generated text as they arrive. Closing the stream stops the model."""

    def __init__(self, chunks: AsyncGenerator[Chunk, None], ids: Optional[List[str]]) -> None:
        self._chunks = chunks
        self._ids = ids
        self._last_event_id: Optional[str] = None
        self._is_closed = self._has_ended = False

    @property
    def id(self) -> Optional[str]:
        """The id of a resumable stream, once its first chunk has arrived; else `None`."""
        return self._ids[0] if self._ids else None

    @property
    def last_event_id(self) -> Optional[str]:
        """The id of the last event of a resumable stream that was read."""
        return self._last_event_id

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        if self._is_closed and not self._has_ended:
            raise CancelledError("the stream was closed before its end")
        try:
            chunk = await self._chunks.__anext__()
        except StopAsyncIteration:
            self._has_ended = True
            raise
        self._last_event_id = chunk.event_id or self._last_event_id
        return chunk

    async def aclose(self) -> None:
        """Closes the connection. A plain stream stops its model; a resumable one goes on for the
        cluster's `resume.window`."""
        self._is_closed = True
        await self._chunks.aclose()

    async def collect(self) -> Generation:
        """Reads the rest of the stream and returns the answers to the first prompt."""
        assembler = Assembler()
        async with self:
            async for chunk in self:
                assembler.add(chunk)
        return assembler.generation(0)
