"""Throughput: efficiency alone would pass if every GPU were equally slow."""

import pytest

from pytest_ddpscale.plugin.fixtures import JudgeableRequirement, Run


@pytest.mark.requirement("throughput_per_gpu")
def test_throughput_per_gpu(requirement: JudgeableRequirement, run: Run) -> None:
    """Each GPU trains at least as many images per second as its model should."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()


@pytest.mark.requirement("generation_ratio")
def test_generation_ratio(requirement: JudgeableRequirement, run: Run) -> None:
    """The new generation is as much faster than the old one as it should be."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()


@pytest.mark.requirement("model_flops_utilization")
def test_model_flops_utilization(requirement: JudgeableRequirement, run: Run) -> None:
    """Each GPU uses as much of what its data sheet promises as it should."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()
