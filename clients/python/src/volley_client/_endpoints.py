"""The coordinators of a client, and which of them the next exchange goes to."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Dict, List, Sequence
from urllib.parse import urlsplit

FLIGHT = {"grpc": "grpc+tcp", "grpc+tcp": "grpc+tcp", "grpc+tls": "grpc+tls"}
REST = {"http", "https"}

FIRST_PAUSE = 0.25
LONGEST_PAUSE = 10.0


@dataclass
class Endpoint:
    """One URL of a coordinator."""

    url: str
    failures: int = 0
    failed_until: float = 0.0


class Endpoints:
    """Coordinators in turns; those whose connection was lost come last for a while."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._all: List[Endpoint] = [Endpoint(url) for url in urls]
        self._turn = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._all)

    def next(self) -> Endpoint:
        """Returns the next coordinator without a recent failure, or the one that failed first."""
        with self._lock:
            now = time.monotonic()
            order = self._all[self._turn :] + self._all[: self._turn]
            healthy = [endpoint for endpoint in order if endpoint.failed_until <= now]
            chosen = healthy[0] if healthy else min(order, key=lambda it: it.failed_until)
            self._turn = (self._all.index(chosen) + 1) % len(self._all)
            return chosen

    def has_untried(self) -> bool:
        """Returns whether a coordinator has had no failure recently."""
        now = time.monotonic()
        return any(endpoint.failed_until <= now for endpoint in self._all)

    def failed(self, endpoint: Endpoint) -> None:
        """Notes that the connection to a coordinator was lost."""
        with self._lock:
            endpoint.failures += 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(endpoint.failures - 1, 16))
            endpoint.failed_until = time.monotonic() + pause

    def works(self, endpoint: Endpoint) -> None:
        """Notes that a coordinator answered."""
        if endpoint.failures:
            with self._lock:
                endpoint.failures, endpoint.failed_until = 0, 0.0


def by_transport(urls: Sequence[str]) -> Dict[str, Endpoints]:
    """Sorts URLs into those of Flight and those of REST.

    Raises:
        ValueError: There is no URL, or one has another scheme or no host and port.
    """
    if isinstance(urls, str):
        raise ValueError("'urls' must be a list of URLs, such as ['grpc://127.0.0.1:8421']")
    flight: List[str] = []
    rest: List[str] = []
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in FLIGHT and parts.scheme not in REST:
            raise ValueError(
                f"URL '{url}' must begin with grpc://, grpc+tls://, http:// or https://"
            )
        if not parts.hostname or parts.username or parts.query or parts.fragment:
            raise ValueError(f"URL '{url}' must have the form scheme://host:port")
        if parts.scheme in FLIGHT:
            if parts.port is None or parts.path.strip("/"):
                raise ValueError(f"URL '{url}' must have the form {parts.scheme}://host:port")
            flight.append(f"{FLIGHT[parts.scheme]}://{parts.netloc}")
        else:
            rest.append(url.rstrip("/"))
    if not flight and not rest:
        raise ValueError("'urls' is empty; name at least one coordinator")
    found = {"flight": flight, "rest": rest}
    return {name: Endpoints(list(dict.fromkeys(all_))) for name, all_ in found.items() if all_}
