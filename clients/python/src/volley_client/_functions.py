"""Models as functions of SQL engines: their arguments and their result. Needs a Flight URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping, Sequence, Tuple, Union

import pyarrow as pa

from .client import Client

ARGUMENTS = b"x-databend-udf-input-count"

Names = Union[None, Sequence[str], Mapping[str, str]]
"""Functions to register: all, these, or each under the name that is its key."""


@dataclass(frozen=True)
class Function:
    """A model as a function."""

    client: Client
    target: str
    arguments: Tuple[pa.Field, ...]
    result: pa.DataType

    def __call__(self, arguments: Sequence[pa.Array]) -> pa.ChunkedArray:
        """Returns one value per row; null for a row with a null argument."""
        cast = [
            given if given.type == field.type else given.cast(field.type)
            for given, field in zip(arguments, self.arguments)
        ]
        return self.client.call_function(self.target, cast)


def function(client: Client, target: str) -> Function:
    """Returns a model as a function. `target` is its name, and options after a question mark."""
    schema = client.function_schema(target)
    count = int(schema.metadata[ARGUMENTS])
    return Function(
        client, target, tuple(schema.field(it) for it in range(count)), schema.types[-1]
    )


def chosen(client: Client, models: Names) -> List[Tuple[str, str]]:
    """Returns the name and the target of each function to register."""
    if isinstance(models, str):
        raise ValueError("'models' must be a list of models, or a dict of names and models")
    if models is None:
        return [(model, model) for model in client.functions()]
    if isinstance(models, Mapping):
        return list(models.items())
    return [(model, model) for model in models]
