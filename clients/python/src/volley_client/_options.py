"""Signatures of options that both clients share."""

from __future__ import annotations

from typing import Mapping, Optional, TypedDict

from ._plans import RowOptions
from .settings import Call, Deadline, Parameter

__all__ = ["CallOptions", "RowOptions", "call"]


class CallOptions(TypedDict, total=False):
    """Options of a generation.

    Attributes:
        parameters: Parameters of the model, such as ``{"max_tokens": 32}``.
        timeout: Seconds until the answer must be complete.
        transport: ``"flight"`` or ``"rest"``; default Flight if the client has a Flight URL.
        session: Requests of one session go to the same replica while they can.
    """

    parameters: Optional[Mapping[str, Parameter]]
    timeout: Optional[float]
    transport: Optional[str]
    session: Optional[str]


def call(model: str, options: CallOptions) -> Call:
    """Returns the terms of a call."""
    unknown = sorted(set(options) - set(CallOptions.__annotations__))
    if unknown:
        known = sorted(CallOptions.__annotations__)
        raise TypeError(
            f"there is no option '{unknown[0]}'; known are {known}; parameters of the model are "
            "given as parameters={...}"
        )
    return Call(
        model,
        dict(options.get("parameters") or {}),
        Deadline(options.get("timeout")),
        options.get("session"),
    )
