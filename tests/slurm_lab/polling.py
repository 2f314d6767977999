"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

# Most conditions start a command of Slurm: asked for a minute, they would take half a core from what is waited for.
LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.05, 0.5
SHARE = 0.05  # of the time waited so far


class LabTimeoutError(AssertionError):
    """Something in the lab did not come about in time: a failed test, with what was seen instead."""


def wait_until(
    condition: Callable[[], bool], deadline_s: float, what: str, *, seen: Callable[[], str] | None = None
) -> None:
    """Poll ``condition`` until it holds.

    Args:
        condition: asked every 0.05 s at first, less often later.
        deadline_s: seconds from now.
        what: what is waited for, to be read after "waited 5 s for".
        seen: what there is instead; asked only when the deadline has passed.

    Raises:
        LabTimeoutError: when the deadline has passed.
    """
    began = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - began
        if waited_s > deadline_s:
            instead = f"; found: {seen()}" if seen else ""
            raise LabTimeoutError(f"waited {deadline_s:g} s for {what}{instead}")
        time.sleep(min(max(LEAST_INTERVAL_S, SHARE * waited_s), MOST_INTERVAL_S))
