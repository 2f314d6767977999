"""Devices: each is busy, and the training fits its memory, on one as on the other."""

import pytest

from pytest_ddpscale.plugin.fixtures import JudgeableRequirement, Run


@pytest.mark.requirement("device_utilization")
def test_device_utilization(requirement: JudgeableRequirement, run: Run) -> None:
    """No device idles while it should train."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()


@pytest.mark.requirement("images_per_joule")
def test_images_per_joule(requirement: JudgeableRequirement, run: Run) -> None:
    """No GPU takes more energy for an image than it should."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()


@pytest.mark.requirement("peak_memory_gib")
def test_peak_memory(requirement: JudgeableRequirement, run: Run) -> None:
    """Training leaves the memory free that it should."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()


@pytest.mark.requirement("memory_spread")
def test_memory_spread(requirement: JudgeableRequirement, run: Run) -> None:
    """All ranks hold about the same."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()
