"""Scaling: GPUs train fast, alone and among many, and what they cost each other is little."""

import pytest

from pytest_ddpscale.plugin.fixtures import ItemVerdict


@pytest.mark.requirement("throughput_per_gpu")
def test_throughput_per_gpu(verdict: ItemVerdict) -> None:
    """Each GPU trains at least as many images per second as its model should."""
    verdict.check()


@pytest.mark.requirement("generation_ratio")
def test_generation_ratio(verdict: ItemVerdict) -> None:
    """The new generation is as much faster than the old one as it should be."""
    verdict.check()


@pytest.mark.requirement("weak_scaling_efficiency")
def test_weak_scaling_efficiency(verdict: ItemVerdict) -> None:
    """Each GPU stays as productive among many as it is alone."""
    verdict.check()


@pytest.mark.requirement("strong_scaling_speedup")
def test_strong_scaling_speedup(verdict: ItemVerdict) -> None:
    """More GPUs train the same batch faster."""
    verdict.check()


@pytest.mark.requirement("strong_scaling_efficiency")
def test_strong_scaling_efficiency(verdict: ItemVerdict) -> None:
    """The speed-up is worth the GPUs it takes."""
    verdict.check()


@pytest.mark.requirement("exposed_communication")
def test_exposed_communication(verdict: ItemVerdict) -> None:
    """Computation hides communication, or links are fast."""
    verdict.check()


@pytest.mark.requirement("input_pipeline_efficiency")
def test_input_pipeline_efficiency(verdict: ItemVerdict) -> None:
    """Training does not wait for its data."""
    verdict.check()


@pytest.mark.requirement("ddp_overhead")
def test_ddp_overhead(verdict: ItemVerdict) -> None:
    """DistributedDataParallel costs one GPU next to nothing."""
    verdict.check()


@pytest.mark.requirement("step_time_p95")
def test_step_time_p95(verdict: ItemVerdict) -> None:
    """Hardly any step takes longer than it should."""
    verdict.check()


@pytest.mark.requirement("step_time_cv")
def test_step_time_cv(verdict: ItemVerdict) -> None:
    """Steps take about the same time, one as the other."""
    verdict.check()
