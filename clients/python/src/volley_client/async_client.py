"""The asynchronous client."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Awaitable,
    Callable,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Type,
)

import pyarrow as pa

from . import _options, _plans
from ._async_streams import AsyncGenerationStream, AsyncRowStream
from ._core import Core, Settings
from ._inputs import Data
from ._options import CallOptions, RowOptions
from .errors import DeadlineExceededError
from .management import Json, Management, is_deployed
from .results import Generation, Rows
from .settings import TLS, Call, Deadline, Retry

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._plans import Plan, Prompt


class AsyncClient(Management[Awaitable[Json]]):
    """`Client` for asyncio. It belongs to the event loop in which it is first used.

    pyarrow's Flight client blocks, so each exchange over Flight has a thread. Cancelling a task
    cancels its exchanges, and the models stop. The arguments are those of `Client`.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        api_key: Optional[str] = None,
        tls: Optional[TLS] = None,
        retry: Optional[Retry] = None,
        exchange_timeout: float = 300.0,
    ) -> None:
        super().__init__(self._manage)
        if isinstance(urls, str):
            raise ValueError("'urls' must be a list of URLs, such as ['grpc://127.0.0.1:8421']")
        self._settings = Settings(list(urls), api_key, tls, retry or Retry(), exchange_timeout)
        self._core = Core(self._settings)

    def __repr__(self) -> str:
        return f"AsyncClient({self._settings.urls})"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._core.close()

    # --- Rows ---

    async def _rows(self, planned: Callable[[], Plan]) -> AsyncRowStream:
        # The first rows are read here, which may block.
        plan = await asyncio.get_running_loop().run_in_executor(None, planned)
        return AsyncRowStream(self._core, plan)

    async def predict(self, model: str, data: Data, **options: Unpack[RowOptions]) -> Rows:
        """As `Client.predict`."""
        return await (await self.predict_stream(model, data, **options)).collect()

    async def predict_stream(
        self, model: str, data: Data, **options: Unpack[RowOptions]
    ) -> AsyncRowStream:
        """As `Client.predict_stream`."""
        return await self._rows(lambda: _plans.predict(model, data, options))

    async def embed(
        self,
        model: str,
        data: Data,
        *,
        input_type: Optional[str] = None,
        **options: Unpack[RowOptions],
    ) -> Rows:
        """As `Client.embed`."""
        stream = await self.embed_stream(model, data, input_type=input_type, **options)
        return await stream.collect()

    async def embed_stream(
        self,
        model: str,
        data: Data,
        *,
        input_type: Optional[str] = None,
        **options: Unpack[RowOptions],
    ) -> AsyncRowStream:
        """As `Client.embed_stream`."""
        return await self._rows(lambda: _plans.embed(model, data, input_type, options))

    async def rerank(
        self,
        model: str,
        query: str,
        data: Data,
        *,
        top_n: Optional[int] = None,
        **options: Unpack[RowOptions],
    ) -> Rows:
        """As `Client.rerank`."""
        stream = await self._rows(lambda: _plans.rerank(model, query, data, options))
        return Rows(_plans.ranked((await stream.collect()).to_arrow(), top_n))

    async def score_stream(
        self, model: str, data: Data, *, query: Optional[str] = None, **options: Unpack[RowOptions]
    ) -> AsyncRowStream:
        """As `Client.score_stream`."""
        return await self._rows(lambda: _plans.rerank(model, query, data, options))

    async def classify(self, model: str, data: Data, **options: Unpack[RowOptions]) -> Rows:
        """As `Client.classify`."""
        return await (await self.classify_stream(model, data, **options)).collect()

    async def classify_stream(
        self, model: str, data: Data, **options: Unpack[RowOptions]
    ) -> AsyncRowStream:
        """As `Client.classify_stream`."""
        return await self._rows(lambda: _plans.texts(model, data, options))

    async def generate_rows(self, model: str, data: Data, **options: Unpack[RowOptions]) -> Rows:
        """As `Client.generate_rows`."""
        return await (await self.generate_rows_stream(model, data, **options)).collect()

    async def generate_rows_stream(
        self, model: str, data: Data, **options: Unpack[RowOptions]
    ) -> AsyncRowStream:
        """As `Client.generate_rows_stream`."""
        return await self._rows(lambda: _plans.generate(model, data, options))

    # --- One prompt ---

    async def generate(
        self, model: str, prompt: Prompt, **options: Unpack[CallOptions]
    ) -> Generation:
        """As `Client.generate`."""
        return await self._core.generation(
            options.get("transport"), _options.call(model, options), _plans.prompts(prompt)
        )

    def generate_stream(
        self,
        model: str,
        prompt: Prompt,
        *,
        resumable: bool = False,
        **options: Unpack[CallOptions],
    ) -> AsyncGenerationStream:
        """As `Client.generate_stream`."""
        call, batch = _options.call(model, options), _plans.prompts(prompt)
        chunks, ids = self._core.streamed(options.get("transport"), call, batch, resumable)
        return AsyncGenerationStream(chunks, ids)

    def resume_stream(
        self, stream_id: str, *, after: Optional[str] = None, timeout: Optional[float] = None
    ) -> AsyncGenerationStream:
        """As `Client.resume_stream`."""
        self._core.transport("rest")
        ids = [stream_id]
        call = Call("", deadline=Deadline(timeout))
        return AsyncGenerationStream(self._core.resumable(call, None, ids, after), ids)

    async def cancel_stream(self, stream_id: str) -> None:
        """As `Client.cancel_stream`."""
        await self._core.cancel_stream(stream_id)

    # --- Models as functions ---

    async def functions(self) -> List[str]:
        """As `Client.functions`."""
        return await self._core.over_flight(self._core.flight.functions)

    async def function_schema(self, function: str) -> pa.Schema:
        """As `Client.function_schema`."""
        return await self._core.over_flight(lambda it: self._core.flight.function(it, function))

    async def call_function(
        self, function: str, arguments: Sequence[Any], *, timeout: Optional[float] = None
    ) -> pa.ChunkedArray:
        """As `Client.call_function`."""
        stream = await self._rows(lambda: _plans.function(function, arguments, timeout))
        column: pa.ChunkedArray = (await stream.collect()).to_arrow().column(0)
        return column

    async def describe(self, model: str) -> Json:
        """As `Client.describe`."""
        return await self._core.over_flight(lambda it: self._core.flight.describe(it, model))

    # --- Management ---

    async def _manage(self, method: str, path: str, query: Mapping[str, Any], body: Any) -> Json:
        found: Dict[str, Any] = await self._core.request(method, path, query=query, body=body)
        return found

    async def wait_until_deployed(self, model: str, timeout: float = 300.0) -> None:
        """As `Client.wait_until_deployed`."""
        deadline = Deadline(timeout)
        while not is_deployed(await self.models.get(model)):
            if deadline.passed():
                raise DeadlineExceededError(f"model '{model}' was not deployed in {timeout} s")
            await asyncio.sleep(0.1)
