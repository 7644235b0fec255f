"""What a client is configured with: TLS, retries, and the terms of one call."""

from __future__ import annotations

import ssl
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Mapping, Optional, Tuple, Union

from .errors import too_late

PathLike = Union[str, Path]

Parameter = Union[None, bool, int, float, str, list, dict]  # type: ignore[type-arg]
"""A value of a request parameter: what JSON can represent."""


@dataclass(frozen=True)
class TLS:
    """Certificates for ``https://`` and ``grpc+tls://`` URLs.

    Attributes:
        ca_file: PEM file of the authority that signs the coordinators' certificates. Without it,
            the authorities of the system are trusted.
        cert_file, key_file: PEM files of the client's own certificate, if the cluster requires one.
        server_name: The name that the certificate of a Flight server has, if it differs from the
            host of the URL.
    """

    ca_file: Optional[PathLike] = None
    cert_file: Optional[PathLike] = None
    key_file: Optional[PathLike] = None
    server_name: Optional[str] = None

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("TLS needs both 'cert_file' and 'key_file', or neither")

    def context(self) -> ssl.SSLContext:
        """Returns the context of HTTPS connections."""
        cafile = None if self.ca_file is None else str(self.ca_file)
        context = ssl.create_default_context(cafile=cafile)
        if self.cert_file is not None and self.key_file is not None:
            context.load_cert_chain(str(self.cert_file), str(self.key_file))
        return context

    def pem(self) -> Tuple[Optional[bytes], Optional[bytes], Optional[bytes]]:
        """Returns the bytes of the authority, the certificate and the key."""
        files = (self.ca_file, self.cert_file, self.key_file)
        ca, cert, key = (None if file is None else Path(file).read_bytes() for file in files)
        return ca, cert, key


@dataclass(frozen=True)
class Retry:
    """How often work without an answer is sent again.

    Only rows without an answer are sent again, and only after errors that say that a later attempt
    can succeed: a lost connection, ``unavailable`` and ``overloaded``. Progress resets the count.

    Attributes:
        attempts: Attempts without progress, the first one included; at least 1.
        backoff: Seconds before the first repetition on the same coordinators; doubles each time.
        max_backoff: Longest pause in seconds.
    """

    attempts: int = 8
    backoff: float = 0.1
    max_backoff: float = 5.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError("'attempts' must be at least 1")
        if self.backoff < 0 or self.max_backoff < self.backoff:
            raise ValueError("'backoff' must be at least 0 and at most 'max_backoff'")

    def pause(self, failures: int, asked: Optional[float]) -> float:
        """Returns the seconds before the next attempt, after so many failures without progress."""
        own = min(self.max_backoff, self.backoff * 2.0 ** min(failures - 1, 16))
        return own if asked is None else max(own, asked)


class Deadline:
    """The time by which a call must be complete; `None` seconds is no deadline."""

    __slots__ = ("_at",)

    def __init__(self, seconds: Optional[float]) -> None:
        if seconds is not None and seconds <= 0:
            raise ValueError("'timeout' must be greater than 0")
        self._at = None if seconds is None else time.monotonic() + seconds

    def left(self, most: float) -> float:
        """Returns the seconds that are left, at most `most`.

        Raises:
            DeadlineExceededError: None are left.
        """
        if self._at is None:
            return most
        left = self._at - time.monotonic()
        if left <= 0:
            raise too_late()
        return min(most, left)

    def passed(self) -> bool:
        """Returns whether no time is left."""
        return self._at is not None and self._at <= time.monotonic()


@dataclass(frozen=True)
class Call:
    """The terms of one call of a model."""

    model: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    deadline: Deadline = field(default_factory=lambda: Deadline(None))
    session: Optional[str] = None
    function: bool = False
    """Whether the answer is one value per row, as SQL engines take it."""
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def named(self) -> Tuple[str, int]:
        """Returns the name of the model and its version; 0 is the deployed version."""
        name, separator, version = self.model.rpartition(":")
        if separator and version.isdigit():
            return name, int(version)
        return self.model, 0
