"""Real ranks: who is slow is named."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks.scripts import benchmark
from tests.builders.workloads import with_settings
from tests.forks.launcher import forked_here

stragglers = benchmark("stragglers")

SLOW_RANK = 1
# So slow that no neighbour on the other rank's core hides it.
SLEEP_PER_WORK = 4.0

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < stragglers.RANKS,
    reason="a slow rank can only be told from its neighbour if each has a core; expected at least 2",
)


def test_a_rank_that_sleeps_for_most_of_each_step_is_named(tmp_path: Path) -> None:
    """Smaller and other faults, and none, for which nobody may be named, are tried by benchmarks/stragglers.py."""
    pace = replace(stragglers.PACE, rounds=8, block_s=0.15, warmup_s=0.1)
    launch = stragglers.sleepy_launch(forked_here(), SLOW_RANK, SLEEP_PER_WORK)
    workload = with_settings(stragglers.WORKLOAD, model="shufflenet_v2_x0_5", batch_size=2, image_size=32)
    verdict = stragglers.judged_pair(tmp_path / "run", launch, pace, workload)
    assert [culprit.gpu_index for culprit in verdict.culprits] == [SLOW_RANK], verdict
    assert "the time of its only peer" in verdict.culprits[0].evidence
    assert "above the floor of 1 img/s" in verdict.culprits[0].evidence
