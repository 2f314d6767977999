"""Stragglers: under DDP all ranks wait for the slowest, so that one slow GPU makes a slow cluster."""

import pytest

from pytest_ddpscale.plugin.fixtures import JudgeableRequirement, Run

pytestmark = pytest.mark.node_health


@pytest.mark.requirement("rank_uniformity")
def test_rank_uniformity(requirement: JudgeableRequirement, run: Run) -> None:
    """No GPU computes slower than its peers."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()
