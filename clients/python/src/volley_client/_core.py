"""Calls with retries: which coordinator gets what, and what is sent again.

An answer has one row for each row of a batch, in order, so the rows that have no answer are known
whenever a connection breaks. Only those are sent again.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field, replace
from typing import (
    Any,
    AsyncGenerator,
    Awaitable,
    Callable,
    Dict,
    List,
    Mapping,
    Optional,
    Tuple,
    TypeVar,
)
from urllib.parse import quote

import pyarrow as pa

from ._aio import closing
from ._endpoints import Endpoint, Endpoints, by_transport
from ._flight import FlightTransport
from ._inputs import joined
from ._rest import RestTransport
from .errors import (
    ConnectionLostError,
    InternalError,
    OverloadedError,
    StreamGoneError,
    UnavailableError,
    VolleyError,
    too_late,
)
from .results import Assembler, Choice, Chunk, Generation, generated
from .settings import TLS, Call, Retry

T = TypeVar("T")

REPEATABLE = (ConnectionLostError, UnavailableError, OverloadedError)


@dataclass(frozen=True)
class Settings:
    """What a client was made with."""

    urls: List[str]
    api_key: Optional[str] = field(repr=False)
    tls: Optional[TLS]
    retry: Retry
    exchange_timeout: float


class Core:
    """The calls of one client. Belongs to one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.endpoints: Dict[str, Endpoints] = by_transport(settings.urls)
        self._retry = settings.retry
        key, tls, longest = settings.api_key, settings.tls, settings.exchange_timeout
        self.flight = FlightTransport(key, tls, longest)
        self.rest = RestTransport(key, tls, longest)
        self._longest = longest

    def transport(self, name: Optional[str]) -> str:
        """Returns the transport of a call: the one that is named, else Flight if there is a URL.

        Raises:
            ValueError: The client has no URL of that transport.
        """
        if name is None:
            return "flight" if "flight" in self.endpoints else "rest"
        if name not in ("flight", "rest"):
            raise ValueError(f"transport '{name}' must be 'flight' or 'rest'")
        if name not in self.endpoints:
            schemes = "grpc:// or grpc+tls://" if name == "flight" else "http:// or https://"
            raise ValueError(
                f"this call needs the transport '{name}': add a URL with {schemes} to 'urls'"
            )
        return name

    async def rows(self, transport: str, call: Call, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the answers to the rows of a batch, each exactly once and in order.

        Raises:
            VolleyError: A row has no answer after all attempts.
        """
        channel = self.flight if transport == "flight" else self.rest
        received: List[pa.RecordBatch] = []
        attempts = _Attempts(self, transport, call)
        rows = 0
        while True:
            endpoint = attempts.endpoint()
            try:
                answers = channel.rows(endpoint, attempts.call(), batch.slice(rows))
                async with closing(answers) as parts:
                    async for part in parts:
                        rows += part.num_rows
                        if part.num_rows or not received:
                            received.append(part)
                        attempts.progress(part.num_rows)
                        if rows > batch.num_rows:
                            raise InternalError("the model answered with more rows than it got")
                if rows < batch.num_rows:
                    raise ConnectionLostError("the answer ended before its last row")
            except VolleyError as error:
                if rows == batch.num_rows and batch.num_rows and attempts.repeats(error):
                    return joined(received)
                await attempts.failed(endpoint, error)
                continue
            attempts.worked(endpoint)
            return joined(received)

    async def generations(
        self, transport: str, call: Call, batch: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Returns one generation for each prompt of a batch, exactly once and in order.

        Prompts without a complete answer are sent again.

        Raises:
            VolleyError: A prompt has no answer after all attempts.
        """
        choices: Dict[int, Choice] = {}
        attempts = _Attempts(self, transport, call)
        while True:
            endpoint = attempts.endpoint()
            waiting = [row for row in range(batch.num_rows) if row not in choices]
            assembler = Assembler()
            try:
                rest = batch.take(pa.array(waiting, pa.int64()))
                async with closing(
                    self._chunks(transport, endpoint, attempts.call(), rest)
                ) as all_:
                    async for chunk in all_:
                        assembler.add(chunk)
                if waiting and not assembler.is_complete:
                    raise ConnectionLostError("the stream ended without its last row")
                failure: Optional[VolleyError] = None
            except VolleyError as error:
                failure = error
            for place, row in enumerate(waiting):
                if assembler.ended(place):
                    choices[row] = assembler.first(place)
                    attempts.progress(1)
            if failure is not None and not attempts.repeats(failure):
                raise failure
            if len(choices) == batch.num_rows:
                attempts.worked(endpoint)
                return generated([choices[row] for row in range(batch.num_rows)])
            missing = failure or InternalError("the model did not answer every prompt")
            await attempts.failed(endpoint, missing)

    def _chunks(
        self, transport: str, endpoint: Endpoint, call: Call, batch: pa.RecordBatch
    ) -> AsyncGenerator[Chunk, None]:
        if transport == "flight":
            return self.flight.chunks(endpoint, call, batch)
        return self.rest.chunks(endpoint, call, batch)

    async def generation(
        self, transport: Optional[str], call: Call, batch: pa.RecordBatch
    ) -> Generation:
        """Returns the complete answers to one prompt.

        Raises:
            VolleyError: The call failed after all attempts.
        """
        name = self.transport(transport)
        attempts = _Attempts(self, name, call)
        while True:
            endpoint = attempts.endpoint()
            assembler = Assembler()
            try:
                chunks = self._chunks(name, endpoint, attempts.call(), batch)
                async with closing(chunks) as all_:
                    async for chunk in all_:
                        assembler.add(chunk)
                if not assembler.is_complete:
                    raise ConnectionLostError("the stream ended without its last row")
            except VolleyError as error:
                await attempts.failed(endpoint, error)
                continue
            attempts.worked(endpoint)
            return assembler.generation(0)

    def streamed(
        self, transport: Optional[str], call: Call, batch: pa.RecordBatch, resumable: bool
    ) -> Tuple[AsyncGenerator[Chunk, None], Optional[List[str]]]:
        """Returns the chunks of a stream, and the list that receives its id if it is resumable.

        Raises:
            ValueError: A resumable stream was asked for over Flight.
        """
        if not resumable:
            return self.stream(self.transport(transport), call, batch), None
        if transport == "flight":
            raise ValueError("streams over Flight cannot be resumed; use transport='rest'")
        self.transport("rest")
        ids: List[str] = []
        return self.resumable(call, batch, ids), ids

    async def stream(
        self, transport: str, call: Call, batch: pa.RecordBatch
    ) -> AsyncGenerator[Chunk, None]:
        """Yields the chunks of generations. It is sent again only before its first chunk.

        Raises:
            VolleyError: The stream failed.
        """
        attempts = _Attempts(self, transport, call)
        while True:
            endpoint = attempts.endpoint()
            begun = is_complete = False
            try:
                chunks = self._chunks(transport, endpoint, attempts.call(), batch)
                async with closing(chunks) as all_:
                    async for chunk in all_:
                        begun, is_complete = True, chunk.last
                        yield chunk
                if not is_complete:
                    raise ConnectionLostError("the stream ended without its last row")
            except VolleyError as error:
                if begun:
                    self.endpoint_failed(transport, endpoint, error)
                    raise
                await attempts.failed(endpoint, error)
                continue
            attempts.worked(endpoint)
            return

    async def resumable(
        self,
        call: Call,
        batch: Optional[pa.RecordBatch],
        ids: List[str],
        after: Optional[str] = None,
    ) -> AsyncGenerator[Chunk, None]:
        """Yields the chunks of a resumable stream, and resumes it whenever its connection breaks.

        Args:
            call: The terms of the call.
            batch: The prompts of a new stream, or `None` to resume the stream in `ids`.
            ids: Receives the id of the stream once it has one.
            after: The id of the last event that the caller has.

        Raises:
            StreamGoneError: The stream cannot be resumed.
            VolleyError: The stream failed.
        """
        attempts = _Attempts(self, "rest", call)
        while True:
            endpoint = attempts.endpoint()
            try:
                if ids:
                    chunks = self.rest.resume(endpoint, call, ids[0], after)
                elif batch is not None:
                    chunks = self.rest.chunks(endpoint, attempts.call(), batch, ids)
                else:
                    raise StreamGoneError("the stream has no id")
                async with closing(chunks) as all_:
                    async for chunk in all_:
                        after = chunk.event_id or after
                        attempts.progress(1)
                        yield chunk
                        if chunk.last:
                            attempts.worked(endpoint)
                            return
                raise ConnectionLostError("the stream ended without its last event")
            except VolleyError as error:
                await attempts.failed(endpoint, error)

    async def cancel_stream(self, stream_id: str) -> None:
        """Ends a resumable stream and its work."""
        await self.request("DELETE", f"/v1/streams/{quote(stream_id, safe='.')}")

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Optional[Mapping[str, Any]] = None,
        body: Any = None,
        timeout: Optional[float] = None,
    ) -> Any:
        """Sends a request of management.

        Reads are repeated after a lost connection. A write is repeated only if it cannot have
        reached a coordinator.
        """
        self.transport("rest")
        call = Call(model="")
        seconds = self._longest if timeout is None else timeout
        attempts = _Attempts(self, "rest", call)
        while True:
            endpoint = attempts.endpoint()
            try:
                found = await self.rest.request(
                    endpoint, method, path, query=query, body=body, seconds=seconds
                )
            except VolleyError as error:
                lost = isinstance(error, ConnectionLostError)
                if method != "GET" and not (lost and not getattr(error, "connected", True)):
                    self.endpoint_failed("rest", endpoint, error)
                    raise
                await attempts.failed(endpoint, error)
                continue
            attempts.worked(endpoint)
            return found

    async def over_flight(self, work: Callable[[Endpoint], Awaitable[T]]) -> T:
        """Runs a read over Flight, at another coordinator if one is lost."""
        attempts = _Attempts(self, self.transport("flight"), Call(model=""))
        while True:
            endpoint = attempts.endpoint()
            try:
                found = await work(endpoint)
            except VolleyError as error:
                await attempts.failed(endpoint, error)
                continue
            attempts.worked(endpoint)
            return found

    def endpoint_failed(self, transport: str, endpoint: Endpoint, error: VolleyError) -> None:
        """Lets a coordinator rest whose connection was lost."""
        if isinstance(error, ConnectionLostError):
            self.endpoints[transport].failed(endpoint)
            (self.flight if transport == "flight" else self.rest).forget(endpoint)

    @property
    def retry(self) -> Retry:
        """How often work is sent again."""
        return self._retry

    async def close(self) -> None:
        """Closes all connections."""
        self.flight.close()
        await self.rest.close()


