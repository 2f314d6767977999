"""A cluster made of a thresholds file and a few numbers."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpscale.errors import OptionError, SkuError
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES
from pytest_ddpscale.simulate.simulated_cluster import ClusterOptions, open_cluster
from pytest_ddpscale.simulate.spread import NodeSpread
from pytest_ddpscale.thresholds.cases import training_cases
from tests.builders.clusters import RESNET, a100, thresholds


def test_it_is_as_large_as_the_largest_requirement_unless_said_otherwise() -> None:
    assert a100(gpus=None).gpus == 8
    assert a100(gpus=64).gpus == 64


def test_requirements_that_need_more_gpus_are_left_out() -> None:
    assert {case.world_size for case in a100(gpus=4).cases} == {1, 2, 4}


def test_of_several_nodes_it_is_asked_what_they_do_together() -> None:
    names = {case.name: case.world_size for case in a100(gpus=24, workloads=None).cases}
    assert {size: names[f"resnet50-fp16-{size}"] for size in ("node", "2nodes", "all")} == {
        "node": 8, "2nodes": 16, "all": 24,
    }  # fmt: skip
    assert not [name for name in {case.name for case in a100(gpus=8, workloads=None).cases} if "nodes" in name]


def test_only_the_workloads_asked_for_are_trained() -> None:
    assert {case.workload.name for case in training_cases(a100(workloads=(RESNET,)).cases)} == {RESNET}
    assert len({case.workload.name for case in training_cases(a100(workloads=None).cases)}) > 4


def test_the_plan_is_that_of_a_real_session() -> None:
    plan = a100().plan(seed=3)
    pace = PACES["cuda"]
    assert (plan.sku, plan.seed, plan.world_size) == ("a100-sxm4-80gb", 3, 8)
    assert {study.id for study in plan.studies} == {f"weak/{RESNET}", f"strong/{RESNET}"}
    assert {(s.rounds, s.block_s, s.warmup_s) for s in plan.studies} == {(pace.rounds, pace.block_s, pace.warmup_s)}


def test_further_world_sizes_are_scaled_to_and_looked_at_rank_by_rank() -> None:
    weak = a100(gpus=64).plan(world_sizes=(1, 64)).studies[0]
    arms = {arm.name for arm in weak.arms}
    assert {"ddp@64", "each@64"} <= arms
    assert "no_sync@64" not in arms


def test_a_very_large_cluster_is_measured_briefly() -> None:
    study = a100(gpus=100_000).plan(world_sizes=(100_000,)).studies[0]
    assert (study.rounds, study.block_s) == (FEWEST_ROUNDS, 0.0)
    assert a100(gpus=100_000).plan(rounds=9).studies[0].rounds == 9


def test_what_it_is_connected_by_comes_from_the_sku_and_the_options() -> None:
    topology = a100(gpus_per_node=4, nic_gbps=50.0).performance.topology
    assert topology.gpus_per_node == 4
    assert topology.inside.bytes_per_s == pytest.approx(0.8 * 300e9)
    assert topology.between.bytes_per_s == pytest.approx(0.8 * 50e9)


def test_noise_is_that_of_the_kind_of_device_unless_said_otherwise() -> None:
    assert a100().performance.noise.round_sd == 0.003
    assert a100(round_noise=0.0).performance.noise.round_sd == 0.0
    cpu = open_cluster(thresholds(), ClusterOptions("cpu"))
    assert (cpu.device_type, cpu.performance.noise.round_sd) == ("cpu", 0.02)


def test_noise_as_it_is_asked_for_is_kept_with_the_parameters() -> None:
    found = a100(correlation=0.5, hiccups=0.05, spread=NodeSpread(gpu_sd=0.01)).performance.parameters
    assert (found["noise"]["correlation"], found["noise"]["hiccup_share"]) == (0.5, 0.05)
    assert found["spread"]["gpu_sd"] == 0.01


def test_numbers_that_make_no_sense_are_refused() -> None:
    rows: list[tuple[dict[str, Any], str, str]] = [
        ({"gpus": 0}, "--gpus", "found 0"),
        ({"gpus": 10**7}, "--gpus", "found 10000000"),
        ({"gpus_per_node": 0}, "--gpus-per-node", "found 0"),
        ({"gpus": 12}, "--gpus", "found 12"),
        ({"round_noise": -0.1}, "--noise", "found -0.1"),
        ({"round_noise": 1.0}, "--noise", "found 1"),
        ({"spread": NodeSpread(gpu_sd=-0.01)}, "--gpu-spread", "found -0.01"),
        ({"spread": NodeSpread(node_sd=0.3)}, "--node-spread", "found 0.3"),
        ({"spread": NodeSpread(launch_sd=float("nan"))}, "--launch-spread", "found nan"),
        ({"spread": NodeSpread(seed=-1)}, "--nodes-seed", "found -1"),
        ({"correlation": 1.0}, "--correlation", "found 1"),
        ({"correlation": float("nan")}, "--correlation", "found nan"),
        ({"hiccups": 5.0}, "--hiccups", "found 5"),
        ({"workloads": ("resnet152",)}, "--workloads", "found 'resnet152'"),
        ({"workloads": ()}, "--workloads", "found no name"),
    ]
    for options, where, found in rows:
        with pytest.raises(OptionError) as refused:
            a100(**options)
        assert str(refused.value).startswith(f"{where}: {found}; expected ")


def test_an_unknown_sku_is_refused() -> None:
    with pytest.raises(SkuError, match=r"no SKU 'a1000'; expected one of its"):
        open_cluster(thresholds(), ClusterOptions("a1000"))


def test_a_cluster_of_which_nothing_is_required_is_refused() -> None:
    strong_only = ("resnet101-bf16",)  # a workload that the A100 has and no requirement names
    with pytest.raises(OptionError, match="no training requirement on resnet101-bf16 for 1 or fewer GPUs"):
        a100(gpus=None, workloads=strong_only)
