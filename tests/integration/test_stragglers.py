"""Real ranks: who is slow is named, and without a fault nobody is."""

from __future__ import annotations

import os

import pytest

from tests.benchmarks.scripts import benchmark

stragglers = benchmark("stragglers")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timing,
    pytest.mark.skipif(
        not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < stragglers.RANKS,
        reason="a slow rank can only be told from its neighbour if each has a core; expected at least 2",
    ),
]


def test_a_rank_that_sleeps_a_fifth_of_each_step_is_named() -> None:
    """The other rank and a busy neighbour are tried many times by benchmarks/stragglers.py."""
    outcome = stragglers.one_run(stragglers.FAULTS[1], slow_rank=1)
    assert outcome.named == (1,), outcome
    assert "the time of its only peer" in outcome.evidence
    assert "above the floor of 1 img/s" in outcome.evidence


def test_without_a_fault_nobody_is_accused() -> None:
    outcome = stragglers.one_run(stragglers.FAULTS[0], None)
    assert outcome.named == (), outcome
