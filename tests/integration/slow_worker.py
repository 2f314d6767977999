"""The worker with a fault in one rank: ``SLOW_RANK`` sleeps ``SLOW_SHARE`` of each step in its computation."""

from __future__ import annotations

import os
import sys
import time

from pytest_ddpscale.worker import __main__ as worker
from pytest_ddpscale.worker.training import Trainer


def make_slow(share: float) -> None:
    """Add to each step a sleep of this share of what it took."""
    whole_step = Trainer.__call__

    def slow_step(self: Trainer) -> None:
        began = time.perf_counter()
        whole_step(self)
        time.sleep(share * (time.perf_counter() - began))

    Trainer.__call__ = slow_step  # type: ignore[method-assign]


if __name__ == "__main__":
    if os.environ["RANK"] == os.environ["SLOW_RANK"]:
        make_slow(float(os.environ["SLOW_SHARE"]))
    sys.exit(worker.main())
