"""Strong scaling: the global batch stays fixed while GPUs are added."""

import pytest

from pytest_ddpscale.plugin.fixtures import JudgeableRequirement, Run


@pytest.mark.requirement("strong_scaling_speedup")
def test_strong_scaling_speedup(requirement: JudgeableRequirement, run: Run) -> None:
    """More GPUs train the same batch faster."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()


@pytest.mark.requirement("strong_scaling_efficiency")
def test_strong_scaling_efficiency(requirement: JudgeableRequirement, run: Run) -> None:
    """The speed-up is worth the GPUs it takes."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()
