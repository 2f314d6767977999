"""Launches of simulated nodes, as calibration reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_ddpscale.history.past_run import PastRun
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.evidence import evidence_of
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.simulate.cluster import SimulatedCluster, open_cluster
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.options import ClusterOptions, parse_faults
from pytest_ddpscale.simulate.writing import host_name, records, write_simulated_run
from tests.builders.clusters import thresholds
from tests.builders.json_types import run_record

SKU, WORKLOAD, PER_NODE = "rtx-pro-6000-server", "resnet152-fp16", 2
SPREAD = {"node_spread": 0.003, "gpu_spread": 0.002, "launch_spread": 0.002, "nodes_seed": 5}
VERSIONS = {"driver": "580.1", "torch": "2.14.0", "cuda": "13.0", "nccl": "2.28.3"}


def nodes(number: int, **spread: Any) -> SimulatedCluster:
    """So many, of two GPUs each."""
    options: dict[str, Any] = {"workloads": (WORKLOAD,), **(spread or SPREAD)}
    return open_cluster(thresholds(), ClusterOptions(SKU, PER_NODE * number, PER_NODE, **options))


def launch(number: int, cluster: SimulatedCluster, *faults: str, **changes: Any) -> PastRun:
    """A run of them, as if it had been measured."""
    plan = cluster.plan(FEWEST_ROUNDS, short_blocks=True)
    run = SimulatedRun(plan, cluster.performance, parse_faults(faults, plan.layout), number)
    found = list(records(run, cluster))
    evidence = evidence_of(plan, None, found)
    hosts = [host_name(node) for node in range(plan.nodes)]
    fields: dict[str, Any] = {
        "path": f"launch-{number}", "record": run_record(sku=SKU, started_at=f"2026-11-2{number}T10:00:00+00:00"),
        "evidence": evidence, "judgement": Judgement(SKU, "incomplete", "not judged", ()),
        "gpus": {host: tuple(f"GPU-{host}-{gpu}" for gpu in range(PER_NODE)) for host in hosts},
        "versions": dict.fromkeys(hosts, VERSIONS), "digest": str(number),
    }  # fmt: skip
    return PastRun(**(fields | changes))


def launches(number: int, cluster: SimulatedCluster, *faults: str) -> list[PastRun]:
    """Some of them."""
    return [launch(one, cluster, *faults) for one in range(1, number + 1)]


def written(path: Path, cluster: SimulatedCluster, number: int, faults: Sequence[str] = ()) -> RunDirectory:
    """A launch as a run directory, which says that it was simulated."""
    plan = cluster.plan(FEWEST_ROUNDS, short_blocks=True)
    run = RunDirectory.create(path)
    write_simulated_run(
        run, cluster, SimulatedRun(plan, cluster.performance, parse_faults(faults, plan.layout), number)
    )
    return run
