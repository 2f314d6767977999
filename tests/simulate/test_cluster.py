"""A cluster made of a thresholds file and a few numbers, and what the file says of a sound machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.simulate.cluster import expectation_of, open_cluster, probe_values
from pytest_ddpscale.simulate.machine import DDP_OVERHEAD, Expectation, NodeSpread
from pytest_ddpscale.simulate.options import ClusterOptions
from pytest_ddpscale.thresholds.cases import training_cases
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Requirement, Source
from tests.builders.clusters import RESNET, a100, thresholds

A100, B200, RTX = "a100-sxm4-80gb", "b200", "rtx-pro-6000-server"
WRAPPED = 1 + DDP_OVERHEAD


def test_it_is_as_large_as_the_largest_requirement_unless_said_otherwise() -> None:
    assert [a100(gpus=gpus).gpus for gpus in (None, 64)] == [8, 64]
    assert {case.world_size for case in a100(gpus=4).cases} == {1, 2, 4}


def test_of_several_nodes_it_is_asked_what_they_do_together() -> None:
    names = {case.name: case.world_size for case in a100(gpus=24, workloads=None).cases}
    assert {size: names[f"resnet50-fp16-{size}"] for size in ("node", "2nodes", "all")} == {
        "node": 8, "2nodes": 16, "all": 24,
    }  # fmt: skip
    assert not [case.name for case in a100(gpus=8, workloads=None).cases if "nodes" in case.name]


def test_only_the_workloads_asked_for_are_trained() -> None:
    assert {case.workload.name for case in training_cases(a100(workloads=(RESNET,)).cases)} == {RESNET}
    assert len({case.workload.name for case in training_cases(a100(workloads=None).cases)}) > 4


def test_the_plan_is_that_of_a_real_session() -> None:
    plan, pace = a100().plan(seed=3), PACES["cuda"]
    assert (plan.sku, plan.seed, plan.world_size) == (A100, 3, 8)
    assert {study.id for study in plan.studies} == {f"weak/{RESNET}", f"strong/{RESNET}"}
    assert {(s.rounds, s.block_s, s.warmup_s) for s in plan.studies} == {(pace.rounds, pace.block_s, pace.warmup_s)}


def test_further_world_sizes_are_scaled_to_and_looked_at_rank_by_rank() -> None:
    arms = {arm.name for arm in a100(gpus=64).plan(world_sizes=(64,)).studies[0].arms}
    assert {"ddp@64", "each@64"} <= arms
    assert "no_sync@64" not in arms


def test_a_very_large_cluster_is_measured_briefly() -> None:
    cluster = a100(gpus=1032)
    (study, *_), (asked, *_) = (cluster.plan(rounds, (1032,)).studies for rounds in (None, 9))
    assert (study.rounds, study.block_s, asked.rounds) == (FEWEST_ROUNDS, 0.0, 9)


def test_links_and_noise_are_those_of_the_sku_unless_said_otherwise() -> None:
    spread: dict[str, Any] = {"gpu_spread": 0.01, "node_spread": 0.02, "launch_spread": 0.03, "nodes_seed": 4}
    asked = a100(gpus_per_node=4, nic_gbps=50.0, noise=0.0, hiccups=0.05, correlation=0.5, **spread)
    kept, usual = asked.performance.parameters, a100().performance.parameters
    assert (kept["topology"]["gpus_per_node"], usual["topology"]["gpus_per_node"]) == (4, 8)
    assert kept["topology"]["inside"]["bytes_per_s"] == pytest.approx(0.8 * 300e9)
    assert kept["topology"]["between"]["bytes_per_s"] == pytest.approx(0.8 * 50e9)
    assert [kept["noise"][name] for name in ("round_sd", "correlation", "hiccup_share")] == [0.0, 0.5, 0.05]
    assert asked.performance.spread == NodeSpread(node_sd=0.02, gpu_sd=0.01, launch_sd=0.03, seed=4)
    cpu = open_cluster(thresholds(), ClusterOptions("cpu")).performance
    assert (usual["noise"]["round_sd"], cpu.device_type, cpu.noise.round_sd) == (0.003, "cpu", 0.02)
    assert usual["samples_per_s"] == {RESNET: pytest.approx(1189.5 * WRAPPED)}


def test_what_compares_places_is_no_value_to_reach() -> None:
    cases = a100(workloads=None).cases
    compared = [case for case in cases if case.requirement.definition.compares_places]
    assert compared
    assert len(probe_values(cases)) > len(probe_values(compared)) == 0


def expected(sku: str, name: str = RESNET, file: ThresholdsFile | None = None) -> Expectation:
    return expectation_of(thresholds().thresholds.skus[sku].workloads[name], sku, file or thresholds())


def said_to_be(sku: str, **sound: float | None) -> ThresholdsFile:
    """The packaged file, where rows of that SKU say what a sound machine reaches, or do not, by metric."""
    file = thresholds()
    lines = file.thresholds.skus[sku].requirements
    rows = tuple(replace(one, sound=sound[one.metric]) if one.metric in sound else one for one in lines)
    changed = replace(file.thresholds.skus[sku], requirements=rows)
    return replace(file, thresholds=replace(file.thresholds, skus={**file.thresholds.skus, sku: changed}))


def test_published_figures_are_taken_as_they_are_and_what_is_of_ddp_on_one_gpu_as_that() -> None:
    found = expected(A100)
    assert found.samples_per_s == pytest.approx(1189.5 * WRAPPED)
    assert found.efficiency["weak"] == pytest.approx({2: 0.9891 / WRAPPED, 4: 0.9813 / WRAPPED, 8: 0.9745 / WRAPPED})
    assert found.efficiency["strong"] == pytest.approx({8: 0.2582 / WRAPPED})
    assert found.utilization_of(8) == 0.9745
    assert found.power_w == pytest.approx(1189.5 * 0.9745 / 2.964)  # of 2.964 images per joule on 8 GPUs


def test_a_bound_nobody_measured_is_kept_with_a_margin() -> None:
    lines = thresholds().thresholds.skus[B200].requirements
    throughput = next(r for r in lines if (r.workload, r.metric, r.world_size) == (RESNET, "throughput_per_gpu", 1))
    assert throughput.source.measured is None
    found = expected(B200, file=said_to_be(B200, throughput_per_gpu=None, weak_scaling_efficiency=None))
    assert found.samples_per_s == pytest.approx(1.05 * throughput.bound)
    assert (found.efficiency["weak"], found.published("weak", 8)) == ({}, None)


def test_what_a_row_says_of_a_sound_machine_comes_before_its_bound_and_what_is_published() -> None:
    file = said_to_be(B200, throughput_per_gpu=9999.0, memory_bandwidth_gbps=7777.0, weak_scaling_efficiency=0.999)
    found = expected(B200, file=file)
    assert (found.samples_per_s, found.efficiency["weak"]) == (9999.0, {2: 0.999, 4: 0.999, 8: 0.999})
    assert open_cluster(file, ClusterOptions(B200, 8)).performance.reached(Arm("memory-copy")) == 7777.0
    published = expected(A100, file=said_to_be(A100, throughput_per_gpu=9000.0))
    assert published.samples_per_s == pytest.approx(9000.0 * WRAPPED)


def test_a_ratio_to_another_sku_is_a_speed_too() -> None:
    name = "resnet50-nchw-fp16"
    ratio = next(r for r in thresholds().thresholds.skus[RTX].requirements if r.workload == name)
    reference, _ = thresholds().thresholds.reference_throughput(ratio)
    found = expected(RTX, name, said_to_be(RTX, generation_ratio=None))
    assert found.samples_per_s == pytest.approx(1.05 * ratio.bound * reference)


def test_how_fast_it_infers_is_a_speed_too() -> None:
    """A step takes three times as long as its forward pass."""
    file = thresholds()
    row = Requirement("inference_throughput", 3000.0, Source(3150.0, None, "a paper"), workload="served")
    sku = replace(file.thresholds.skus[A100], requirements=(row,))
    served = replace(file, thresholds=replace(file.thresholds, skus={A100: sku}))
    found = expectation_of(Workload("served", ImageFamily("resnet50"), "fp16", 8), A100, served)
    assert [found.inferred_samples_per_s, found.samples_per_s] == pytest.approx([3150.0, 1050.0])


def test_a_workload_of_unknown_speed_is_refused() -> None:
    with pytest.raises(OptionError, match=r"neither throughput_per_gpu nor generation_ratio of nobody's.*--workloads"):
        expectation_of(Workload("nobody's", ImageFamily("resnet18"), "fp16", 8), A100, thresholds())


def test_efficiency_lies_between_its_published_neighbours_and_is_the_last_one_beyond() -> None:
    found = Expectation(1.0, {"weak": {2: 0.9891, 4: 0.9813, 8: 0.9745}}, {})
    asked = {1: (1, 1.0), 2: (2, 0.9891), 3: (3, 0.9845373), 8: (8, 0.9745), 10**5: (8, 0.9745)}
    for world_size, (size, efficiency) in asked.items():
        assert found.published("weak", world_size) == pytest.approx((size, efficiency))


def test_utilization_is_that_of_the_nearest_smaller_world_size() -> None:
    known = Expectation(1.0, {}, {2: 0.9, 8: 0.8})
    assert [known.utilization_of(k) for k in (1, 2, 4, 8, 64)] == [0.9, 0.9, 0.9, 0.8, 0.8]
    assert Expectation(1.0, {}, {}).utilization_of(8) > 0.95


def test_memory_is_the_published_one_and_less_of_it_for_a_smaller_batch() -> None:
    workload = thresholds().thresholds.skus[A100].workloads[RESNET]
    for one, tolerance in ((expected(A100), 0.02), (Expectation(1.0, {}, {}), 0.05)):
        found = [one.memory_bytes(workload, batch) / 2**30 for batch in (512, 256)]
        assert found == pytest.approx([44.11, 22.44], rel=tolerance)