class _Attempts:
    """Counts the attempts of one piece of work, and pauses between them."""

    def __init__(self, core: Core, transport: str, call: Call) -> None:
        self._core = core
        self._transport = transport
        self._call = call
        self._failures = 0
        self._first = True

    def endpoint(self) -> Endpoint:
        return self._core.endpoints[self._transport].next()

    def call(self) -> Call:
        """Returns the call, with another request id for each attempt after the first."""
        if self._first:
            self._first = False
            return self._call
        return replace(self._call, request_id=uuid.uuid4().hex)

    def progress(self, rows: int) -> None:
        if rows:
            self._failures = 0

    def worked(self, endpoint: Endpoint) -> None:
        self._core.endpoints[self._transport].works(endpoint)

    def repeats(self, error: VolleyError) -> bool:
        """Returns whether a later attempt can succeed."""
        return isinstance(error, REPEATABLE) and error.reason != "quota_exhausted"

    async def failed(self, endpoint: Endpoint, error: VolleyError) -> None:
        """Returns when the next attempt may begin.

        Raises:
            VolleyError: `error`, if it cannot be repeated or all attempts failed.
        """
        self._core.endpoint_failed(self._transport, endpoint, error)
        self._failures += 1
        if not self.repeats(error) or self._failures >= self._core.retry.attempts:
            raise error
        others = self._core.endpoints[self._transport]
        if isinstance(error, ConnectionLostError) and others.has_untried():
            return
        pause = self._core.retry.pause(self._failures, error.retry_after)
        if self._call.deadline.left(pause) < pause:
            raise too_late() from error
        await asyncio.sleep(pause)
