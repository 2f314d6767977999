"""Clusters to be simulated, from the packaged thresholds."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.simulate.cluster import SimulatedCluster, open_cluster
from pytest_ddpscale.simulate.machine import Link, Noise, Performance, Topology
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.options import ClusterOptions, InjectedFault, parse_faults
from pytest_ddpscale.simulate.writing import gang_of
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.util.packaged import packaged
from tests.builders.measurements import Measurement, of_ranks

RESNET = "resnet152-fp16"
QUIET = Noise(0.0, 0.0, 0.0, 0.0)
NVLINK, NIC = Link(2e-6, 240e9), Link(5e-6, 20e9)
TOPOLOGY = Topology(8, NVLINK, NIC)


@functools.cache
def thresholds() -> ThresholdsFile:
    """The packaged file, read once: it takes a third of a second."""
    return load_thresholds(packaged("thresholds.yaml"))


# Of which nobody published what they train of synthetic images: whole runs judge them.
WHOLE_RUNS_ONLY = ("h100-64gb",)


def a100(gpus: int | None = 8, workloads: tuple[str, ...] | None = (RESNET,), **options: Any) -> SimulatedCluster:
    """A100s that train one workload, or others."""
    return open_cluster(thresholds(), ClusterOptions("a100", gpus, workloads=workloads, **options))


def quiet(cluster: SimulatedCluster) -> Performance:
    """Its performance without any noise: then every number follows from the model."""
    return replace(cluster.performance, noise=QUIET)


def layout_of(gpus: int) -> Layout:
    """So many GPUs on nodes of eight."""
    return Layout(-(-gpus // 8), min(gpus, 8))


def faults(*texts: str, gpus: int = 8) -> tuple[InjectedFault, ...]:
    """What is wrong, as it is typed."""
    return parse_faults(texts, layout_of(gpus))


def weak_study(arm: Arm, rounds: int = FEWEST_ROUNDS, workload: Workload | None = None) -> Study:
    """ResNet-152 on A100s, in one arm."""
    chosen = workload or thresholds().thresholds.skus["a100-sxm4-80gb"].workloads[RESNET]
    return Study("weak", chosen, (arm,), rounds, 0.0, 0.0)


def plan_of(study: Study) -> Plan:
    """That study alone, on as many nodes of eight as it needs."""
    layout = layout_of(study.world_size)
    return Plan("a100-sxm4-80gb", "cuda", (study,), nodes=layout.nodes, ranks_per_node=layout.ranks_per_node)


def measured(performance: Performance, study: Study, *texts: str, seed: int = 1) -> dict[str, list[list[Measurement]]]:
    """Measurements of one study with faults: by arm, then by round, in the order of the ranks."""
    plan = plan_of(study)
    run = SimulatedRun(plan, performance, parse_faults(texts, plan.layout), seed)
    found: dict[str, list[list[Measurement]]] = {arm.name: [] for arm in study.arms}
    for number in range(study.rounds):
        blocks = [one for one in run.measure_round(study, number, study.arms) if isinstance(one, Block)]
        told = [one for block in blocks for one in of_ranks(block, gang_of(plan))]
        for name, rounds in found.items():
            rounds.append([measurement for measurement in told if measurement.arm == name])
    return found
