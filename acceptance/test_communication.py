"""Communication: what a step costs beyond its computation."""

import pytest

from pytest_ddpscale.plugin.fixtures import JudgeableRequirement, Run


@pytest.mark.requirement("exposed_communication")
def test_exposed_communication(requirement: JudgeableRequirement, run: Run) -> None:
    """Computation hides communication, or links are fast."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()


@pytest.mark.requirement("ddp_overhead")
def test_ddp_overhead(requirement: JudgeableRequirement, run: Run) -> None:
    """DistributedDataParallel costs one GPU next to nothing."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()
