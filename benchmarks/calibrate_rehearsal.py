"""Test `ddpscale calibrate` on simulated clusters of unknown noise.

    python benchmarks/calibrate_rehearsal.py --json calibrate_rehearsal.json
    python benchmarks/calibrate_rehearsal.py --clusters 20

Each cluster has 20 nodes of eight RTX PRO 6000 with its own random spread: between nodes, between the GPUs of a node,
from launch to launch and from round to round. Two nodes are bad: one GPU, or all of them, compute 5 to 10 % longer.
Calibration uses three launches and the default rate of false rejects. Then the resulting bounds judge fresh nodes of
the same cluster, each measured by itself: healthy nodes, nodes with one GPU that is 5 % slow, and nodes that are 5 %
slow as a whole. All are measured in 12 rounds; fresh nodes that stay undecided are measured again in as many rounds as
a session takes at most. Everything is simulated in memory, without files.

Expected: at least 95 % of the bad nodes are left out, healthy nodes are rejected no more often than the stated rate,
and at least 95 % of the slow ones are rejected. The exit code is 1 if the interval of any of these shares contradicts
that.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from reporting import Share, argument_parser, keep, positive_int, table

from pytest_ddpscale.calibrate.calibration import Calibration, calibrate
from pytest_ddpscale.history.past_run import PastRun
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.run.evidence import Evidence, evidence_of
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.simulate.cluster import SimulatedCluster, open_cluster
from pytest_ddpscale.simulate.machine import NodeSpread
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.options import ClusterOptions, InjectedFault
from pytest_ddpscale.simulate.writing import host_name, records
from pytest_ddpscale.thresholds.loading import ThresholdsFile, load_thresholds
from pytest_ddpscale.thresholds.model import Requirement
from pytest_ddpscale.util.packaged import packaged

SKU, WORKLOAD, PER_NODE = "rtx-pro-6000-server", "resnet152-fp16", 8
CONFIDENCE = 0.95  # of verdicts, as a session has it
MOST_EXCLUDED = 0.25
# Relative standard deviations, drawn evenly between these for each cluster.
SPREADS = {
    "node_sd": (0.001, 0.006),
    "gpu_sd": (0.001, 0.005),
    "launch_sd": (0.0005, 0.003),
    "round_sd": (0.001, 0.005),
}
BAD_SLOWNESS = (1.05, 1.10)
SLOW = 1.05  # times as long
WANTED = 0.95


@dataclass(frozen=True)
class ClusterResult:
    """Results of one cluster.

    Attributes:
        seed: of all that is drawn.
        sds: relative standard deviations, by what they are of.
        bad: nodes that are.
        excluded: nodes that were left out.
        calibrated: requirements that got a bound.
        healthy: outcomes of fresh healthy nodes: ``rejected``, ``passed`` or ``undecided``.
        slow_gpu: likewise of nodes with one slow GPU.
        slow_node: likewise of nodes that are slow as a whole.
        rejecting: requirements by which healthy nodes were rejected.
        cpu_s: seconds of CPU that it took.
    """

    seed: int
    sds: dict[str, float]
    bad: list[str]
    excluded: list[str]
    calibrated: int
    healthy: dict[str, int]
    slow_gpu: dict[str, int]
    slow_node: dict[str, int]
    rejecting: dict[str, int]
    cpu_s: float


def rehearse(seed: int, arguments: argparse.Namespace) -> ClusterResult:
    """One cluster: calibrate from some launches, then judge fresh nodes."""
    file, began = thresholds(), time.process_time()
    chance = random.Random(f"{arguments.seed}/{seed}")
    sds = {name: arguments.noisier * chance.uniform(*between) for name, between in SPREADS.items()}
    cluster = spread_over(arguments.nodes * PER_NODE, sds, chance.getrandbits(32))
    plan = cluster.plan(arguments.rounds, seed=seed, short_blocks=True)
    bad = chance.sample(range(arguments.nodes), 2)
    faults = [fault for node in bad for fault in _slow(chance, node, chance.uniform(*BAD_SLOWNESS))]
    whole_plan = cluster.plan(seed=seed, short_blocks=True)
    runs = []
    for number in range(arguments.launches):
        evidence = evidence_of_run(cluster, SimulatedRun(plan, cluster.performance, faults, number))
        # It ended before its limit of rounds, since provisional bounds are soon decided.
        runs.append(trusted(SKU, f"launch-{number}", replace(evidence, plan=whole_plan), arguments.nodes))
    calibration = calibrate(file, SKU, runs, arguments.rate, MOST_EXCLUDED)
    rejecting: Counter[str] = Counter()
    fresh = _Fresh(sds, chance, arguments.rounds, calibration)
    return ClusterResult(
        seed, sds, [host_name(node) for node in bad], [*calibration.excluded],
        len(calibration.calibrated),
        healthy=fresh.outcomes(arguments.healthy, (), rejecting),
        slow_gpu=fresh.outcomes(arguments.slow, (3,)),
        slow_node=fresh.outcomes(arguments.slow, range(PER_NODE)),
        rejecting=dict(rejecting),
        cpu_s=time.process_time() - began,
    )  # fmt: skip


class _Fresh:
    """Nodes of a cluster that nothing was calibrated from."""

    def __init__(self, sds: dict[str, float], chance: random.Random, rounds: int, calibration: Calibration) -> None:
        self.sds, self.chance, self.rounds = sds, chance, rounds
        self.bounds = {one.name: one.bound for one in calibration.calibrated}

    def outcomes(self, number: int, slow: Sequence[int], rejecting: Counter[str] | None = None) -> dict[str, int]:
        """How so many of them end, with these local ranks slow."""
        found: Counter[str] = Counter()
        for _ in range(number):
            cluster, launch = spread_over(PER_NODE, self.sds, self.chance.getrandbits(32)), self.chance.getrandbits(32)
            outcomes = self._after(self.rounds, cluster, slow, launch)
            if "inconclusive" in outcomes.values() and "failed" not in outcomes.values():
                outcomes = self._after(None, cluster, slow, launch)
            failed = [name for name, outcome in outcomes.items() if outcome == "failed"]
            if rejecting is not None:
                rejecting.update(failed)
            is_passed = set(outcomes.values()) == {"passed"}
            found["rejected" if failed else "passed" if is_passed else "undecided"] += 1
        return dict(found)

    def _after(
        self, rounds: int | None, cluster: SimulatedCluster, slow: Sequence[int], launch: int
    ) -> dict[str, str]:  # fmt: skip
        """Outcomes after so many rounds, None for as many as a session takes at most."""
        plan = cluster.plan(rounds, seed=launch, short_blocks=True)
        faults = _slowed(slow, SLOW)
        return self._judged(cluster, evidence_of_run(cluster, SimulatedRun(plan, cluster.performance, faults, launch)))

    def _judged(self, cluster: SimulatedCluster, evidence: Evidence) -> dict[str, str]:
        """Outcome of each calibrated requirement, judged as a session does."""
        outcomes: dict[str, str] = {}
        for case in cluster.cases:
            if case.id in self.bounds:
                ours = replace(case, requirement=with_bound(case.requirement, self.bounds[case.id]))
                outcomes[case.id] = judge(ours, evidence, CONFIDENCE).outcome
        return outcomes


def with_bound(requirement: Requirement, bound: float) -> Requirement:
    """The same line of thresholds.yaml with a number that somebody measured: missing it rejects."""
    return replace(requirement, bound=bound, severity="fail", provisional=False)


@functools.cache
def thresholds() -> ThresholdsFile:
    """The packaged file."""
    return load_thresholds(packaged("thresholds.yaml"))


@functools.cache
def _alike(gpus: int) -> SimulatedCluster:
    return open_cluster(thresholds(), ClusterOptions(SKU, gpus, PER_NODE, workloads=(WORKLOAD,)))


def spread_over(gpus: int, sds: dict[str, float], seed: int) -> SimulatedCluster:
    """A cluster whose nodes, GPUs and launches differ so much."""
    cluster = _alike(gpus)
    noise = replace(cluster.performance.noise, round_sd=sds["round_sd"])
    spread = NodeSpread(sds["node_sd"], sds["gpu_sd"], sds["launch_sd"], seed)
    return replace(cluster, performance=replace(cluster.performance, noise=noise, spread=spread))


def _slow(chance: random.Random, node: int, factor: float) -> list[InjectedFault]:
    """One GPU of a node, or all of them."""
    first = node * PER_NODE
    ranks = range(first, first + PER_NODE) if chance.random() < 0.5 else [first + chance.randrange(PER_NODE)]
    return _slowed(ranks, factor)


def _slowed(ranks: Iterable[int], factor: float) -> list[InjectedFault]:
    return [InjectedFault("slow-gpu", (rank,), size=factor) for rank in ranks]


def evidence_of_run(cluster: SimulatedCluster, run: SimulatedRun) -> Evidence:
    """The evidence of a simulated run, as if it had been read from its directory."""
    found = list(records(run, cluster))
    return evidence_of(run.plan, None, found)


def trusted(sku: str, name: str, evidence: Evidence, nodes: int) -> PastRun:
    """A run of which the first nodes are trusted."""
    record = RunRecord(sku=sku, status="simulated", started_at="2026-01-01T00:00:00+00:00", simulated=True)
    hosts = {host_name(node): () for node in range(nodes)}
    return PastRun(name, record, evidence, name, hosts, {}, Judgement(sku, "incomplete", "simulated", ()))


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argument_parser(__doc__)
    add = parser.add_argument
    add("--clusters", type=positive_int, default=200, help="simulated clusters (%(default)s)")
    add("--nodes", type=positive_int, default=20, help="nodes of a cluster (%(default)s)")
    add("--launches", type=positive_int, default=3, help="launches used for calibration (%(default)s)")
    add("--rounds", type=positive_int, default=12, help="rounds of every launch (%(default)s)")
    add("--healthy", type=positive_int, default=15, help="fresh healthy nodes of each cluster (%(default)s)")
    add("--slow", type=positive_int, default=4, help="fresh slow nodes of each cluster and kind (%(default)s)")
    add("--rate", type=float, default=0.01, help="false rejects of a healthy node, stated (%(default)s)")
    add("--noisier", type=float, default=1.0, help="factor on all that is drawn of noise (%(default)s)")
    add("--processes", type=positive_int, default=2, help="processes that share the work (%(default)s)")
    add("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> int:
    """Run the script. Returns its exit code: 1 if an interval contradicts what is expected."""
    arguments = parse_arguments()
    found = []
    with multiprocessing.Pool(arguments.processes) as pool:
        work = functools.partial(rehearse, arguments=arguments)
        for one in pool.imap(work, range(arguments.clusters)):
            found.append(one)
            if len(found) % 10 == 0:
                print(f"{len(found)} of {arguments.clusters} clusters", file=sys.stderr)
    bad = [node in one.excluded for one in found for node in one.bad]
    good = sum(len(set(one.excluded) - set(one.bad)) for one in found)
    shares = {
        "bad nodes left out": Share(sum(bad), len(bad)),
        "good nodes left out": Share(good, len(found) * (arguments.nodes - 2)),
        **{f"{what}: {how}": share for what, how, share in _fresh_shares(found)},
    }
    rows = [(name, str(share.count), str(share.runs), _interval(share)) for name, share in shares.items()]
    print(f"{arguments.clusters} simulated clusters of {arguments.nodes} nodes, {arguments.launches} launches")
    print(table(("share", "count", "of", "value and 95 % interval"), rows))
    print(f"stated: at most {arguments.rate:.1%} of healthy nodes rejected")
    print(f"CPU: {sum(one.cpu_s for one in found):.0f} s")
    of_all: Counter[str] = Counter()
    for one in found:
        of_all.update(one.rejecting)
    print("healthy nodes were rejected by", dict(of_all.most_common(5)))
    keep(arguments.json, "calibrate_rehearsal", {"clusters": [asdict(one) for one in found]})
    too_few = [shares[name] for name in _WANTED_OFTEN if shares[name].interval[1] < WANTED]
    return int(bool(too_few) or shares[_WANTED_RARELY].interval[0] > arguments.rate)


_WANTED_OFTEN = ("bad nodes left out", "one GPU 5 % slow: rejected", "whole node 5 % slow: rejected")
_WANTED_RARELY = "healthy: rejected"


def _fresh_shares(found: Sequence[ClusterResult]) -> list[tuple[str, str, Share]]:
    kinds = {
        "healthy": [one.healthy for one in found],
        "one GPU 5 % slow": [one.slow_gpu for one in found],
        "whole node 5 % slow": [one.slow_node for one in found],
    }
    return [
        (what, how, Share(sum(one.get(how, 0) for one in of_all), sum(sum(one.values()) for one in of_all)))
        for what, of_all in kinds.items()
        for how in ("rejected", "passed")
    ]


def _interval(share: Share) -> str:
    low, high = share.interval
    return f"{share.value:.2%} ({low:.2%} … {high:.2%})"


if __name__ == "__main__":
    sys.exit(main())
