"""Simulated probes reach what their own rows publish, each size by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.simulate.faults import parse_faults
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.simulated_cluster import ClusterOptions, SimulatedCluster, open_cluster
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.benchmarks.scripts import benchmark
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


def test_each_size_is_planned_and_reaches_the_value_of_its_own_row(b200: SimulatedCluster) -> None:
    probes = b200.plan().probes
    assert probes is not None
    assert {"matmul-bf16", *SIZED} <= {probe.name for probe in probes.arms}
    found = judged(b200)
    assert {name: found[name] for name in SIZED} == {
        name: ("passed", pytest.approx(value, rel=0.001)) for name, value in SIZED.items()
    }
    assert b200.probe_values([Arm("matmul-bf16")])[Arm("matmul-bf16")] not in SIZED.values()


def test_a_fault_of_one_size_is_no_fault_of_another(b200: SimulatedCluster) -> None:
    outcomes = {name: outcome for name, (outcome, _) in judged(b200, "slow-probe:3:matmul-bf16-10240:0.5").items()}
    assert outcomes["matmul-bf16-10240"] == "failed"
    assert {outcome for name, outcome in outcomes.items() if name != "matmul-bf16-10240"} == {"passed"}
