"""History: a node that is within its bounds, and no longer what it was."""

import pytest

from pytest_ddpscale.plugin.fixtures import JudgeableRequirement, Run

pytestmark = pytest.mark.node_health


@pytest.mark.requirement("no_regression")
def test_no_regression(requirement: JudgeableRequirement, run: Run) -> None:
    """No node fell behind its own earlier runs."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()
