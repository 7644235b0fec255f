"""The module `volley_model`: what model code may know about its request.

`import volley_model` works in every model. `volley_model.current_request()` is the request that
the code works on. A model raises `volley_model.InvalidInput` and the like to tell its caller what
is wrong.
"""

from __future__ import annotations

import sys
import time
import types
from contextvars import ContextVar
from typing import Any, Optional


class Cancelled(BaseException):
    """The end of a call that nobody waits for any more. Not an `Exception`: `except Exception`
    in a model's loop does not swallow it."""


class ModelError(Exception):
    """An error whose text the caller sees."""

    code = "internal"


class InvalidInput(ModelError):
    """The request is wrong."""

    code = "invalid_input"


class Unsupported(ModelError):
    """The model does not do this."""

    code = "unsupported"


class NotFound(ModelError):
    """What the request names does not exist."""

    code = "not_found"


class Overloaded(ModelError):
    """The model takes no more requests now."""

    code = "overloaded"


class Request:
    """The request that a call belongs to."""

    __slots__ = ("request_id", "trace", "deadline", "_call")

    def __init__(self, call: Any, request_id: str, deadline: Optional[float],
                 trace: Optional[str]) -> None:
        self._call = call
        self.request_id = request_id
        #: The end of the time for the request, on the clock of `time.monotonic`.
        self.deadline = deadline
        #: W3C `traceparent`.
        self.trace = trace

    def remaining(self) -> Optional[float]:
        """Seconds that are left; None when there is no deadline."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - time.monotonic())

    def cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._call.cancelled


CURRENT: "ContextVar[Optional[Any]]" = ContextVar("volley_request", default=None)


def current_request() -> Optional[Request]:
    """The request that this code works on; None outside of requests."""
    call = CURRENT.get()
    return None if call is None else call.request


def install() -> None:
    """Makes the module importable by model code."""
    module = types.ModuleType("volley_model", __doc__)
    for public in (current_request, Request, Cancelled, ModelError, InvalidInput, Unsupported,
                   NotFound, Overloaded):
        setattr(module, public.__name__, public)
    sys.modules["volley_model"] = module
