"""Replicas: a GPU that computes something else is worse than a slow one."""

import pytest

from pytest_ddpscale.plugin.fixtures import JudgeableRequirement, Run

pytestmark = pytest.mark.node_health


@pytest.mark.requirement("replica_agreement")
def test_replica_agreement(requirement: JudgeableRequirement, run: Run) -> None:
    """All ranks compute the same, bit for bit."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()
