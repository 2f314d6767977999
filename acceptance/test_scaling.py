"""Scaling: GPUs train fast alone and together, with little overhead."""

import pytest

from pytest_ddpscale.plugin.fixtures import ItemVerdict


@pytest.mark.requirement("throughput_per_gpu")
def test_throughput_per_gpu(verdict: ItemVerdict) -> None:
    """Each GPU trains the required number of images per second."""
    verdict.check()


@pytest.mark.requirement("generation_ratio")
def test_generation_ratio(verdict: ItemVerdict) -> None:
    """The new generation is faster than the old one by the required factor."""
    verdict.check()


@pytest.mark.requirement("weak_scaling_efficiency")
def test_weak_scaling_efficiency(verdict: ItemVerdict) -> None:
    """Each GPU keeps the required share of its single-GPU throughput."""
    verdict.check()


@pytest.mark.requirement("strong_scaling_speedup")
def test_strong_scaling_speedup(verdict: ItemVerdict) -> None:
    """More GPUs train the same global batch faster."""
    verdict.check()


@pytest.mark.requirement("strong_scaling_efficiency")
def test_strong_scaling_efficiency(verdict: ItemVerdict) -> None:
    """The speed-up is worth the GPUs it takes."""
    verdict.check()


@pytest.mark.requirement("exposed_communication")
def test_exposed_communication(verdict: ItemVerdict) -> None:
    """Computation hides communication, or the links are fast enough."""
    verdict.check()


@pytest.mark.requirement("computation_time")
def test_computation_time(verdict: ItemVerdict) -> None:
    """GPUs compute a step fast while all GPUs compute."""
    verdict.check()


@pytest.mark.requirement("communication_time")
def test_communication_time(verdict: ItemVerdict) -> None:
    """Communication that computation does not hide takes little time."""
    verdict.check()


@pytest.mark.requirement("input_pipeline_efficiency")
def test_input_pipeline_efficiency(verdict: ItemVerdict) -> None:
    """Training does not wait for data."""
    verdict.check()


@pytest.mark.requirement("ddp_overhead")
def test_ddp_overhead(verdict: ItemVerdict) -> None:
    """DistributedDataParallel adds almost no time on one GPU."""
    verdict.check()


@pytest.mark.requirement("step_time_p95")
def test_step_time_p95(verdict: ItemVerdict) -> None:
    """95 % of steps finish within the required time."""
    verdict.check()


@pytest.mark.requirement("step_time_cv")
def test_step_time_cv(verdict: ItemVerdict) -> None:
    """Step times vary little."""
    verdict.check()
