"""Models over tables of Spark, with `mapInArrow`.

    from volley_client.spark import map_embed
    vectors = map_embed(texts, urls, "text-embed", column="text", keep=["id"])

Each Python worker has a client of its own and streams its partitions in bounded memory. Spark
repeats a task whose executor is lost, and uses the rows of one attempt of it, so each row of the
result appears once. Needs the extra ``volley-client[spark]``.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Mapping, Optional, Sequence

import pyarrow as pa

from .client import Client
from .management import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Unpack

    from ._options import RowOptions

__all__ = ["map_classify", "map_embed", "map_generate", "map_predict", "map_score"]

Partition = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_embed(
    frame: DataFrame,
    urls: Sequence[str],
    model: str,
    *,
    client: Optional[Mapping[str, Any]] = None,
    **options: Unpack[RowOptions],
) -> DataFrame:
    """Returns the kept columns and the embedding of each row.

    Args:
        frame: The rows.
        urls: The coordinators, as executors reach them.
        model: The name of the model.
        client: Other arguments of `Client`, such as `api_key`.
        **options: See `RowOptions`.
    """
    return _mapped("embed_stream", frame, urls, model, client, options)


def map_classify(
    frame: DataFrame,
    urls: Sequence[str],
    model: str,
    *,
    client: Optional[Mapping[str, Any]] = None,
    **options: Unpack[RowOptions],
) -> DataFrame:
    """As `map_embed`, with `Client.classify`."""
    return _mapped("classify_stream", frame, urls, model, client, options)


def map_score(
    frame: DataFrame,
    urls: Sequence[str],
    model: str,
    *,
    client: Optional[Mapping[str, Any]] = None,
    **options: Unpack[RowOptions],
) -> DataFrame:
    """As `map_embed`, with a reranker over the columns `query` and `text`."""
    return _mapped("score_stream", frame, urls, model, client, options)


def map_predict(
    frame: DataFrame,
    urls: Sequence[str],
    model: str,
    *,
    client: Optional[Mapping[str, Any]] = None,
    **options: Unpack[RowOptions],
) -> DataFrame:
    """As `map_embed`, with `Client.predict`."""
    return _mapped("predict_stream", frame, urls, model, client, options)


def map_generate(
    frame: DataFrame,
    urls: Sequence[str],
    model: str,
    *,
    client: Optional[Mapping[str, Any]] = None,
    **options: Unpack[RowOptions],
) -> DataFrame:
    """As `map_embed`, with `Client.generate_rows`."""
    return _mapped("generate_rows_stream", frame, urls, model, client, options)


def _mapped(
    method: str,
    frame: DataFrame,
    urls: Sequence[str],
    model: str,
    client: Optional[Mapping[str, Any]],
    options: Mapping[str, Any],
) -> DataFrame:
    if options.get("progress"):
        raise ValueError("'progress' does not reach the driver of Spark; its own pages show tasks")
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    work = partition(method, urls, model, dict(client or {}), dict(options))
    # The answer to no rows has the columns of the result.
    schema = to_arrow_schema(frame.schema)
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    (answer,) = list(work(iter([empty])))
    return frame.mapInArrow(work, from_arrow_schema(_for_spark(answer.schema)))


def partition(
    method: str, urls: Sequence[str], model: str, client: Json, options: Json
) -> Partition:
    """Returns the function for `mapInArrow`, which each Python worker calls with a partition."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        if first is None:
            return
        made = _client(urls, client)
        with getattr(made, method)(model, chain([first], batches), **options) as stream:
            for batch in stream:
                yield batch.cast(_for_spark(batch.schema))

    return work


_made: Dict[str, Client] = {}


def _client(urls: Sequence[str], options: Json) -> Client:
    """Returns the client of this Python worker, which Spark uses for many partitions."""
    key = repr((list(urls), sorted(options.items())))
    if key not in _made:
        _made[key] = Client(urls, **options)
    return _made[key]


def _for_spark(schema: pa.Schema) -> pa.Schema:
    """Returns the schema with the signed integers that Spark has."""
    wider = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
    }

    def of(field: pa.Field) -> pa.Field:
        kind = field.type
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
            kind = pa.list_(of(kind.value_field))
        elif pa.types.is_struct(kind):
            kind = pa.struct([of(it) for it in kind])
        return pa.field(field.name, wider.get(kind, kind), True)

    return pa.schema([of(field) for field in schema])
