"""Exchanges over Arrow Flight.

pyarrow's Flight client blocks, so each exchange has a thread of its own, which ends with it.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from typing import Any, AsyncGenerator, Callable, Dict, List, Optional, Tuple, TypeVar, Union

import pyarrow as pa
from pyarrow import flight

from . import _command
from ._aio import Handover
from ._endpoints import Endpoint
from ._inputs import no_rows
from .errors import ConnectionLostError, VolleyError, of_code
from .results import Chunk
from .settings import TLS, Call

T = TypeVar("T")

ORIGINS = {1: "coordinator", 2: "worker", 3: "model"}
HANDED_OVER = 8
"""Most messages that a thread has read and nobody has taken."""
GRACE = 5.0
"""Seconds that the server gets beyond the deadline to report that it has passed."""

_OPTIONS = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]

_Item = Union[pa.RecordBatch, BaseException, None]


class FlightTransport:
    """Exchanges with the coordinators that have a Flight URL."""

    name = "flight"

    def __init__(self, api_key: Optional[str], tls: Optional[TLS], longest: float) -> None:
        self._tls = tls
        self._longest = longest
        self._headers: List[Tuple[bytes, bytes]] = []
        if api_key is not None:
            self._headers.append((b"authorization", f"Bearer {api_key}".encode()))
        self._clients: Dict[str, flight.FlightClient] = {}
        self._lock = threading.Lock()

    async def rows(
        self, endpoint: Endpoint, call: Call, batch: pa.RecordBatch
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Sends a batch and yields the answers; an empty batch if there are none.

        Closing the generator cancels the exchange.

        Raises:
            VolleyError: The exchange failed.
        """
        loop = asyncio.get_running_loop()
        handover: Handover[_Item] = Handover(loop, HANDED_OVER)
        seconds = call.deadline.left(self._longest)
        exchange = _Exchange(self, endpoint, call, seconds, batch, handover)
        threading.Thread(target=exchange.run, name="volley-exchange", daemon=True).start()
        try:
            while True:
                item = await handover.get()
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            exchange.cancel()
            handover.leave()

    async def chunks(
        self, endpoint: Endpoint, call: Call, batch: pa.RecordBatch
    ) -> AsyncGenerator[Chunk, None]:
        """Sends prompts and yields the chunks of their generations, as `rows` does."""
        answers = self.rows(endpoint, call, batch)
        try:
            async for answer in answers:
                for row in answer.to_pylist():
                    yield _chunk(row)
        finally:
            await answers.aclose()

    async def functions(self, endpoint: Endpoint) -> List[str]:
        """Returns the names of all models that can be called as functions."""

        def listed() -> List[str]:
            found = self.client(endpoint).list_flights(options=self.options(self._longest))
            return [info.descriptor.path[0].decode() for info in found if info.descriptor.path]

        return await self._in_thread(endpoint, listed)

    async def function(self, endpoint: Endpoint, name: str) -> pa.Schema:
        """Returns the arguments of a model as a function, then its result."""

        def described() -> pa.Schema:
            descriptor = flight.FlightDescriptor.for_path(name)
            options = self.options(self._longest, [(b"volley-call", b"function")])
            return self.client(endpoint).get_flight_info(descriptor, options).schema

        return await self._in_thread(endpoint, described)

    async def describe(self, endpoint: Endpoint, model: str) -> Dict[str, Any]:
        """Returns the task, the inputs and the outputs of a model."""

        def described() -> Dict[str, Any]:
            action = flight.Action("model", model.encode())
            (found,) = self.client(endpoint).do_action(action, self.options(self._longest))
            description: Dict[str, Any] = json.loads(found.body.to_pybytes())
            return description

        return await self._in_thread(endpoint, described)

    async def _in_thread(self, endpoint: Endpoint, work: Callable[[], T]) -> T:
        def guarded() -> T:
            try:
                return work()
            except (flight.FlightError, pa.ArrowException, OSError) as error:
                raise self.error(endpoint, error) from error

        return await asyncio.get_running_loop().run_in_executor(None, guarded)

    def client(self, endpoint: Endpoint) -> flight.FlightClient:
        """Returns the connection to a coordinator; it is made when it is first used."""
        with self._lock:
            found = self._clients.get(endpoint.url)
            if found is None:
                found = self._connect(endpoint.url)
                self._clients[endpoint.url] = found
            return found

    def _connect(self, url: str) -> flight.FlightClient:
        options: Dict[str, Any] = {"generic_options": _OPTIONS}
        if url.startswith("grpc+tls://") and self._tls is not None:
            ca, cert, key = self._tls.pem()
            pairs = {"tls_root_certs": ca, "cert_chain": cert, "private_key": key}
            options.update({name: value for name, value in pairs.items() if value is not None})
            if self._tls.server_name is not None:
                options["override_hostname"] = self._tls.server_name
        return flight.FlightClient(url, **options)

    def options(
        self, seconds: float, headers: Optional[List[Tuple[bytes, bytes]]] = None
    ) -> flight.FlightCallOptions:
        """Returns the options of a call that may take so long."""
        return flight.FlightCallOptions(timeout=seconds, headers=self._headers + (headers or []))

    def error(self, endpoint: Endpoint, error: BaseException) -> VolleyError:
        """Returns the typed error; a status without details comes from the transport."""
        detail = _command.error_detail(getattr(error, "extra_info", None) or b"")
        if "code" in detail:
            retry_after = int(detail.get("retry_after_ms", 0)) / 1000
            return of_code(
                str(detail["code"]),
                _message(error),
                retry_after=retry_after or None,
                origin=ORIGINS.get(int(detail.get("origin", 0))),
                reason=str(detail["reason"]) if detail.get("reason") else None,
                request_id=str(detail["request_id"]) if detail.get("request_id") else None,
            )
        if isinstance(error, flight.FlightTimedOutError):
            # The server reports a deadline that passed, so this one answers nothing.
            return ConnectionLostError(f"{endpoint.url} did not answer in time")
        return ConnectionLostError(f"the connection to {endpoint.url} failed: {_message(error)}")

    def forget(self, endpoint: Endpoint) -> None:
        """Makes a new connection for the next exchange with this coordinator."""
        with self._lock:
            self._clients.pop(endpoint.url, None)

    def close(self) -> None:
        """Closes all connections."""
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()


