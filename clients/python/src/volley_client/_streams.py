"""Streams of the synchronous client."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from types import TracebackType
from typing import Any, AsyncGenerator, Coroutine, Deque, Iterator, List, Optional, Type, TypeVar

import pyarrow as pa

from ._aio import Portal
from ._core import Core
from ._plans import Plan, Unit
from ._progress import Bar
from .errors import CancelledError
from .results import Assembler, Chunk, Generation, Rows

S = TypeVar("S", bound="_Closeable")


def answer(
    core: Core, transport: str, plan: Plan, unit: Unit
) -> Coroutine[Any, Any, pa.RecordBatch]:
    """Returns the work of one exchange of a plan."""
    if plan.generates:
        return core.generations(transport, plan.call, unit.sent)
    return core.rows(transport, plan.call, unit.sent)


class _Closeable:
    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: S) -> S:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()


class RowStream(_Closeable):
    """Answers to rows as record batches, in the order of the rows.

    Reads the request only as far as needed: at most `concurrency` exchanges run or wait to be read.
    Closing the stream cancels them. Not for several threads at once.
    """

    def __init__(self, portal: Portal, core: Core, plan: Plan) -> None:
        self._portal = portal
        self._core = core
        self._plan = plan
        self._transport = core.transport(plan.transport)
        self._waiting: Deque[tuple[Unit, Future[pa.RecordBatch]]] = deque()
        self._bar = Bar(plan.progress, plan.total, plan.call.model)
        self._is_closed = self._has_ended = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._has_ended:
            raise StopIteration
        if self._is_closed:
            raise CancelledError("the stream was closed before its last row")
        try:
            self._fill()
            if not self._waiting:
                self._has_ended = True
                raise StopIteration
            unit, future = self._waiting[0]
            found = unit.answered(future.result())
            self._waiting.popleft()
        except FutureCancelledError:
            raise CancelledError("the stream was closed before its end") from None
        except BaseException:
            self.close()
            raise
        self._bar.add(found.num_rows)
        return found

    def _fill(self) -> None:
        while len(self._waiting) < self._plan.concurrency:
            unit = next(self._plan.units, None)
            if unit is None:
                return
            work = answer(self._core, self._transport, self._plan, unit)
            self._waiting.append((unit, self._portal.submit(work)))

    def close(self) -> None:
        """Cancels what is not answered yet."""
        if self._is_closed:
            return
        self._is_closed = True
        for _, future in self._waiting:
            future.cancel()
        self._waiting.clear()
        self._bar.close()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):
            self.close()

    def collect(self) -> Rows:
        """Returns all answers at once."""
        with self:
            return Rows(pa.Table.from_batches(list(self)))

    def to_reader(self) -> pa.RecordBatchReader:
        """Returns the answers as a `pyarrow.RecordBatchReader`, which DuckDB, polars and Parquet's
        writer read batch by batch."""
        first = next(self)

        def batches() -> Iterator[pa.RecordBatch]:
            with self:
                yield first
                yield from self

        return pa.RecordBatchReader.from_batches(first.schema, batches())


class GenerationStream(_Closeable):
    """The chunks of generated text as they arrive. Closing the stream stops the model."""

    def __init__(
        self, portal: Portal, chunks: AsyncGenerator[Chunk, None], ids: Optional[List[str]]
    ) -> None:
        self._portal = portal
        self._chunks = chunks
        self._ids = ids
        self._running: Optional[Future[Optional[Chunk]]] = None
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

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        if self._has_ended:
            raise StopIteration
        if self._is_closed:
            raise CancelledError("the stream was closed before its end")
        self._running = self._portal.submit(_next(self._chunks))
        try:
            chunk = self._running.result()
        except FutureCancelledError:
            raise CancelledError("the stream was closed before its end") from None
        except BaseException:
            self.close()
            raise
        finally:
            self._running = None
        if chunk is None:
            self._is_closed = self._has_ended = True
            raise StopIteration
        self._last_event_id = chunk.event_id or self._last_event_id
        return chunk

    def close(self) -> None:
        """Closes the connection. A plain stream stops its model; a resumable one goes on for the
        cluster's `resume.window`."""
        if self._is_closed:
            return
        self._is_closed = True
        running = self._running
        if running is not None:
            running.cancel()
        if not self._portal.is_closed:
            self._portal.run(_close(self._chunks))

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):
            self.close()

    def collect(self) -> Generation:
        """Reads the rest of the stream and returns the answers to the first prompt."""
        assembler = Assembler()
        with self:
            for chunk in self:
                assembler.add(chunk)
        return assembler.generation(0)


async def _next(chunks: AsyncGenerator[Chunk, None]) -> Optional[Chunk]:
    """Returns the next chunk; `None` at the end, as a future cannot carry `StopAsyncIteration`."""
    try:
        return await chunks.__anext__()
    except StopAsyncIteration:
        return None


async def _close(chunks: AsyncGenerator[Chunk, None]) -> None:
    """Closes a generator whose last step may still be ending."""
    while True:
        try:
            await chunks.aclose()
            return
        except RuntimeError as error:
            if "already running" not in str(error):
                raise
            await asyncio.sleep(0.005)
