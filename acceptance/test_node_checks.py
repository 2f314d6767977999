"""Node checks: a node that is not what it should be need not be measured to be sent back."""

import pytest

from pytest_ddpscale.plugin.fixtures import JudgeableRequirement, Run

pytestmark = pytest.mark.node_health


@pytest.mark.requirement("node_check")
def test_node_check(requirement: JudgeableRequirement, run: Run) -> None:
    """Every node is as it should be, before it works and while it does."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()
