"""Each metric knows the arms it takes."""

from __future__ import annotations

import typing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.metric import METRICS, baseline_arm, measured_arm, required_arms
from pytest_ddpscale.plan.study import Arm
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.thresholds.model import MetricName

WORKLOAD = Workload("r", "resnet18", "fp32", 8, global_batch_size=16)


@pytest.mark.parametrize(
    ("metric", "world_size", "arms"),
    [
        ("throughput_per_gpu", 1, [Arm("alone", 1, 8)]),
        ("throughput_per_gpu", 4, [Arm("ddp", 4, 8)]),
        ("device_utilization", 4, [Arm("ddp", 4, 8)]),
        ("generation_ratio", 1, [Arm("alone", 1, 8)]),
        ("peak_memory_gib", 2, [Arm("ddp", 2, 8)]),
        ("weak_scaling_efficiency", 4, [Arm("alone", 1, 8), Arm("ddp", 4, 8)]),
        ("strong_scaling_speedup", 4, [Arm("alone", 1, 16), Arm("ddp", 4, 4)]),
        ("strong_scaling_efficiency", 16, [Arm("alone", 1, 16), Arm("ddp", 16, 1)]),
    ],
)
def test_arms_of_a_metric(metric: str, world_size: int, arms: list[Arm]) -> None:
    assert required_arms(METRICS[metric], WORKLOAD, world_size) == arms
    assert measured_arm(METRICS[metric], WORKLOAD, world_size) == arms[-1]


@pytest.mark.parametrize("world_size", [3, 5, 32])
def test_a_global_batch_that_ranks_cannot_share_evenly_is_refused(world_size: int) -> None:
    with pytest.raises(ValueError, match=f"^global_batch_size 16 of r cannot be shared evenly by {world_size} ranks$"):
        required_arms(METRICS["strong_scaling_speedup"], WORKLOAD, world_size)


def test_strong_scaling_without_a_global_batch_is_refused() -> None:
    workload = replace(WORKLOAD, global_batch_size=None)
    for make in (measured_arm, required_arms):
        with pytest.raises(ValueError, match=r"^workload r has no global_batch_size, which strong scaling divides$"):
            make(METRICS["strong_scaling_efficiency"], workload, 2)
    with pytest.raises(ValueError, match="no global_batch_size"):
        baseline_arm(METRICS["strong_scaling_efficiency"], workload)


@given(st.integers(1, 64), st.integers(1, 64))
def test_ranks_of_strong_scaling_train_the_whole_global_batch(world_size: int, share: int) -> None:
    workload = replace(WORKLOAD, global_batch_size=world_size * share)
    arm = measured_arm(METRICS["strong_scaling_efficiency"], workload, world_size)
    assert arm.batch_size * arm.world_size == workload.global_batch_size
    assert baseline_arm(METRICS["strong_scaling_efficiency"], workload).batch_size == workload.global_batch_size


def test_thresholds_know_exactly_the_metrics_of_the_catalogue() -> None:
    assert set(typing.get_args(MetricName)) == set(METRICS)


def test_only_memory_is_bounded_from_above() -> None:
    assert [name for name, metric in METRICS.items() if metric.upper_bound] == ["peak_memory_gib"]


def test_what_is_relative_to_one_gpu_alone_needs_at_least_two() -> None:
    for metric in METRICS.values():
        assert metric.minimum_world_size == (2 if metric.relative_to_alone else 1)
