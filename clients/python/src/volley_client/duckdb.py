"""Models as functions of DuckDB.

    import duckdb, volley_client.duckdb
    con = duckdb.connect()
    volley_client.duckdb.register(con, client)
    con.sql('SELECT "text-embed"(title) FROM books')

Needs a client with a Flight URL, and the extra ``volley-client[duckdb]``.
"""

from __future__ import annotations

import inspect
from typing import Any, List

import duckdb
import pyarrow as pa

from ._functions import Function, Names, chosen, function
from .client import Client

__all__ = ["register"]

_TYPES = {
    pa.string(): "VARCHAR",
    pa.bool_(): "BOOLEAN",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
}


def register(con: duckdb.DuckDBPyConnection, client: Client, models: Names = None) -> List[str]:
    """Registers models as scalar functions of a connection and returns their names.

    Args:
        con: The connection.
        client: The client, which must stay open. It needs a Flight URL.
        models: The models; all that the key may call if absent. A dict gives names to models with
            options: ``{"story": "storyteller?max_tokens=16"}``.

    Raises:
        VolleyError: A model does not exist, or is no function.
        ValueError: A type of the function has no counterpart in DuckDB.
    """
    names = []
    for name, target in chosen(client, models):
        found = function(client, target)
        con.create_function(
            name,
            _called(found),
            [sql_type(field.type) for field in found.arguments],
            sql_type(found.result),
            type="arrow",
            null_handling="special",
            side_effects=False,
        )
        names.append(name)
    return names


def sql_type(kind: pa.DataType) -> str:
    """Returns the name of a type in DuckDB."""
    if kind in _TYPES:
        return _TYPES[kind]
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"{sql_type(kind.value_type)}[]"
    if pa.types.is_struct(kind):
        fields = ", ".join(f'"{it.name}" {sql_type(it.type)}' for it in kind)
        return f"STRUCT({fields})"
    raise ValueError(f"the type '{kind}' has no counterpart in DuckDB")


def _called(found: Function) -> Any:
    def call(*arguments: Any) -> Any:
        return found([_array(it) for it in arguments])

    # DuckDB counts the parameters of the function.
    names = [field.name for field in found.arguments]
    places = [inspect.Parameter(it, inspect.Parameter.POSITIONAL_OR_KEYWORD) for it in names]
    setattr(call, "__signature__", inspect.Signature(places))
    return call


def _array(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
