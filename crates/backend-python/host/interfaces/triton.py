"""Triton's Python models, which are recognised and refused."""

from __future__ import annotations

from .base import LoadError, Model, Source


def load(source: Source) -> Model:
    """Fails with a clear message."""
    raise LoadError("Triton's Python models are not supported yet")
