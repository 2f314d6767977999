"""Time of a whole run on one rank, in named spans that never overlap."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class SpanClock:
    """Adds up named spans, in seconds.

    Time between two spans belongs to none; it shows as unexplained in a comparison with an outer clock.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open = ""

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the time within this context for a span. Raises RuntimeError within another span."""
        if self._open:
            raise RuntimeError(f"{name} begins within {self._open}; spans of one clock do not overlap")
        self._open, began = name, time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
            self._open = ""

    def taken(self) -> dict[str, float]:
        """Return the sums so far and reset them."""
        seconds, self.seconds = self.seconds, {}
        return seconds
