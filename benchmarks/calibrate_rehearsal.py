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
from dataclasses import dataclass, replace
from pathlib import Path

from reporting import Share, argument_parser, positive_int, table

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
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.thresholds.site_file import write_overlay
from pytest_ddpscale.util.packaged import packaged

SKU, WORKLOAD, PER_NODE, NODES = "rtx-pro-6000-server", "resnet152-fp16", 8, 20
CONFIDENCE, RATE, MOST_EXCLUDED, WANTED, ROUNDS = 0.95, 0.01, 0.25, 0.95, 12
# Relative standard deviations, drawn evenly between these for each cluster.
SPREADS = {
    "node_sd": (0.001, 0.006), "gpu_sd": (0.001, 0.005), "launch_sd": (0.0005, 0.003), "round_sd": (0.001, 0.005),
}  # fmt: skip
# Fresh nodes of a cluster, by what is slow: the ranks, and how many nodes.
FRESH = {"healthy": ((), 15), "one GPU 5 % slow": ((3,), 4), "whole node 5 % slow": (range(PER_NODE), 4)}


@dataclass(frozen=True)
class Rehearsed:
    """What the bounds of one calibration made of fresh nodes.

    Attributes:
        calibrated: requirements of the workload and the probes that got a bound.
        excluded: nodes that were left out.
        bad: nodes that should be.
        outcomes: of fresh nodes, by what is slow, then by outcome.
        rejecting: requirements by which healthy nodes were rejected.
    """

    calibrated: int
    excluded: list[str]
    bad: list[str]
    outcomes: dict[str, Counter[str]]
    rejecting: Counter[str]


@functools.cache
def packaged_thresholds() -> ThresholdsFile:
    """The packaged file."""
    return load_thresholds(packaged("thresholds.yaml"))


@functools.cache
def _alike(nodes: int) -> SimulatedCluster:
    return open_cluster(packaged_thresholds(), ClusterOptions(SKU, nodes * PER_NODE, PER_NODE, workloads=(WORKLOAD,)))


def cluster_of(nodes: int, sds: Mapping[str, float], seed: int) -> SimulatedCluster:
    """A cluster whose nodes, GPUs, launches and rounds differ so much; another seed gives other nodes."""
    cluster = _alike(nodes)
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


def calibrated(evidence: Sequence[Evidence]) -> tuple[ThresholdsFile, int, list[str]]:
    """The file that a calibration writes, how many bounds it has, and the nodes that it leaves out."""
    record = RunRecord(sku=SKU, status="simulated", started_at="2026-01-01T00:00:00+00:00", simulated=True)
    hosts, nothing = {host_name(node): () for node in range(NODES)}, Judgement(SKU, "incomplete", "simulated", ())
    runs = [PastRun(f"run-{at}", record, one, f"run-{at}", hosts, {}, nothing) for at, one in enumerate(evidence)]
    file = packaged_thresholds()
    found = calibrate(file, SKU, runs, RATE, MOST_EXCLUDED)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "site.yaml"
        write_overlay(path, overlay_of(found, provenance_of(found, runs), file))
        return load_thresholds(path), len(found.calibrated), [*found.excluded]


def judged(
    file: ThresholdsFile, node: SimulatedCluster, ranks: Sequence[int], seed: int, rounds: int | None = ROUNDS
) -> tuple[str, list[str]]:
    """The outcome of a fresh node, and the requirements that reject it."""
    evidence = measured(node, rounds, seed, slowed(ranks, 1.05), seed)
    cases = open_cluster(file, ClusterOptions(SKU, PER_NODE, PER_NODE, workloads=(WORKLOAD,))).cases
    # Checks need telemetry, and no_regression a history.
    asked = [case for case in cases if case.requirement.definition.subject in ("workload", "probe")]
    verdicts = [judge(case, evidence, CONFIDENCE) for case in asked]
    outcome, *_ = conclude(RunFacts(verdicts, len(verdicts)))
    if outcome == "incomplete" and rounds:
        return judged(file, node, ranks, seed, None)
    return outcome, [one.id for one in verdicts if one.blocks() and one.outcome == "failed"]


def rehearse(number: int, given: argparse.Namespace) -> Rehearsed:
    """One cluster: calibrate from some launches, then judge fresh nodes."""
    chance = random.Random(f"{given.seed}/{number}")
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
    file, bounds, excluded = calibrated(runs)
    found = Rehearsed(bounds, excluded, [*map(host_name, bad)], {label: Counter() for label in FRESH}, Counter())
    for label, (slow, count) in FRESH.items():
        for _ in range(count):
            alone = cluster_of(1, sds, chance.getrandbits(32))
            outcome, failed = judged(file, alone, slow, chance.getrandbits(32))
            found.outcomes[label][outcome] += 1
            found.rejecting.update(() if slow else failed)
    return found


def shares(found: Sequence[Rehearsed]) -> dict[tuple[str, str], Share]:
    """Of bad and good nodes those that are left out, of fresh nodes each outcome."""
    bad = [node in one.excluded for one in found for node in one.bad]
    good = sum(len({*one.excluded} - {*one.bad}) for one in found)
    of = {("bad", "left out"): Share(sum(bad), len(bad))}
    of["good", "left out"] = Share(good, len(found) * NODES - len(bad))
    for label in FRESH:
        counts = sum((one.outcomes[label] for one in found), Counter[str]())
        of |= {(label, how): Share(counts[how], counts.total()) for how in ("accepted", "rejected", "incomplete")}
    return of


def main() -> int:
    """Run the script. Returns its exit code: 1 if an interval contradicts what is expected."""
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("--clusters", type=positive_int, default=200, help="simulated ones (%(default)s)")
    add("--noisier", type=float, default=1.0, help="factor on all that is drawn of noise (%(default)s)")
    add("--processes", type=positive_int, default=2, help="that share the work (%(default)s)")
    add("--seed", type=int, default=0)
    given = parser.parse_args()
    with multiprocessing.Pool(given.processes) as pool:
        found = pool.map(functools.partial(rehearse, given=given), range(given.clusters), chunksize=1)
    of = shares(found)
    rows = [(*names, share.count, share.runs, share) for names, share in of.items()]
    print(table(("nodes", "how", "count", "of", "%, with its 95 % interval"), rows))
    rejecting = sum((one.rejecting for one in found), Counter[str]())
    print("healthy nodes were rejected by", dict(rejecting.most_common(5)))
    often = [of["bad", "left out"], *(of[label, "rejected"] for label in [*FRESH][1:])]
    is_wrong = of["healthy", "rejected"].interval[0] > RATE
    return int(is_wrong or any(share.interval[1] < WANTED for share in often))


if __name__ == "__main__":
    sys.exit(main())
