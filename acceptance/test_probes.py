"""Probes: what training hides, a broken link or a slow memory, each asked for by itself."""

import pytest

from pytest_ddpscale.plugin.fixtures import JudgeableRequirement, Run

pytestmark = pytest.mark.node_health


@pytest.mark.requirement("matmul_tflops")
def test_matmul(requirement: JudgeableRequirement, run: Run) -> None:
    """Every GPU multiplies matrices as fast as its model should."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()


@pytest.mark.requirement("memory_bandwidth_gbps")
def test_memory_bandwidth(requirement: JudgeableRequirement, run: Run) -> None:
    """Every GPU's memory is as fast as it should be."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()


@pytest.mark.requirement("host_bandwidth_gbps")
def test_host_bandwidth(requirement: JudgeableRequirement, run: Run) -> None:
    """Every GPU reaches its host at full speed, while the others do too."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()


@pytest.mark.requirement("busbw_gbps")
def test_bus_bandwidth(requirement: JudgeableRequirement, run: Run) -> None:
    """Collectives are as fast as the links between GPUs allow."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()


@pytest.mark.requirement("pair_bandwidth_gbps")
def test_pair_bandwidth(requirement: JudgeableRequirement, run: Run) -> None:
    """Any two GPUs of a node reach each other at full speed."""
    verdict = requirement.judge(run)
    assert verdict.passed, verdict.explain()
