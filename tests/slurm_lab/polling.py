"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

INTERVAL_S = 0.05


class LabTimeoutError(AssertionError):
    """Something in the lab did not come about in time: a failed test, with what was seen instead."""


def wait_until(
    condition: Callable[[], bool], deadline_s: float, what: str, *, seen: Callable[[], str] | None = None
) -> None:
    """Poll ``condition`` until it holds.

    Args:
        condition: asked every 0.05 s.
        deadline_s: seconds from now.
        what: what is waited for, to be read after "waited 5 s for".
        seen: what there is instead; asked only when the deadline has passed.

    Raises:
        LabTimeoutError: when the deadline has passed.
    """
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            instead = f"; found: {seen()}" if seen else ""
            raise LabTimeoutError(f"waited {deadline_s:g} s for {what}{instead}")
        time.sleep(INTERVAL_S)
