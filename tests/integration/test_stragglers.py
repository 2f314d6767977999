"""Real faults in real ranks: who is slow is named, and without a fault nobody is."""

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
NOTHING, SLEEPS, NEIGHBOUR = stragglers.FAULTS


# Of two ranks one each: benchmarks/stragglers.py tries both, many times.
@pytest.mark.parametrize("slow_rank", [1])
def test_a_rank_that_sleeps_a_fifth_of_each_step_is_named(slow_rank: int) -> None:
    outcome = stragglers.one_run(SLEEPS, slow_rank)
    assert outcome.named == (slow_rank,), outcome
    assert "the time of its only peer" in outcome.evidence
    assert "above the floor of 1 img/s" in outcome.evidence


@pytest.mark.parametrize("slow_rank", [0])
def test_a_rank_with_a_busy_neighbour_on_its_core_is_named(slow_rank: int) -> None:
    outcome = stragglers.one_run(NEIGHBOUR, slow_rank)
    assert outcome.named == (slow_rank,), outcome


def test_without_a_fault_nobody_is_accused() -> None:
    outcome = stragglers.one_run(NOTHING, None)
    assert outcome.named == (), outcome
