"""Step time: a mean hides what comes late now and then."""

import pytest

from pytest_ddpscale.plugin.fixtures import JudgeableRequirement, Run


@pytest.mark.requirement("step_time_p95")
def test_step_time_p95(requirement: JudgeableRequirement, run: Run) -> None:
    """Hardly any step takes longer than it should."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()


@pytest.mark.requirement("step_time_cv")
def test_step_time_cv(requirement: JudgeableRequirement, run: Run) -> None:
    """Steps take about the same time, one as the other."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()
