"""The synchronous client."""

from __future__ import annotations

import atexit
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Type

import pyarrow as pa

from . import _options, _plans
from ._aio import Portal
from ._core import Core, Settings
from ._inputs import Data
from ._options import CallOptions, RowOptions
from ._streams import GenerationStream, RowStream
from .errors import DeadlineExceededError
from .management import Json, Management, is_deployed
from .results import Generation, Rows
from .settings import TLS, Call, Deadline, Retry

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._plans import Plan, Prompt

_open: "weakref.WeakSet[Client]" = weakref.WeakSet()


class Client(Management[Json]):
    """Calls the models of a cluster, and manages it.

    A client may be used by several threads. It has a thread of its own for its connections, so make
    one and keep it, and close it at the end.

    Args:
        urls: The coordinators: ``grpc://host:port`` or ``grpc+tls://host:port`` for Arrow Flight,
            ``http://host:port`` or ``https://host:port`` for REST. Exchanges take turns, and a
            coordinator whose connection is lost is left out for a while. Models are called over
            Flight if there is a Flight URL; management and resumable streams need a REST URL.
        api_key: The key, if the cluster requires one.
        tls: Certificates for TLS.
        retry: How often rows without an answer are sent again.
        exchange_timeout: Longest duration of a single exchange in seconds.

    Raises:
        ValueError: A URL is malformed.
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
        self._portal = Portal()
        _open.add(self)

    def __repr__(self) -> str:
        return f"Client({self._settings.urls})"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancels what still runs, and closes all connections."""
        self._portal.close(self._core.close)

    # --- Rows ---

    def _rows(self, plan: Plan) -> RowStream:
        return RowStream(self._portal, self._core, plan)

    def predict(self, model: str, data: Data, **options: Unpack[RowOptions]) -> Rows:
        """Runs a model on the columns of `data` and returns its outputs, one row per row.

        `keep=["id"]` names columns that are not sent and that the result has too.

        Raises:
            VolleyError: A row has no answer.
        """
        return self.predict_stream(model, data, **options).collect()

    def predict_stream(self, model: str, data: Data, **options: Unpack[RowOptions]) -> RowStream:
        """As `predict`, batch by batch in bounded memory."""
        return self._rows(_plans.predict(model, data, options))

    def embed(
        self,
        model: str,
        data: Data,
        *,
        input_type: Optional[str] = None,
        **options: Unpack[RowOptions],
    ) -> Rows:
        """Embeds texts: columns `embedding` and `tokens`.

        Args:
            model: The name of the model, or ``name:version``.
            data: Texts, or a table with a column of texts.
            input_type: ``"query"`` or ``"passage"``, for models that expect a prefix.
            **options: See `RowOptions`.

        Raises:
            VolleyError: A row has no answer.
        """
        return self.embed_stream(model, data, input_type=input_type, **options).collect()

    def embed_stream(
        self,
        model: str,
        data: Data,
        *,
        input_type: Optional[str] = None,
        **options: Unpack[RowOptions],
    ) -> RowStream:
        """As `embed`, batch by batch in bounded memory."""
        return self._rows(_plans.embed(model, data, input_type, options))

    def rerank(
        self,
        model: str,
        query: str,
        data: Data,
        *,
        top_n: Optional[int] = None,
        **options: Unpack[RowOptions],
    ) -> Rows:
        """Ranks texts by their relevance to a query.

        The result has the best first, with the column `index` of the text in `data`, and `score`.

        Raises:
            VolleyError: A row has no answer.
        """
        scores = self._rows(_plans.rerank(model, query, data, options)).collect()
        return Rows(_plans.ranked(scores.to_arrow(), top_n))

    def score_stream(
        self, model: str, data: Data, *, query: Optional[str] = None, **options: Unpack[RowOptions]
    ) -> RowStream:
        """Scores texts with a reranker, in their own order, batch by batch.

        Without `query`, each row has its own in the column `query`.
        """
        return self._rows(_plans.rerank(model, query, data, options))

    def classify(self, model: str, data: Data, **options: Unpack[RowOptions]) -> Rows:
        """Classifies texts: columns `labels` and `scores`, the best first, and `tokens`.

        Raises:
            VolleyError: A row has no answer.
        """
        return self.classify_stream(model, data, **options).collect()

    def classify_stream(self, model: str, data: Data, **options: Unpack[RowOptions]) -> RowStream:
        """As `classify`, batch by batch in bounded memory. Models of the tasks `classify_tokens`
        and `encode_sparse` answer here too, with their own columns."""
        return self._rows(_plans.texts(model, data, options))

    def generate_rows(self, model: str, data: Data, **options: Unpack[RowOptions]) -> Rows:
        """Generates one text for each row, from its column `prompt` or `messages`.

        The columns are `text`, `thinking`, `tool_calls`, `finish_reason`, and `error_code` and
        `error_message` of a row that failed by itself. The cluster counts tokens for a whole
        exchange, so a row has no counts.

        Raises:
            VolleyError: The call failed.
        """
        return self.generate_rows_stream(model, data, **options).collect()

    def generate_rows_stream(
        self, model: str, data: Data, **options: Unpack[RowOptions]
    ) -> RowStream:
        """As `generate_rows`, batch by batch in bounded memory."""
        return self._rows(_plans.generate(model, data, options))

    # --- One prompt ---

    def generate(self, model: str, prompt: Prompt, **options: Unpack[CallOptions]) -> Generation:
        """Generates the answer to one prompt: a text, or the messages of a chat.

        A call whose connection breaks is sent again, which a remote model may bill again; with
        ``Retry(attempts=1)`` it is not.

        Raises:
            VolleyError: The call failed.
        """
        return self._portal.run(self._generate(model, prompt, options))

    async def _generate(self, model: str, prompt: Prompt, options: CallOptions) -> Generation:
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
    ) -> GenerationStream:
        """Streams the answer to one prompt.

        Args:
            model: The name of the model, or ``name:version``.
            prompt: A text, or the messages of a chat.
            resumable: Resumes the stream at any coordinator whenever its connection breaks. Needs
                a REST URL.
            **options: See `CallOptions`.
        """
        call, batch = _options.call(model, options), _plans.prompts(prompt)
        chunks, ids = self._core.streamed(options.get("transport"), call, batch, resumable)
        return GenerationStream(self._portal, chunks, ids)

    def resume_stream(
        self, stream_id: str, *, after: Optional[str] = None, timeout: Optional[float] = None
    ) -> GenerationStream:
        """Resumes a resumable stream, also one of another process.

        Args:
            stream_id: The `id` of the stream.
            after: The `last_event_id` that was read; without it, all events come again.
            timeout: Seconds until the stream must be complete.
        """
        self._core.transport("rest")
        ids = [stream_id]
        call = Call("", deadline=Deadline(timeout))
        return GenerationStream(self._portal, self._core.resumable(call, None, ids, after), ids)

    def cancel_stream(self, stream_id: str) -> None:
        """Ends a resumable stream and its work."""
        self._portal.run(self._core.cancel_stream(stream_id))

    # --- Models as functions ---

    def functions(self) -> List[str]:
        """Returns the models that can be called as functions. Needs a Flight URL."""
        return self._portal.run(self._core.over_flight(self._core.flight.functions))

    def function_schema(self, function: str) -> pa.Schema:
        """Returns the arguments of a function, then its result. The metadata
        `x-databend-udf-input-count` has the number of arguments. Needs a Flight URL."""
        return self._portal.run(
            self._core.over_flight(lambda it: self._core.flight.function(it, function))
        )

    def call_function(
        self, function: str, arguments: Sequence[Any], *, timeout: Optional[float] = None
    ) -> pa.ChunkedArray:
        """Calls a model as a function: one value per row, and null for a row with a null argument.

        Args:
            function: The model, and options after a question mark: ``storyteller?max_tokens=8``.
            arguments: One array per argument.
            timeout: Seconds until the call must be complete.

        Raises:
            VolleyError: A row has no answer.
        """
        stream = self._rows(_plans.function(function, arguments, timeout))
        column: pa.ChunkedArray = stream.collect().to_arrow().column(0)
        return column

    def describe(self, model: str) -> Json:
        """Returns the task, the inputs and the outputs of a model. Needs a Flight URL."""
        return self._portal.run(
            self._core.over_flight(lambda it: self._core.flight.describe(it, model))
        )

    # --- Management ---

    def _manage(self, method: str, path: str, query: Mapping[str, Any], body: Any) -> Json:
        found: Dict[str, Any] = self._portal.run(
            self._core.request(method, path, query=query, body=body)
        )
        return found

    def wait_until_deployed(self, model: str, timeout: float = 300.0) -> None:
        """Waits until every replica of a model serves.

        Raises:
            NotDeployedError: The deployment failed.
            DeadlineExceededError: It is not deployed in time.
        """
        deadline = Deadline(timeout)
        while not is_deployed(self.models.get(model)):
            if deadline.passed():
                raise DeadlineExceededError(f"model '{model}' was not deployed in {timeout} s")
            time.sleep(0.1)


@atexit.register
def _close_all() -> None:
    """Closes clients that are still open, so that their threads end before the interpreter does."""
    for client in list(_open):
        client.close()
