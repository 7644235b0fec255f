"""Client of Volley, an inference cluster.

`Client` and `AsyncClient` call models over Arrow Flight and REST and manage a cluster.
`volley_client.duckdb` and `volley_client.polars` register models as functions;
`volley_client.spark` and `volley_client.ray` run them over distributed tables.
"""

from __future__ import annotations

from . import errors
from ._inputs import Data
from ._options import CallOptions, RowOptions
from ._async_streams import AsyncGenerationStream, AsyncRowStream
from ._streams import GenerationStream, RowStream
from .async_client import AsyncClient
from .client import Client
from .errors import ConnectionLostError, StreamGoneError, VolleyError
from .results import Choice, Chunk, Generation, Rows
from .settings import TLS, Retry

__version__ = "0.1.0"

__all__ = [
    "TLS",
    "AsyncClient",
    "AsyncGenerationStream",
    "AsyncRowStream",
    "CallOptions",
    "Choice",
    "Chunk",
    "Client",
    "ConnectionLostError",
    "Data",
    "Generation",
    "GenerationStream",
    "Retry",
    "RowOptions",
    "RowStream",
    "Rows",
    "StreamGoneError",
    "VolleyError",
    "errors",
]
