"""Simulated probes reach what their own rows publish, each size by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Plan, ProbeStudy
from pytest_ddpscale.simulate.faults import parse_faults
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.simulated_cluster import ClusterOptions, SimulatedCluster, open_cluster
from pytest_ddpscale.simulate.simulated_probes import measure_probes
from pytest_ddpscale.thresholds.cases import NodeCase
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.benchmarks.scripts import benchmark
from tests.builders.clusters import a100, quiet
from tests.builders.judged import CONFIDENCE

SITE = """
schema_version: 2
extends: packaged
sources: {ours: our runs}
skus:
  b200:
    requirements:
      - {matmul_tflops: 1500, probe: matmul-bf16-8192, published: ours, margin: 5 %, severity: fail}
      - {matmul_tflops: 1300, probe: matmul-bf16-10240, published: ours, margin: 5 %, severity: fail}
      - {busbw_gbps: {8: 832}, probe: all-reduce-16gib, published: ours, margin: 5 %, severity: fail}
"""
SIZED = {"matmul-bf16-8192": 1500.0, "matmul-bf16-10240": 1300.0, "all-reduce-16gib@8": 832.0}


@pytest.fixture(scope="module")
def b200(tmp_path_factory: pytest.TempPathFactory) -> SimulatedCluster:
    path: Path = tmp_path_factory.mktemp("site") / "site.yaml"
    path.write_text(SITE, encoding="utf-8")
    options = ClusterOptions("b200", 8, workloads=("resnet50-nchw-fp16",), round_noise=0.0)
    return open_cluster(load_thresholds(path), options)


def judged(cluster: SimulatedCluster, *faults: str) -> dict[str, tuple[str, float | None]]:
    """Outcome and value of each probe's bound, by the probe."""
    plan = cluster.plan(short_blocks=True)
    run = SimulatedRun(plan, cluster.performance, parse_faults(faults, Layout(1, 8)), 1)
    verdicts = benchmark("simulated_session").decide_all(run, cluster, CONFIDENCE)
    bounded = [one for one in verdicts if one.metric in ("matmul_tflops", "busbw_gbps")]
    return {f"{one.workload}@{one.world_size}".removesuffix("@1"): (one.outcome, one.value) for one in bounded}


def test_what_compares_places_is_no_value_to_reach(b200: SimulatedCluster) -> None:
    compared = [one for one in b200.cases if one.requirement.definition.compares_places]
    probes = [one.probe for one in compared if isinstance(one, NodeCase) and one.probe]
    assert min(replace(b200, cases=tuple(compared)).probe_values(probes).values()) > 10


LINKS = (Arm("send-recv-256mib", 8), Arm("all-reduce-32mib", 8), Arm("all-reduce-1gib", 16), Arm("host-to-device"))
STUDY = ProbeStudy(LINKS, 8, 0.5)
SOUND_GBPS = 20.0


def speeds(*texts: str) -> dict[str, dict[tuple[int, ...], float]]:
    """Bytes per second of the slowest rank of each place of a probe, on 16 GPUs without noise."""
    plan = Plan("a100", "cuda", (), nodes=2, ranks_per_node=8, probes=STUDY)
    run = SimulatedRun(plan, quiet(a100(16)), parse_faults(texts, Layout(2, 8)), 0)
    found: dict[str, dict[tuple[int, ...], float]] = {probe.name: {} for probe in LINKS}
    for block in measure_probes(run, STUDY, 0, dict.fromkeys(LINKS, SOUND_GBPS)):
        ranks = block.each("ranks")
        groups = ranks if block.arm == "host-to-device" else block.each("groups")
        for group in np.unique(groups):
            members = groups == group
            found[block.arm][tuple(ranks[members].tolist())] = float(block.per_second[members].min())
    return found


def shares(*texts: str) -> dict[str, dict[tuple[int, ...], float]]:
    """What is left to the places of each probe that are slower than without the faults."""
    sound, faulty = speeds(), speeds(*texts)
    left = {name: {at: faulty[name][at] / speed for at, speed in of.items()} for name, of in sound.items()}
    slower = {name: {at: round(share, 3) for at, share in of.items() if share < 0.999} for name, of in left.items()}
    return {name: of for name, of in slower.items() if of}


def test_a_slow_pair_is_slow_by_itself() -> None:
    assert shares("slow-pair:3:5:0.5") == {"send-recv-256mib@8": {(3, 5): 0.5}}


def test_slow_links_of_a_gpu_slow_its_pairs_and_the_collectives_of_its_node() -> None:
    assert shares("slow-gpu-link:3:0.5") == {
        "send-recv-256mib@8": {(min(3, other), max(3, other)): 0.5 for other in range(8) if other != 3},
        "all-reduce-32mib@8": {tuple(range(8)): 0.5},
    }, "collectives of two nodes need 20 of its 240 GB/s"
    between = shares("slow-gpu-link:3:0.05")["all-reduce-1gib@16"]
    assert between == {tuple(range(16)): 0.6}, "of 240 GB/s 12 are left"


def test_a_slow_port_slows_what_crosses_nodes() -> None:
    assert shares("slow-port:3:0.5") == {"all-reduce-1gib@16": {tuple(range(16)): 0.5}}


def test_a_probe_that_all_do_slowly_is_slow_everywhere() -> None:
    found = shares("slow-probe:all:host-to-device:0.9", "slow-probe:3:host-to-device:0.5")
    assert found == {"host-to-device": {(rank,): 0.45 if rank == 3 else 0.9 for rank in range(16)}}


def test_each_size_is_planned_and_reaches_the_value_of_its_own_row(b200: SimulatedCluster) -> None:
    probes = b200.plan().probes
    assert probes is not None
    assert {"matmul-bf16", *SIZED} <= {probe.name for probe in probes.arms}
    found = judged(b200)
    assert {name: found[name][0] for name in SIZED} == dict.fromkeys(SIZED, "passed")
    assert {name: found[name][1] for name in SIZED} == pytest.approx(SIZED, rel=0.001)
    assert b200.probe_values([Arm("matmul-bf16")])[Arm("matmul-bf16")] not in SIZED.values()


def test_a_fault_of_one_size_is_no_fault_of_another(b200: SimulatedCluster) -> None:
    outcomes = {name: outcome for name, (outcome, _) in judged(b200, "slow-probe:3:matmul-bf16-10240:0.5").items()}
    assert outcomes["matmul-bf16-10240"] == "failed"
    assert {outcome for name, outcome in outcomes.items() if name != "matmul-bf16-10240"} == {"passed"}
