"""What calibrations from few nodes accept and reject: clusters of three SKUs whose GPUs differ by 1 %, nodes by 0.5 %.

    python benchmarks/calibrate_sizes.py --json calibrate_sizes.json
    python benchmarks/calibrate_sizes.py --clusters 2 --skus rtx-pro-6000-server

Each cluster is measured like a site's trusted nodes, `ddpscale calibrate` computes bounds from its first 3 to 20 nodes
and 1, 3 or 5 runs, and writes them into a file that extends the packaged one. A run then judges other nodes of that
cluster by that file, each measured by itself: healthy ones, and nodes whose GPUs compute, whose memory copies or whose
links are 3 to 20 % slow. Undecided nodes are measured again in as many rounds as a session takes at most. The outcome
is that of a run, apart from being simulated: accepted, rejected or incomplete. Everything is simulated in memory; only
the thresholds are files.

Expected: no more healthy nodes are rejected than stated, none that lost 20 % is accepted, and one calibrated from 10
nodes or more rejects 10 %. The exit code is 1 if the interval of any of these shares contradicts that.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from calibrate_rehearsal import CONFIDENCE, MOST_EXCLUDED, PER_NODE, evidence_of_run, thresholds, trusted
from reporting import Share, argument_parser, keep, positive_int, table

from pytest_ddpscale.calibrate.calibration import calibrate
from pytest_ddpscale.calibrate.site_bounds import overlay_of, provenance_of
from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.history.past_run import PastRun
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.outcome import RunFacts, conclude
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.simulate.cluster import SimulatedCluster, open_cluster
from pytest_ddpscale.simulate.machine import NodeSpread
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.options import ClusterOptions, InjectedFault
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.thresholds.site_file import write_overlay

SKUS, WORKLOAD = ("rtx-pro-6000-server", "b200", "a100-sxm4-80gb"), "resnet152-fp16"
NODES, RUNS = (3, 4, 6, 8, 10, 12, 20), (1, 3, 5)
SPREAD = {"node_sd": 0.005, "gpu_sd": 0.01, "launch_sd": 0.002}
LOSSES = (3, 5, 10, 20)  # per cent of the time
HEALTHY, COMPUTATION, MEMORY, LINKS = "healthy", "computation", "memory", "links"
FAULTS = {
    COMPUTATION: lambda rank, factor: InjectedFault("slow-gpu", (rank,), size=factor),
    MEMORY: lambda rank, factor: InjectedFault("slow-probe", (rank,), "memory-copy", size=1 / factor),
    LINKS: lambda rank, factor: InjectedFault("slow-gpu-link", (rank,), size=1 / factor),
}
OUTCOMES = ("accepted", "rejected", "incomplete")


@dataclass(frozen=True)
class Cell:
    """What the bounds of one calibration made of fresh nodes.

    Attributes:
        sku: canonical name.
        cluster: number of the cluster.
        nodes: of the calibration.
        runs: of the calibration.
        calibrated: requirements of the workload and the probes that got a bound; 0 if nothing was written.
        excluded: sound nodes that were left out.
        outcomes: of fresh nodes, by what is slow and by how many per cent, then by outcome.
        rejecting: requirements by which healthy nodes were rejected.
    """

    sku: str
    cluster: int
    nodes: int
    runs: int
    calibrated: int
    excluded: int
    outcomes: dict[str, dict[str, int]]
    rejecting: dict[str, int]


def rehearse(which: tuple[str, int], arguments: argparse.Namespace) -> list[Cell]:
    """All calibrations of one cluster, by its SKU and number."""
    sku, number = which
    chance = random.Random(f"{arguments.seed}/{sku}/{number}")
    cluster = cluster_of(sku, max(NODES) * PER_NODE, chance.getrandbits(32))
    plan, whole = cluster.plan(arguments.rounds, seed=number, short_blocks=True), cluster.plan(seed=number)
    # They ended before their limit of rounds, since provisional bounds are soon decided.
    measured = [
        replace(evidence_of_run(cluster, SimulatedRun(plan, cluster.performance, (), seed)), plan=whole)
        for seed in (chance.getrandbits(31) for _ in range(max(RUNS)))
    ]
    fresh = [(HEALTHY, 0)] * arguments.healthy
    fresh += [(what, loss) for what in FAULTS for loss in LOSSES for _ in range(arguments.slow)]
    nodes = [FreshNode(sku, what, loss, arguments.rounds, chance.getrandbits(31)) for what, loss in fresh]
    return [
        judged_by(sku, number, [trusted(sku, f"run-{at}", one, some) for at, one in enumerate(measured[:runs])], nodes)
        for some in NODES
        for runs in RUNS
    ]


def judged_by(sku: str, number: int, runs: Sequence[PastRun], nodes: Sequence[FreshNode]) -> Cell:
    """The fresh nodes, judged by the file that a calibration writes, or by the packaged one if it writes none."""
    file, written, excluded = thresholds(), 0, 0
    try:
        calibration = calibrate(file, sku, runs, 0.01, MOST_EXCLUDED)
    except BadInput:  # too few nodes remain
        excluded = len(runs[0].hosts)
    else:
        written, excluded = len(calibration.calibrated), len(calibration.excluded)
        if written:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "site.yaml"
                write_overlay(path, overlay_of(calibration, provenance_of(calibration, runs), file))
                file = load_thresholds(path)
    outcomes: dict[str, Counter[str]] = {}
    rejecting: Counter[str] = Counter()
    for node in nodes:
        outcome, failed = node.judged(file)
        outcomes.setdefault(node.label, Counter())[outcome] += 1
        if node.what == HEALTHY:
            rejecting.update(failed)
    counted = {label: dict(of_label) for label, of_label in outcomes.items()}
    return Cell(sku, number, len(runs[0].hosts), len(runs), written, excluded, counted, dict(rejecting))


class FreshNode:
    """A node that nothing was calibrated from, healthy or slow by so many per cent of the time."""

    def __init__(self, sku: str, what: str, loss: int, rounds: int, seed: int) -> None:
        self.sku, self.what, self.loss, self.rounds, self.seed = sku, what, loss, rounds, seed
        self.cluster = cluster_of(sku, PER_NODE, seed)
        self._outcomes: dict[str, tuple[str, list[str]]] = {}

    @property
    def label(self) -> str:
        """``computation 5 %``."""
        return f"{self.what} {self.loss} %" if self.loss else self.what

    @functools.cache  # noqa: B019 (a cluster's nodes live as long as its calibrations)
    def measured(self, rounds: int | None) -> Evidence:
        """A run of it; None for as many rounds as a session takes at most."""
        plan = self.cluster.plan(rounds, seed=self.seed, short_blocks=True)
        slow = [FAULTS[self.what](rank, 1 + self.loss / 100) for rank in range(PER_NODE)] if self.loss else []
        return evidence_of_run(self.cluster, SimulatedRun(plan, self.cluster.performance, slow, self.seed))

    def judged(self, file: ThresholdsFile) -> tuple[str, list[str]]:
        """The outcome of its run, and the requirements that reject it."""
        if file.sha256 not in self._outcomes:
            told = self._judged(file, self.rounds)
            self._outcomes[file.sha256] = told if told[0] != "incomplete" else self._judged(file, None)
        return self._outcomes[file.sha256]

    def _judged(self, file: ThresholdsFile, rounds: int | None) -> tuple[str, list[str]]:
        cases = open_cluster(file, ClusterOptions(self.sku, PER_NODE, PER_NODE, workloads=(WORKLOAD,))).cases
        # Checks need telemetry, and no_regression a history.
        asked = [case for case in cases if case.requirement.definition.subject in ("workload", "probe")]
        verdicts = [judge(case, self.measured(rounds), CONFIDENCE) for case in asked]
        outcome, *_ = conclude(RunFacts(verdicts, len(verdicts)))
        return outcome, [one.id for one in verdicts if one.blocks() and one.outcome == "failed"]


@functools.cache
def _alike(sku: str, gpus: int) -> SimulatedCluster:
    return open_cluster(thresholds(), ClusterOptions(sku, gpus, PER_NODE, workloads=(WORKLOAD,)))


def cluster_of(sku: str, gpus: int, seed: int) -> SimulatedCluster:
    """Nodes of a cluster of this SKU; another seed gives other nodes."""
    cluster = _alike(sku, gpus)
    return replace(cluster, performance=replace(cluster.performance, spread=NodeSpread(**SPREAD, seed=seed)))


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("--clusters", type=positive_int, default=20, help="simulated clusters of each SKU (%(default)s)")
    add("--skus", nargs="+", choices=SKUS, default=SKUS, help="only these (default: all)")
    add("--rounds", type=positive_int, default=12, help="rounds of every run (%(default)s)")
    add("--healthy", type=positive_int, default=6, help="fresh healthy nodes of each cluster (%(default)s)")
    add("--slow", type=positive_int, default=1, help="fresh nodes of each cluster, kind and loss (%(default)s)")
    add("--processes", type=positive_int, default=2, help="processes that share the work (%(default)s)")
    add("--seed", type=int, default=0)
    return parser.parse_args()


def shares(cells: Sequence[Cell], label: str) -> dict[str, Share]:
    """The share of each outcome of the fresh nodes with a label."""
    number = sum(sum(one.outcomes.get(label, {}).values()) for one in cells)
    return {how: Share(sum(one.outcomes.get(label, {}).get(how, 0) for one in cells), number) for how in OUTCOMES}


def rows(cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """A row for each SKU, number of nodes and of runs: accepted / rejected / incomplete of each kind of node."""
    labels = [HEALTHY, *(f"{what} {loss} %" for what in FAULTS for loss in LOSSES)]
    found = []
    for sku in dict.fromkeys(one.sku for one in cells):
        for runs in RUNS:
            for nodes in NODES:
                mine = [one for one in cells if (one.sku, one.runs, one.nodes) == (sku, runs, nodes)]
                bounds = sum(one.calibrated for one in mine) / len(mine)
                counts = ["/".join(str(share.count) for share in shares(mine, label).values()) for label in labels]
                found.append((sku, str(runs), str(nodes), f"{bounds:.0f}", *counts))
    return found


def main() -> int:
    """Run the script. Returns its exit code: 1 if an interval contradicts what is expected."""
    arguments, began = parse_arguments(), time.monotonic()
    cells: list[Cell] = []
    work = [(sku, number) for number in range(arguments.clusters) for sku in arguments.skus]
    with multiprocessing.Pool(arguments.processes) as pool:
        for done, found in enumerate(pool.imap(functools.partial(rehearse, arguments=arguments), work), start=1):
            cells += found
            print(f"{done} of {len(work)} clusters", file=sys.stderr)
    header = ("SKU", "runs", "nodes", "bounds", HEALTHY, *(f"{what} {loss} %" for what in FAULTS for loss in LOSSES))
    print(f"{len(work)} simulated clusters; accepted/rejected/incomplete fresh nodes; {time.monotonic() - began:.0f} s")
    print(table(header, rows(cells)))
    rejecting: Counter[str] = Counter()
    for one in cells:
        rejecting.update(one.rejecting)
    print("healthy nodes were rejected by", dict(rejecting.most_common(5)))
    print("sound nodes left out:", sum(one.excluded for one in cells), "of", sum(one.nodes for one in cells))
    keep(arguments.json, "calibrate_sizes", {"cells": [asdict(one) for one in cells]})
    calibrated = [one for one in cells if one.runs > 1]
    large = [one for one in calibrated if one.nodes >= 10]
    is_wrong = [
        shares(calibrated, HEALTHY)["rejected"].interval[0] > 0.01,
        *(shares(calibrated, f"{what} 20 %")["accepted"].interval[0] > 0.01 for what in FAULTS),
        *(shares(large, f"{what} 10 %")["rejected"].interval[1] < 0.95 for what in (COMPUTATION, LINKS)),
    ]
    return int(any(is_wrong))


if __name__ == "__main__":
    sys.exit(main())
