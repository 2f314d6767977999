"""Real ranks: who is slow is named."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.benchmarks.scripts import benchmark

stragglers = benchmark("stragglers")

pytestmark = [
    pytest.mark.timing,
    pytest.mark.skipif(
        not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < stragglers.RANKS,
        reason="a slow rank can only be told from its neighbour if each has a core; expected at least 2",
    ),
]


def test_a_rank_that_sleeps_a_fifth_of_each_step_is_named() -> None:
    """Other faults, and none, for which nobody may be named, are tried many times by benchmarks/stragglers.py."""
    # While it runs, nothing else does.
    pace = replace(stragglers.PACE, rounds=8, block_s=0.3)
    workload = replace(stragglers.WORKLOAD, batch_size=4)
    outcome = stragglers.one_run(stragglers.FAULTS[1], slow_rank=1, pace=pace, workload=workload)
    assert outcome.named == (1,), outcome
    assert "the time of its only peer" in outcome.evidence
    assert "above the floor of 1 img/s" in outcome.evidence
