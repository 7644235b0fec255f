"""Models as expressions of Polars.

    import polars as pl, volley_client.polars
    volley_client.polars.register(client)
    books.with_columns(pl.col("title").volley.call("text-embed").alias("vector"))

Needs a client with a Flight URL, and the extra ``volley-client[polars]``.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import polars
import pyarrow as pa

from ._functions import Function, function
from .client import Client

__all__ = ["call", "register"]

IntoExpr = Union[str, "polars.Expr"]

_client: Optional[Client] = None


def register(client: Client) -> None:
    """Registers the namespace `volley` of expressions, which calls the models of this client.

    `pl.col("title").volley.call("text-embed")` then is `call(client, "text-embed", "title")`.

    Args:
        client: The client, which must stay open. It needs a Flight URL. A later registration
            replaces it.
    """
    global _client
    client.functions()
    first, _client = _client is None, client
    if first:
        polars.api.register_expr_namespace("volley")(Namespace)


class Namespace:
    """The functions of `pl.col(…).volley`."""

    def __init__(self, expression: polars.Expr) -> None:
        self._expression = expression

    def call(self, model: str, *arguments: IntoExpr) -> polars.Expr:
        """Calls a model with this column as the first argument."""
        assert _client is not None, "register() makes the namespace"
        return call(_client, model, self._expression, *arguments)


def call(client: Client, model: str, *arguments: IntoExpr) -> polars.Expr:
    """Returns an expression that calls a model: one value per row, null for a null argument.

    Args:
        client: The client, which must stay open.
        model: The model, and options after a question mark: ``storyteller?max_tokens=8``.
        *arguments: Columns or expressions, one for each argument of the function.

    Raises:
        ValueError: The function has another number of arguments.
        VolleyError: The model does not exist, or is no function.
    """
    found = function(client, model)
    if len(arguments) != len(found.arguments):
        names = [_column(field) for field in found.arguments]
        raise ValueError(f"'{model}' has the arguments {names}, and {len(arguments)} were given")
    dtype = _dtype(found.result)
    expressions = [polars.col(it) if isinstance(it, str) else it for it in arguments]
    packed = polars.struct([it.alias(f"arg{place}") for place, it in enumerate(expressions, 1)])
    answered = packed.map_batches(_called(found, dtype), return_dtype=dtype, is_elementwise=True)
    return answered.alias(expressions[0].meta.output_name())


def _called(found: Function, dtype: Any) -> Any:
    def answered(rows: polars.Series) -> polars.Series:
        columns = rows.struct.unnest().get_columns()
        value = found([_plain(it.to_arrow()) for it in columns])
        return polars.Series(polars.from_arrow(value), dtype=dtype)

    return answered


def _plain(values: pa.Array) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _dtype(kind: pa.DataType) -> Any:
    return polars.from_arrow(pa.array([], kind)).dtype


def _column(field: pa.Field) -> str:
    name: bytes = (field.metadata or {}).get(b"volley.column", field.name.encode())
    return name.decode().strip("'")
