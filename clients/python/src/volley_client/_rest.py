"""Exchanges and management over REST."""

from __future__ import annotations

import json
import ssl
from contextlib import asynccontextmanager
from typing import Any, AsyncGenerator, AsyncIterator, Dict, List, Mapping, Optional
from urllib.parse import quote

import httpx
import pyarrow as pa

from ._aio import closing
from ._endpoints import Endpoint
from ._inputs import no_rows
from ._sse import EventReader
from .errors import (
    ConnectionLostError,
    InvalidInputError,
    StreamGoneError,
    UnavailableError,
    VolleyError,
    of_code,
)
from .results import Chunk
from .settings import TLS, Call

ARROW = "application/vnd.apache.arrow.stream"
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
CONNECT_TIMEOUT = 5.0
SILENCE = 90.0
"""Longest silence of an event stream. Nodes send comments more often; a request waits in a queue for
up to a minute before that."""
GRACE = 5.0
"""Seconds that the server gets beyond the deadline to report that it has passed."""


class RestTransport:
    """Calls of the coordinators that have an HTTP URL. Belongs to one event loop."""

    name = "rest"

    def __init__(self, api_key: Optional[str], tls: Optional[TLS], longest: float) -> None:
        self._longest = longest
        # Compression costs the server 300 KiB for each stream.
        headers = {"accept-encoding": "identity"}
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
        verify: ssl.SSLContext = (tls or TLS()).context()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(
            headers=headers, verify=verify, limits=limits, timeout=_timeout(None)
        )

    async def rows(
        self, endpoint: Endpoint, call: Call, batch: pa.RecordBatch
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Sends a batch and yields the answers; an empty batch if there are none.

        Closing the generator cancels the exchange.

        Raises:
            VolleyError: The exchange failed. Answers before the failure were yielded.
        """
        if call.parameters:
            media, body = "application/json", _json_body(call, batch)
        else:
            media, body = ARROW, _arrow_body(batch)
        headers = {"content-type": media, "accept": ARROW}
        seconds = call.deadline.left(self._longest)
        received = bytearray()
        failure: Optional[VolleyError] = None
        try:
            async with self._stream(endpoint, call, headers, body, seconds, seconds) as response:
                async for piece in response.aiter_raw():
                    received += piece
            if not received.endswith(END_OF_STREAM):
                failure = _broken(endpoint, "the answer ended without its end mark")
        except VolleyError as error:
            failure = error
        except httpx.HTTPError as error:
            failure = _broken(endpoint, str(error))
        for answer in _answers(bytes(received), failure is None):
            yield answer
        if failure is not None:
            raise failure

    async def chunks(
        self,
        endpoint: Endpoint,
        call: Call,
        batch: pa.RecordBatch,
        begun: Optional[List[str]] = None,
    ) -> AsyncGenerator[Chunk, None]:
        """Sends prompts and yields the chunks of their generations.

        Args:
            endpoint: The coordinator.
            call: The terms of the call.
            batch: Rows with the column `prompt` or `messages`.
            begun: Asks for a resumable stream, and receives its id.

        Raises:
            VolleyError: The stream failed.
        """
        headers = {"content-type": "application/x-ndjson", "accept": "text/event-stream"}
        if begun is not None:
            headers["x-volley-stream"] = "resumable"
        seconds = call.deadline.left(self._longest)
        body = _lines(call, batch)
        try:
            silence = min(SILENCE, seconds)
            async with self._stream(endpoint, call, headers, body, seconds, silence) as response:
                if begun is not None:
                    begun.append(response.headers["x-volley-stream-id"])
                async with closing(_chunks(endpoint, response)) as chunks:
                    async for chunk in chunks:
                        yield chunk
        except httpx.HTTPError as error:
            raise _broken(endpoint, str(error)) from error

    async def resume(
        self, endpoint: Endpoint, call: Call, stream_id: str, after: Optional[str]
    ) -> AsyncGenerator[Chunk, None]:
        """Yields the chunks of a resumable stream after an event.

        Raises:
            StreamGoneError: The stream cannot be resumed.
            VolleyError: The stream failed.
        """
        headers = {"accept": "text/event-stream"}
        if after is not None:
            headers["last-event-id"] = after
        silence = call.deadline.left(SILENCE)
        url = f"{endpoint.url}/v1/streams/{quote(stream_id, safe='.')}"
        request = self._http.build_request("GET", url, headers=headers, timeout=_timeout(silence))
        try:
            async with self._sent(request) as response:
                async with closing(_chunks(endpoint, response)) as chunks:
                    async for chunk in chunks:
                        yield chunk
        except httpx.HTTPError as error:
            raise _broken(endpoint, str(error)) from error

    async def request(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        *,
        query: Optional[Mapping[str, Any]] = None,
        body: Any = None,
        seconds: float,
    ) -> Any:
        """Sends a request of management and returns the JSON of the answer.

        Raises:
            VolleyError: The cluster rejected the request, or the connection failed.
        """
        params = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        request = self._http.build_request(
            method, endpoint.url + path, params=params, json=body, timeout=_timeout(seconds)
        )
        try:
            async with self._sent(request) as response:
                text = await response.aread()
        except httpx.HTTPError as error:
            raise _broken(endpoint, str(error), connected=_has_connected(error)) from error
        media = response.headers.get("content-type", "")
        return json.loads(text) if "json" in media and text else text

    @asynccontextmanager
    async def _stream(
        self,
        endpoint: Endpoint,
        call: Call,
        headers: Dict[str, str],
        body: bytes,
        seconds: float,
        silence: float,
    ) -> AsyncIterator[httpx.Response]:
        url = f"{endpoint.url}/_plugins/_ml/models/{quote(call.model, safe=':')}/_predict/stream"
        headers["x-volley-timeout-ms"] = str(max(1, round(seconds * 1000)))
        headers["x-request-id"] = call.request_id
        if call.session is not None:
            headers["x-volley-session"] = call.session
        # asyncio.wait_for loses cancellations before Python 3.12; httpx's own timeouts do not.
        timeout = _timeout(silence + GRACE)
        request = self._http.build_request(
            "POST", url, headers=headers, content=body, timeout=timeout
        )
        async with self._sent(request) as response:
            yield response

    @asynccontextmanager
    async def _sent(self, request: httpx.Request) -> AsyncIterator[httpx.Response]:
        response = await self._http.send(request, stream=True)
        try:
            if response.status_code == 204 and request.method == "GET":
                raise StreamGoneError("the stream has no further events", status=204)
            if response.status_code >= 400:
                raise _error(response, await response.aread())
            yield response
        finally:
            # Closing the connection of an answer that was not read to its end cancels the work.
            await response.aclose()

    def forget(self, endpoint: Endpoint) -> None:
        """Does nothing: the pool makes new connections itself."""

    async def close(self) -> None:
        """Closes all connections."""
        await self._http.aclose()


def _timeout(read: Optional[float]) -> httpx.Timeout:
    return httpx.Timeout(connect=CONNECT_TIMEOUT, read=read, write=60.0, pool=None)


async def _chunks(endpoint: Endpoint, response: httpx.Response) -> AsyncGenerator[Chunk, None]:
    reader = EventReader()
    async for piece in response.aiter_raw():
        for event in reader.feed(piece):
            chunk = _chunk(json.loads(event.data), event.id)
            yield chunk
            if chunk.last:
                return
    raise _broken(endpoint, "the stream ended without its last event")


def _chunk(row: Dict[str, Any], event_id: Optional[str]) -> Chunk:
    if "item" not in row:
        code = str(row.get("code", "internal"))
        raise of_code(code, str(row.get("error")), status=row.get("status"))
    usage = row.get("usage") or {}
    return Chunk(
        item=row["item"],
        choice=row.get("choice", 0),
        text=row.get("text", ""),
        thinking=row.get("thinking", ""),
        tool_calls=row.get("tool_calls", ()),
        citations=row.get("citations", ()),
        logprob=row.get("logprob"),
        finish_reason=row.get("finish_reason"),
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
        error_code=row.get("code"),
        error_message=row.get("error"),
        last=row.get("last", False),
        event_id=event_id,
    )


def _answers(data: bytes, is_complete: bool) -> List[pa.RecordBatch]:
    """Returns the complete batches of an Arrow stream, which may break off anywhere."""
    batches: List[pa.RecordBatch] = []
    if not data:
        return batches
    try:
        reader = pa.ipc.open_stream(pa.py_buffer(data))
        while True:
            batches.append(reader.read_next_batch())
    except StopIteration:
        if not batches:
            batches.append(no_rows(reader.schema))
    except (pa.ArrowInvalid, OSError) as error:
        if is_complete:
            raise VolleyError("the answer is not an Arrow stream", code="internal") from error
    return batches


def _arrow_body(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        if batch.num_rows:
            writer.write_batch(batch)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _json_body(call: Call, batch: pa.RecordBatch) -> bytes:
    inputs = {name: values.to_pylist() for name, values in zip(batch.schema.names, batch.columns)}
    return _json({"inputs": inputs, "parameters": dict(call.parameters)})


def _lines(call: Call, batch: pa.RecordBatch) -> bytes:
    lines: List[Dict[str, Any]] = []
    if call.parameters:
        lines.append({"parameters": dict(call.parameters)})
    lines.extend(batch.to_pylist())
    return b"".join(_json(line) + b"\n" for line in lines)


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"a row cannot be written as JSON ({error}); use a Flight URL for this model"
        ) from error


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _broken(endpoint: Endpoint, what: str, *, connected: bool = True) -> ConnectionLostError:
    error = ConnectionLostError(f"the connection to {endpoint.url} failed: {what}")
    error.connected = connected
    return error


def _has_connected(error: httpx.HTTPError) -> bool:
    return not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))


def _error(response: httpx.Response, body: bytes) -> VolleyError:
    """Returns the typed error of an answer with an error status."""
    status = response.status_code
    seconds = response.headers.get("retry-after", "")
    retry_after = float(seconds) if seconds.isdigit() else None
    request_id = response.headers.get("x-request-id")
    try:
        given = json.loads(body)["error"]
        code, message = str(given["code"]), str(given["reason"])
    except (ValueError, KeyError, TypeError):
        code, message = f"http_{status}", f"the server answered with the status {status}"
    if status == 410:
        return StreamGoneError(message, status=status, request_id=request_id)
    if code.startswith("http_") and status in (502, 503, 504):
        # A proxy before the cluster found no coordinator.
        return UnavailableError(message, status=status, retry_after=retry_after)
    return of_code(code, message, status=status, retry_after=retry_after, request_id=request_id)
