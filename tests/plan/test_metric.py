"""Each metric knows the arms it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.metric_catalogue import METRICS, TRAINING_METRICS
from pytest_ddpscale.plan.operation import COLLECTIVES, KINDS
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.workload import ImageFolderData, Workload
from tests.rows import rows

WORKLOAD = Workload("r", ImageFamily("resnet18"), "fp32", 8, global_batch_size=16)
IMAGES = ImageFolderData("/images")


@rows(
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
        ("rank_uniformity", 4, [Arm("ddp", 4, 8)]),
        ("exposed_communication", 4, [Arm("no_sync", 4, 8), Arm("ddp", 4, 8)]),
        ("ddp_overhead", 1, [Arm("alone", 1, 8), Arm("ddp", 1, 8)]),
        ("step_time_p95", 1, [Arm("alone", 1, 8)]),
        ("step_time_p95", 4, [Arm("ddp", 4, 8)]),
        ("step_time_cv", 4, [Arm("ddp", 4, 8)]),
        ("model_flops_utilization", 4, [Arm("ddp", 4, 8)]),
        ("memory_spread", 4, [Arm("ddp", 4, 8)]),
        ("replica_agreement", 4, [Arm("ddp", 4, 8)]),
        ("inference_throughput", 1, [Arm("infer", 1, 8)]),
        ("inference_throughput", 4, [Arm("infer", 4, 8)]),
        ("inference_latency_p99", 4, [Arm("infer", 4, 8)]),
    ],
)
def test_arms_of_a_metric(metric: str, world_size: int, arms: list[Arm]) -> None:
    assert Question(METRICS[metric], WORKLOAD, world_size).arms == arms
    assert Question(METRICS[metric], WORKLOAD, world_size).measured == arms[-1]


@rows(
    ("metric", "world_size", "arms"),
    [
        ("throughput_per_gpu", 1, [Arm("ddp", 1, 8)]),
        ("throughput_per_gpu", 4, [Arm("ddp", 4, 8)]),
        ("generation_ratio", 1, [Arm("ddp", 1, 8)]),
        ("weak_scaling_efficiency", 4, [Arm("ddp", 1, 8), Arm("ddp", 4, 8)]),
        ("strong_scaling_efficiency", 16, [Arm("ddp", 1, 16), Arm("ddp", 16, 1)]),
        ("ddp_overhead", 1, [Arm("alone", 1, 8), Arm("ddp", 1, 8)]),
        ("exposed_communication", 4, [Arm("no_sync", 4, 8), Arm("ddp", 4, 8)]),
        ("rank_uniformity", 4, [Arm("ddp", 4, 8)]),
    ],
)
def test_arms_of_a_metric_whose_source_wrapped_one_gpu_in_ddp(metric: str, world_size: int, arms: list[Arm]) -> None:
    assert Question(METRICS[metric], WORKLOAD, world_size, one_gpu="ddp").arms == arms


@rows("world_size", [3, 5, 32])
def test_a_global_batch_that_ranks_cannot_share_evenly_is_refused(world_size: int) -> None:
    with pytest.raises(ValueError, match=f"^global_batch_size 16 of r cannot be shared evenly by {world_size} ranks$"):
        _ = Question(METRICS["strong_scaling_speedup"], WORKLOAD, world_size).measured


@rows("arm", ["measured", "baseline"])
def test_strong_scaling_without_a_global_batch_is_refused(arm: str) -> None:
    workload = replace(WORKLOAD, global_batch_size=None)
    with pytest.raises(ValueError, match=r"^workload r has no global_batch_size, which strong scaling divides$"):
        getattr(Question(METRICS["strong_scaling_efficiency"], workload, 2), arm)


@given(st.integers(1, 64), st.integers(1, 64))
def test_ranks_of_strong_scaling_train_the_whole_global_batch(world_size: int, share: int) -> None:
    workload = replace(WORKLOAD, global_batch_size=world_size * share)
    alone, arm = Question(METRICS["strong_scaling_efficiency"], workload, world_size).arms
    assert arm.batch_size * arm.world_size == workload.global_batch_size
    assert alone == Arm("alone", 1, world_size * share)


def test_costs_and_differences_are_bounded_from_above() -> None:
    costs = {
        "memory_spread",
        "rank_uniformity",
        "node_uniformity",
        "probe_uniformity",
        "exposed_communication",
        "ddp_overhead",
        "step_time_cv",
    }
    for name, metric in METRICS.items():
        assert metric.upper_bound == (name in costs or metric.unit in ("GiB", "ms")), name


def test_what_compares_ranks_needs_at_least_two() -> None:
    differences_of_ranks = {"memory_spread", "replica_agreement"}
    for name, metric in TRAINING_METRICS.items():
        compares = metric.reads_own_pace or metric.baseline == "no_sync" or name in differences_of_ranks
        scales = metric.baseline == "alone" and metric.maximum_world_size != 1
        assert metric.minimum_world_size == (2 if compares or scales else 1), name


def test_only_the_overhead_of_ddp_is_of_one_rank_alone() -> None:
    assert {n: m.maximum_world_size for n, m in TRAINING_METRICS.items() if m.maximum_world_size} == {"ddp_overhead": 1}


def test_what_is_no_training_is_about_a_probe_a_check_or_a_node() -> None:
    assert {name: metric.subject for name, metric in METRICS.items() if name not in TRAINING_METRICS} == {
        "node_check": "check", "no_regression": "node", "matmul_tflops": "probe", "memory_bandwidth_gbps": "probe",
        "host_bandwidth_gbps": "probe", "busbw_gbps": "probe", "pair_bandwidth_gbps": "probe",
            "probe_uniformity": "probe",
    }  # fmt: skip


def test_each_probe_is_measured_by_one_metric_of_as_many_ranks_as_it_takes() -> None:
    of_values = [metric for metric in METRICS.values() if not metric.compares_places]
    measured_by = {kind: metric for metric in of_values for kind in metric.probes}
    assert sorted(measured_by) == sorted(KINDS)
    assert sum(len(metric.probes) for metric in of_values) == len(measured_by)
    for kind, metric in measured_by.items():
        single = (metric.minimum_world_size, metric.maximum_world_size) == (1, 1)
        assert single == (KINDS[kind].named != "size"), kind
        assert single or metric.minimum_world_size == 2, kind
    assert {measured_by[kind].name for kind in COLLECTIVES} == {"busbw_gbps"}


def test_probes_of_alike_places_are_compared_too() -> None:
    assert METRICS["probe_uniformity"].probes == ("memory-copy", "host-to-device", "device-to-host", "send-recv")
    assert not METRICS["probe_uniformity"].tells_speed


def test_what_is_no_training_accepts_no_machine() -> None:
    assert not any(metric.carries_acceptance for name, metric in METRICS.items() if name not in TRAINING_METRICS)


@rows("metric", TRAINING_METRICS.values(), ids=TRAINING_METRICS)
def test_a_metric_compares_different_arms_of_the_same_batch_or_global_batch(metric: Metric) -> None:
    for world_size in range(metric.minimum_world_size, (metric.maximum_world_size or 4) + 1):
        if WORKLOAD.global_batch_size is not None and WORKLOAD.global_batch_size % world_size == 0:
            workload = replace(WORKLOAD, data=IMAGES) if metric.reads_folder else WORKLOAD
            arms = Question(metric, workload, world_size).arms
            assert len(set(arms)) == (1 if metric.baseline is None else 2)
            images = {arm.batch_size * (arm.world_size if metric.scaling == "strong" else 1) for arm in arms}
            assert len(images) == 1


@rows("metric", METRICS.values(), ids=METRICS)
def test_what_can_be_zero_or_less_does_not_err_by_factors(metric: Metric) -> None:
    can_be_zero = {
        "exposed_communication",
        "ddp_overhead",
        "step_time_cv",
        "memory_spread",
        "device_utilization",
        "node_check",
        "communication_time",
    }
    assert not (metric.name in can_be_zero and metric.scale == "factors")
    never = metric.unit in ("samples/s", "x", "ms", "TFLOPS", "GB/s", "samples/J") and metric.name not in can_be_zero
    assert not never or metric.scale == "factors"


def test_images_from_a_folder_are_compared_with_synthetic_ones_of_the_same_ranks() -> None:
    metric = METRICS["input_pipeline_efficiency"]
    synthetic, loaded = Question(metric, replace(WORKLOAD, data=IMAGES), 4).arms
    assert (synthetic.name, loaded) == ("ddp@4+data=synthetic", Arm("ddp", 4, 8))
    assert [arm.data_of(replace(WORKLOAD, data=IMAGES)) for arm in (synthetic, loaded)] == ["synthetic", IMAGES]
    with pytest.raises(ValueError, match=r"input_pipeline_efficiency needs `data: \{folder: PATH\}` in the workload r"):
        _ = Question(metric, WORKLOAD, 4).measured


def test_a_machine_that_is_evenly_slow_is_not_accepted_for_being_even() -> None:
    """What a machine keeps on which every step takes twice as long."""
    assert {name for name, metric in TRAINING_METRICS.items() if not metric.carries_acceptance} == {
        "rank_uniformity", "node_uniformity", "exposed_communication", "computation_time", "communication_time",
        "ddp_overhead", "step_time_cv", "memory_spread", "replica_agreement", "images_per_joule",
        "input_pipeline_efficiency",
        # nothing is trained
        "inference_throughput", "inference_latency_p50", "inference_latency_p95", "inference_latency_p99",
    }  # fmt: skip


@rows("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_every_bound_that_judges_anything_is_possible(metric: Metric) -> None:
    low, high = metric.range_at(8, "possible")
    least, most = metric.range_at(8)
    assert low <= least
    assert most <= high


def test_what_is_possible_of_a_speedup_grows_with_the_ranks() -> None:
    assert METRICS["strong_scaling_speedup"].range_at(8, "possible") == pytest.approx((0.0, 8.8))
    assert METRICS["weak_scaling_efficiency"].range_at(8, "possible") == pytest.approx((0.0, 1.1))
    assert METRICS["rank_uniformity"].range_at(8, "possible")[0] == 0.0
