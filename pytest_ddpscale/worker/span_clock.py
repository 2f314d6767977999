"""Where a whole run's time goes on one rank: spans of one clock that never overlap."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class SpanClock:
    """Adds up named spans, in seconds.

    What happens between two spans belongs to none: it shows as unexplained against who watched from outside.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open = ""

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Within this context the time is that span's. Raises RuntimeError within another one."""
        if self._open:
            raise RuntimeError(f"{name} begins within {self._open}; spans of one clock do not overlap")
        self._open, began = name, time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
            self._open = ""

    def taken(self) -> dict[str, float]:
        """What was added up so far; from now on it begins at nothing."""
        seconds, self.seconds = self.seconds, {}
        return seconds
