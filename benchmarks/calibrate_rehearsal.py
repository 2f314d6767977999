"""What bounds of `ddpscale calibrate` accept and reject on simulated clusters: docs/evidence/verdicts.md.

    python benchmarks/calibrate_rehearsal.py

Each cluster has 20 nodes of eight RTX PRO 6000 with its own random spread: between nodes, between the GPUs of a node,
from launch to launch and from round to round. Two nodes are bad: one GPU, or all of them, compute 5 to 10 % longer.
Three launches and the default rate of false rejects give bounds, which are written into a file that extends the
packaged one; a run then judges other nodes of that cluster by it, each measured by itself: healthy ones, and some of
which one GPU or all are 5 % slow. All are measured in 12 rounds; nodes that stay undecided are measured again in as
many rounds as a session takes at most. The outcome is that of a run, apart from being simulated.

Expected: at least 95 % of the bad nodes are left out, and of the slow ones rejected; no more healthy nodes are rejected
than stated. Exit code 1 if the interval of any of these shares contradicts that.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from reporting import Share, arguments, table

from pytest_ddpscale.calibrate.calibration import calibrate
from pytest_ddpscale.calibrate.site_bounds import overlay_of, provenance_of
from pytest_ddpscale.history.past_run import PastRun
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.outcome import RunFacts, conclude
from pytest_ddpscale.run.evidence import Evidence, evidence_of
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.simulate.cluster import SimulatedCluster, open_cluster
from pytest_ddpscale.simulate.machine import NodeSpread
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.options import ClusterOptions, InjectedFault
from pytest_ddpscale.simulate.writing import host_name, records
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.thresholds.site_file import write_overlay
from pytest_ddpscale.util.packaged import packaged

PACKAGED = packaged("thresholds.yaml")
SKU, WORKLOAD, PER_NODE, NODES = "rtx-pro-6000-server", "resnet152-fp16", 8, 20
CONFIDENCE, RATE, MOST_EXCLUDED, WANTED, ROUNDS = 0.95, 0.01, 0.25, 0.95, 12
# Relative standard deviations, drawn evenly between these for each cluster.
SPREADS = {
    "node_sd": (0.001, 0.006), "gpu_sd": (0.001, 0.005), "launch_sd": (0.0005, 0.003), "round_sd": (0.001, 0.005),
}  # fmt: skip
# Fresh nodes of a cluster, by what is slow: the ranks, and how many nodes.
FRESH = {"healthy": ((), 15), "one GPU 5 % slow": ((3,), 4), "whole node 5 % slow": (range(PER_NODE), 4)}


Nodes = Counter[tuple[str, str]]  # how many, by what is slow of them and by how they came out


@functools.lru_cache(maxsize=4)
def opened(file: Path, nodes: int) -> SimulatedCluster:
    """A cluster of nodes that are alike, with the cases of a thresholds file."""
    return open_cluster(load_thresholds(file), ClusterOptions(SKU, nodes * PER_NODE, PER_NODE, workloads=(WORKLOAD,)))


def cluster_of(nodes: int, sds: Mapping[str, float], seed: int) -> SimulatedCluster:
    """A cluster whose nodes, GPUs, launches and rounds differ so much; another seed gives other nodes."""
    cluster = opened(PACKAGED, nodes)
    noise = replace(cluster.performance.noise, round_sd=sds["round_sd"])
    spread = NodeSpread(sds["node_sd"], sds["gpu_sd"], sds["launch_sd"], seed)
    return replace(cluster, performance=replace(cluster.performance, noise=noise, spread=spread))


def slowed(ranks: Sequence[int], factor: float) -> list[InjectedFault]:
    """Ranks that compute so many times as long."""
    return [InjectedFault("slow-gpu", (rank,), size=factor) for rank in ranks]


def measured(
    cluster: SimulatedCluster, rounds: int | None, order: int, faults: Sequence[InjectedFault], seed: int
) -> Evidence:
    """A simulated run, as if it had been read from its directory; None for as many rounds as a session takes."""
    run = SimulatedRun(cluster.plan(rounds, seed=order, short_blocks=True), cluster.performance, faults, seed)
    return evidence_of(run.plan, None, list(records(run, cluster)))


def calibrated(evidence: Sequence[Evidence], path: Path) -> list[str]:
    """Calibrate, and write the file of bounds. Returns the nodes that it leaves out."""
    record = RunRecord(sku=SKU, status="simulated", started_at="2026-01-01T00:00:00+00:00", simulated=True)
    hosts, nothing = {host_name(node): () for node in range(NODES)}, Judgement(SKU, "incomplete", "simulated", ())
    runs = [PastRun(f"run-{at}", record, one, f"run-{at}", hosts, {}, nothing) for at, one in enumerate(evidence)]
    file = load_thresholds(PACKAGED)
    found = calibrate(file, SKU, runs, RATE, MOST_EXCLUDED)
    write_overlay(path, overlay_of(found, provenance_of(found, runs), file))
    return [*found.excluded]


def judged(
    file: Path, node: SimulatedCluster, ranks: Sequence[int], seed: int, rounds: int | None = ROUNDS
) -> tuple[str, list[str]]:
    """The outcome of a fresh node, and the requirements that reject it."""
    evidence = measured(node, rounds, seed, slowed(ranks, 1.05), seed)
    # Checks need telemetry, and no_regression a history.
    cases = [case for case in opened(file, 1).cases if case.requirement.definition.subject in ("workload", "probe")]
    verdicts = [judge(case, evidence, CONFIDENCE) for case in cases]
    outcome, *_ = conclude(RunFacts(verdicts, len(verdicts)))
    if outcome == "incomplete" and rounds:
        return judged(file, node, ranks, seed, None)
    return outcome, [verdict.id for verdict in verdicts if verdict.blocks() and verdict.outcome == "failed"]


def rehearse(number: int, given: argparse.Namespace) -> tuple[Nodes, Counter[str]]:
    """One cluster: calibrate from some launches, then judge fresh nodes; by what healthy ones were rejected."""
    chance, nodes, rejecting = random.Random(f"{given.seed}/{number}"), Nodes(), Counter[str]()
    sds = {name: given.noisier * chance.uniform(*between) for name, between in SPREADS.items()}
    cluster = cluster_of(NODES, sds, chance.getrandbits(32))
    bad, faults = chance.sample(range(NODES), 2), list[InjectedFault]()
    for node in bad:
        factor = chance.uniform(1.05, 1.10)
        slow: Sequence[int] = range(PER_NODE) if chance.random() < 0.5 else [chance.randrange(PER_NODE)]
        faults += slowed([node * PER_NODE + rank for rank in slow], factor)
    # They ended before their limit of rounds, since provisional bounds are soon decided.
    whole = cluster.plan(seed=number, short_blocks=True)
    runs = [replace(measured(cluster, ROUNDS, number, faults, launch), plan=whole) for launch in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        excluded = calibrated(runs, file := Path(folder) / "site.yaml")
        for node in range(NODES):
            nodes["bad" if node in bad else "good", "left out" if host_name(node) in excluded else "kept"] += 1
        for label, (ranks, count) in FRESH.items():
            for _ in range(count):
                alone = cluster_of(1, sds, chance.getrandbits(32))
                outcome, failed = judged(file, alone, ranks, chance.getrandbits(32))
                nodes[label, outcome] += 1
                rejecting.update(failed if label == "healthy" else ())
    return nodes, rejecting


def shares(nodes: Nodes) -> dict[tuple[str, str], Share]:
    """Of bad and good nodes those that are left out, of fresh nodes each outcome."""
    outcomes = product(FRESH, ("accepted", "rejected", "incomplete"))
    return {
        (of, how): Share(nodes[of, how], sum(count for (label, _), count in nodes.items() if label == of))
        for of, how in (("bad", "left out"), ("good", "left out"), *outcomes)
    }


def main() -> int:
    """Run the script. Returns its exit code: 1 if an interval contradicts what is expected."""
    given = arguments(
        __doc__,
        clusters=(200, "simulated ones"),
        noisier=(1.0, "factor on all that is drawn of noise"),
        processes=(2, "that share the work"),
        seed=(0, "other seeds are other clusters"),
    )
    with multiprocessing.Pool(given.processes) as pool:
        found = pool.map(functools.partial(rehearse, given=given), range(given.clusters), chunksize=1)
    of, rejecting = shares(sum((nodes for nodes, _ in found), Nodes())), sum((one for _, one in found), Counter[str]())
    rows = [(*names, share.count, share.runs, share) for names, share in of.items()]
    print(table(("nodes", "how", "count", "of", "%, with its 95 % interval"), rows))
    print("healthy nodes were rejected by", dict(rejecting.most_common(5)))
    often = [of["bad", "left out"], *(of[label, "rejected"] for label in [*FRESH][1:])]
    is_wrong = of["healthy", "rejected"].interval[0] > RATE
    return int(is_wrong or any(share.interval[1] < WANTED for share in often))


if __name__ == "__main__":
    sys.exit(main())
