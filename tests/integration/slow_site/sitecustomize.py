"""A rank with a fault, for `test_stragglers.py`: with this folder on PYTHONPATH one rank sleeps in each step.

Python imports a module of this name at start-up, before the worker, so the real worker is measured.
Local rank SLOW_RANK sleeps after the computation of each step for SLOW_SHARE of the step's time.
"""

from __future__ import annotations

import os
import time


def make_slow(share: float) -> None:
    """Add to each step a sleep of this share of what it took."""
    from pytest_ddpscale.worker.training import Trainer

    whole_step = Trainer.__call__

    def slow_step(self: Trainer) -> None:
        began = time.perf_counter()
        whole_step(self)
        time.sleep(share * (time.perf_counter() - began))

    Trainer.__call__ = slow_step  # type: ignore[assignment, method-assign]


# torchrun sets LOCAL_RANK for ranks alone: neither it nor the node's agent has one.
if os.environ.get("LOCAL_RANK", "") == os.environ.get("SLOW_RANK", "none"):
    make_slow(float(os.environ["SLOW_SHARE"]))