class _Exchange:
    """One `DoExchange`; `run` in its own thread, `cancel` from any."""

    def __init__(
        self,
        transport: FlightTransport,
        endpoint: Endpoint,
        call: Call,
        seconds: float,
        batch: pa.RecordBatch,
        handover: Handover[_Item],
    ) -> None:
        self._transport = transport
        self._endpoint = endpoint
        self._call = call
        self._seconds = seconds
        self._batch = batch
        self._handover = handover
        self._lock = threading.Lock()
        self._reader: Optional[flight.FlightStreamReader] = None
        self._is_cancelled = False
        self._is_over = False
        self._has_ended = False
        """Whether the reader has reported the end of the stream, or its error."""

    def cancel(self) -> None:
        """Resets the stream; the cluster stops its work."""
        with self._lock:
            self._is_cancelled = True
            if self._reader is not None and not self._is_over:
                self._reader.cancel()

    def run(self) -> None:
        """Hands over each answer, then the error or `None`."""
        try:
            self._exchange()
            end: Optional[BaseException] = None
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            end = self._transport.error(self._endpoint, error)
        except BaseException as error:
            end = error
        with self._lock:
            self._is_over = True
        self._handover.put(end)

    def _exchange(self) -> None:
        client = self._transport.client(self._endpoint)
        descriptor, headers = self._descriptor()
        options = self._transport.options(self._seconds + GRACE, headers)
        writer, reader = client.do_exchange(descriptor, options)
        with self._lock:
            self._reader = reader
            if self._is_cancelled:
                reader.cancel()
        try:
            try:
                self._write(writer)
            except (flight.FlightError, pa.ArrowException, OSError):
                # The reader has the reason, if the server gave one.
                self._read(reader)
                raise
            if not self._read(reader):
                self._handover.put(no_rows(reader.schema))
        finally:
            # The reader reports the outcome of the stream, and closing only repeats it.
            try:
                writer.close()
            except (flight.FlightError, pa.ArrowException, OSError):
                if not self._is_cancelled and not self._has_ended:
                    raise

    def _write(self, writer: flight.FlightStreamWriter) -> None:
        writer.begin(self._batch.schema)
        if self._call.function:
            writer.write_batch(self._batch)
        elif self._batch.num_rows:
            # The mark is on the last rows, so the server need not wait for more.
            writer.write_with_metadata(self._batch, _command.END)
        else:
            writer.write_metadata(_command.END)
        writer.done_writing()

    def _read(self, reader: flight.FlightStreamReader) -> bool:
        """Hands all answers over; returns whether there was one."""
        any_rows = False
        try:
            while True:
                data = reader.read_chunk().data
                if data is None or not data.num_rows:
                    continue
                any_rows = True
                if not self._handover.put(data):
                    reader.cancel()
                    break
        except StopIteration:
            self._has_ended = True
        except (flight.FlightError, pa.ArrowException, OSError):
            self._has_ended = True
            raise
        return any_rows

    def _descriptor(self) -> Tuple[flight.FlightDescriptor, List[Tuple[bytes, bytes]]]:
        call = self._call
        if call.function:
            headers = [(b"volley-call", b"function"), (b"x-request-id", call.request_id.encode())]
            return flight.FlightDescriptor.for_path(function_name(call)), headers
        model, version = call.named()
        command = _command.predict_command(
            model,
            version,
            call.request_id,
            max(1, round(self._seconds * 1000)),
            call.parameters,
            call.session or "",
        )
        return flight.FlightDescriptor.for_command(command), []


