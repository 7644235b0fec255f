"""Metrics of models. The host keeps them in the process; a worker does not export them."""

from __future__ import annotations

import bisect
import logging
import threading
from typing import Any, Dict, List, Optional, Sequence

from .values import TritonModelException

COUNTER = 0
GAUGE = 1
HISTOGRAM = 2


class Metric:
    """One series of a family."""

    def __init__(self, kind: int, buckets: Optional[Sequence[float]]) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._value = 0.0
        self._bounds = list(buckets or [])
        self._counts = [0] * (len(self._bounds) + 1)

    def increment(self, value: float) -> None:
        """Adds a number, which must not be negative for a counter."""
        self._needs("increment", COUNTER, GAUGE)
        if self._kind == COUNTER and value < 0:
            raise TritonModelException("a counter cannot decrease")
        with self._lock:
            self._value += value

    def set(self, value: float) -> None:
        """Sets a gauge."""
        self._needs("set", GAUGE)
        self._value = float(value)

    def observe(self, value: float) -> None:
        """Counts a value in a histogram."""
        self._needs("observe", HISTOGRAM)
        with self._lock:
            self._counts[bisect.bisect_left(self._bounds, value)] += 1
            self._value += value

    def value(self) -> float:
        """The current number of a counter or gauge."""
        self._needs("value", COUNTER, GAUGE)
        return self._value

    def _needs(self, method: str, *kinds: int) -> None:
        if self._kind not in kinds:
            raise TritonModelException("a metric of this kind has no '%s'" % method)


class MetricFamily:
    """Metrics of one name."""

    COUNTER = COUNTER
    GAUGE = GAUGE
    HISTOGRAM = HISTOGRAM

    def __init__(self, name: str, description: str, kind: int) -> None:
        if kind not in (COUNTER, GAUGE, HISTOGRAM):
            raise TritonModelException("%r is not a kind of a metric family" % (kind,))
        self._name = name
        self._kind = kind
        self._metrics: Dict[Any, Metric] = {}
        logging.getLogger("triton").warning(
            "the metric family '%s' (%s) stays in the model's process: a worker does not export "
            "metrics of models", name, description)

    # The name is Triton's.
    def Metric(self, labels: Optional[Dict[str, str]] = None,  # noqa: N802
               buckets: Optional[List[float]] = None) -> Metric:
        """The metric with these labels; a histogram needs the bounds of its buckets."""
        if (buckets is not None) != (self._kind == HISTOGRAM):
            raise TritonModelException("a histogram needs 'buckets', and no other metric takes "
                                       "them; the family is '%s'" % self._name)
        if buckets is not None and sorted(set(buckets)) != list(buckets):
            raise TritonModelException("the buckets of '%s' must ascend" % self._name)
        key = tuple(sorted((labels or {}).items()))
        return self._metrics.setdefault(key, Metric(self._kind, buckets))
