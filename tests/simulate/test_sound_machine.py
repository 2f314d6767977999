"""What the thresholds say of a sound machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.simulate.simulated_cluster import ClusterOptions, open_cluster
from pytest_ddpscale.simulate.sound_machine import DDP_OVERHEAD, Expectation, expectation_of
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Requirement, Source
from tests.builders.clusters import RESNET, thresholds

A100, B200, RTX = "a100-sxm4-80gb", "b200", "rtx-pro-6000-server"


def workload(sku: str, name: str = RESNET) -> Workload:
    return thresholds().thresholds.skus[sku].workloads[name]


def expected(sku: str, name: str = RESNET) -> Expectation:
    return expectation_of(workload(sku, name), sku, thresholds())


def said_to_be(sku: str, **sound: float | None) -> ThresholdsFile:
    """The packaged file, where rows of that SKU say what a sound machine reaches, or do not, by metric."""
    file = thresholds()
    lines = file.thresholds.skus[sku].requirements
    rows = tuple(replace(one, sound=sound[one.metric]) if one.metric in sound else one for one in lines)
    changed = replace(file.thresholds.skus[sku], requirements=rows)
    return replace(file, thresholds=replace(file.thresholds, skus={**file.thresholds.skus, sku: changed}))


def test_published_figures_are_taken_as_they_are_and_what_is_of_ddp_on_one_gpu_as_that() -> None:
    a100, wrapped = expected(A100), 1 + DDP_OVERHEAD
    assert a100.samples_per_s == pytest.approx(1189.5 * wrapped)
    assert a100.efficiency["weak"] == pytest.approx({2: 0.9891 / wrapped, 4: 0.9813 / wrapped, 8: 0.9745 / wrapped})
    assert a100.efficiency["strong"] == pytest.approx({8: 0.2582 / wrapped})
    assert a100.utilization_of(8) == 0.9745


def test_a_bound_nobody_measured_is_kept_with_a_margin() -> None:
    bounds = [r for r in thresholds().thresholds.skus[B200].requirements if r.workload == RESNET]
    throughput = next(r for r in bounds if r.metric == "throughput_per_gpu" and r.world_size == 1)
    assert throughput.source.measured is None
    silent = said_to_be(B200, throughput_per_gpu=None, weak_scaling_efficiency=None)
    found = expectation_of(workload(B200), B200, silent)
    assert found.samples_per_s == pytest.approx(1.05 * throughput.bound)
    assert found.efficiency["weak"] == {}
    assert found.published_size("weak", 8) is None


def test_what_a_row_says_of_a_sound_machine_comes_before_its_bound_and_what_is_published() -> None:
    file = said_to_be(B200, throughput_per_gpu=9999.0, memory_bandwidth_gbps=7777.0, weak_scaling_efficiency=0.999)
    found = expectation_of(workload(B200), B200, file)
    assert found.samples_per_s == 9999.0
    assert found.efficiency["weak"] == {2: 0.999, 4: 0.999, 8: 0.999}
    copy = Arm("memory-copy")
    assert open_cluster(file, ClusterOptions(B200, 8)).probe_values([copy])[copy] == 7777.0
    published = said_to_be(A100, throughput_per_gpu=9000.0)
    assert expectation_of(workload(A100), A100, published).samples_per_s == pytest.approx(9000.0 * (1 + DDP_OVERHEAD))


def test_a_ratio_to_another_sku_is_a_speed_too() -> None:
    ratio = next(r for r in thresholds().thresholds.skus[RTX].requirements if r.workload == "resnet50-nchw-fp16")
    reference, _ = thresholds().thresholds.reference_throughput(ratio)
    silent = said_to_be(RTX, generation_ratio=None)
    found = expectation_of(workload(RTX, "resnet50-nchw-fp16"), RTX, silent)
    assert found.samples_per_s == pytest.approx(1.05 * ratio.bound * reference)


def test_how_fast_it_infers_is_a_speed_too() -> None:
    """A step takes three times as long as its forward pass."""
    file = thresholds()
    row = Requirement("inference_throughput", 3000.0, Source(3150.0, None, "a paper"), workload="served")
    a100 = replace(file.thresholds.skus[A100], requirements=(row,))
    served = replace(file, thresholds=replace(file.thresholds, skus={A100: a100}))
    found = expectation_of(Workload("served", ImageFamily("resnet50"), "fp16", 8), A100, served)
    assert found.inferred_samples_per_s == 3150.0
    assert found.samples_per_s == pytest.approx(1050.0)


def test_a_workload_of_unknown_speed_is_refused() -> None:
    with pytest.raises(OptionError, match=r"neither throughput_per_gpu nor generation_ratio of nobody's.*--workloads"):
        expectation_of(Workload("nobody's", ImageFamily("resnet18"), "fp16", 8), A100, thresholds())


@pytest.mark.parametrize(("world_size", "efficiency"), [(1, 1.0), (2, 0.9891), (3, 0.9845373), (8, 0.9745)])
def test_efficiency_lies_between_its_published_neighbours(world_size: int, efficiency: float) -> None:
    published = {k: share * (1 + DDP_OVERHEAD) for k, share in expected(A100).efficiency["weak"].items()}
    found = replace(expected(A100), efficiency={"weak": published})
    assert found.efficiency_at("weak", world_size) == pytest.approx(efficiency)


def test_beyond_the_largest_published_world_size_it_is_as_there() -> None:
    assert [expected(A100).published_size("weak", k) for k in (2, 8, 100_000)] == [2, 8, 8]


def test_utilization_is_that_of_the_nearest_smaller_world_size() -> None:
    known = Expectation(1.0, {}, {2: 0.9, 8: 0.8}, None)
    assert [known.utilization_of(k) for k in (1, 2, 4, 8, 64)] == [0.9, 0.9, 0.9, 0.8, 0.8]
    assert Expectation(1.0, {}, {}, None).utilization_of(8) > 0.95


def test_power_is_what_the_published_images_per_joule_come_to() -> None:
    energy = [r for r in thresholds().thresholds.skus[A100].requirements if r.metric == "images_per_joule"]
    assert [(r.workload, r.world_size, r.source.measured) for r in energy] == [(RESNET, 8, 2.964)]
    assert expected(A100).power_w == pytest.approx(1189.5 * 0.9745 / 2.964)
    assert Expectation(1.0, {}, {}, None).power_w is None


def test_memory_is_the_published_one_and_less_of_it_for_a_smaller_batch() -> None:
    a100 = expected(A100)
    assert a100.memory_bytes(workload(A100), 512) == pytest.approx(44.11 * 2**30)
    assert a100.memory_bytes(workload(A100), 256) / 2**30 == pytest.approx(22.44, rel=0.02)  # published, too
    unknown = Expectation(1.0, {}, {}, None)
    assert unknown.memory_bytes(workload(A100), 512) / 2**30 == pytest.approx(44.11, rel=0.05)
