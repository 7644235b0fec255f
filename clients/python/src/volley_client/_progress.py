"""Progress bars in terminals and notebooks, and functions that follow the progress."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Callable, Optional, Type, Union

Progress = Union[bool, Callable[[int], None]]
"""``True`` for a bar, or a function that receives the number of rows answered since its last call."""


class Bar:
    """What a call reports its answered rows to."""

    def __init__(self, progress: Progress, total: Optional[int], label: str) -> None:
        self._bar: Any = None
        self._function: Optional[Callable[[int], None]] = None
        if callable(progress):
            self._function = progress
        elif progress:
            try:
                from tqdm.auto import tqdm
            except ImportError as error:
                raise ImportError(
                    "progress=True needs the package tqdm: pip install 'volley-client[progress]'"
                ) from error
            self._bar = tqdm(total=total, desc=label, unit="row", unit_scale=True)

    def add(self, rows: int) -> None:
        """Reports answered rows."""
        if self._function is not None:
            self._function(rows)
        if self._bar is not None:
            self._bar.update(rows)

    def close(self) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()
