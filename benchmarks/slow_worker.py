"""The worker with a fault, for `stragglers.py`: ``slow_worker.py RANK SHARE ARGUMENTS…``.

That rank sleeps, after the computation of each step, SHARE of the time that the step took.
"""

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
    slow_rank, sleep_share = sys.argv[1:3]
    del sys.argv[1:3]
    if os.environ["RANK"] == slow_rank:
        make_slow(float(sleep_share))
    sys.exit(worker.main())