def function_name(call: Call) -> str:
    """Returns the name of a function with its options, `model?name=value&…`.

    Raises:
        ValueError: An option contains a character that names of functions cannot contain.
    """
    options = []
    for name, value in call.parameters.items():
        text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
        if re.search(r"[&?]", text) or re.search(r"[&?=]", name):
            raise ValueError(f"option '{name}' of a function cannot contain '&' or '?'")
        options.append(f"{name}={text}")
    return call.model + ("?" + "&".join(options) if options else "")


def _message(error: BaseException) -> str:
    """Returns the message of the server, without what gRPC and Arrow add to it."""
    text = str(error)
    text = re.sub(r"\.? (?:gRPC|Client) (?:client debug|context).*", "", text, flags=re.DOTALL)
    text = re.sub(r"\. Detail: .*", "", text, flags=re.DOTALL)
    text = re.sub(r"^(?:IOError: )?Flight [^:]*error, with message: ", "", text)
    text = re.sub(r"^Flight returned [^:]*: ", "", text)
    return text.strip() or type(error).__name__


def _chunk(row: Dict[str, Any]) -> Chunk:
    return Chunk(
        item=row["item"],
        choice=row["choice"],
        text=row["text"] or "",
        thinking=row["thinking"] or "",
        tool_calls=_parsed(row["tool_calls"]),
        citations=_parsed(row.get("citations")),
        logprob=row["logprob"],
        finish_reason=row["finish_reason"],
        prompt_tokens=row["prompt_tokens"],
        completion_tokens=row["completion_tokens"],
        error_code=row["error_code"],
        error_message=row["error_message"],
        last=row["last"],
    )


def _parsed(text: Optional[str]) -> List[Dict[str, Any]]:
    found: List[Dict[str, Any]] = json.loads(text) if text else []
    return found
