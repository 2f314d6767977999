"""Weak scaling: the per-GPU batch stays fixed while GPUs are added."""

import pytest

from pytest_ddpscale.plugin.fixtures import JudgeableRequirement, Run


@pytest.mark.requirement("weak_scaling_efficiency")
def test_weak_scaling_efficiency(requirement: JudgeableRequirement, run: Run) -> None:
    """Each GPU stays as productive among many as it is alone."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()
