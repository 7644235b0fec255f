"""Models over datasets of Ray Data, with `map_batches`.

    from volley_client.ray import Embed
    vectors = texts.map_batches(
        Embed, fn_constructor_args=(urls, "text-embed"), fn_constructor_kwargs={"column": "text"},
        batch_format="pyarrow", concurrency=2)

Each actor has a client of its own. Ray repeats the batches of an actor that is lost. Needs the extra
``volley-client[ray]``.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import pyarrow as pa

from .client import Client

__all__ = ["Classify", "Embed", "Generate", "Predict", "Score"]


class _Mapper:
    """A class for `map_batches` with ``batch_format="pyarrow"``.

    Args:
        urls: The coordinators, as actors reach them.
        model: The name of the model.
        client: Other arguments of `Client`, such as `api_key`.
        **options: See `RowOptions`.
    """

    _method = ""

    def __init__(
        self,
        urls: Sequence[str],
        model: str,
        *,
        client: Optional[Mapping[str, Any]] = None,
        **options: Any,
    ) -> None:
        self._client = Client(urls, **(client or {}))
        self._model = model
        self._options = options

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Returns the kept columns and the answers to a batch."""
        stream = getattr(self._client, self._method)(self._model, batch, **self._options)
        answers: pa.Table = stream.collect().to_arrow()
        return answers


class Embed(_Mapper):
    """`Client.embed` for each batch."""

    _method = "embed_stream"


class Classify(_Mapper):
    """`Client.classify` for each batch."""

    _method = "classify_stream"


class Score(_Mapper):
    """`Client.score_stream` for each batch."""

    _method = "score_stream"


class Predict(_Mapper):
    """`Client.predict` for each batch."""

    _method = "predict_stream"


class Generate(_Mapper):
    """`Client.generate_rows` for each batch."""

    _method = "generate_rows_stream"
