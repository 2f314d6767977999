"""How often simulated clusters get the right verdict: spread of healthy GPUs, slow GPUs, other faults.

    nice -n 15 python benchmarks/cluster_verdicts.py --jobs 2 --seed 1 --json cluster_verdicts.json
    python benchmarks/cluster_verdicts.py --only spread slow --runs 20
    python benchmarks/cluster_verdicts.py --only spread --points -0.7

A run measures, stops and concludes as a session does. Every run simulates another cluster. Columns, shares in per cent
with 95 % Wilson intervals:

* accepted, rejected, incomplete: how it ended; "partial" counts as incomplete. A fault that is accepted is missed.
* found: rejected, and everything at fault is among the culprits that are certain.
* named: the latter alone, whatever the outcome; links, and a node that drops packets, need not be certain.
* accused: anything healthy is named with certainty.
* efficiency passed: the requirement on weak scaling at the largest size on a node passed.

"x % slow" is the time for the same work over the median of its peers, spread and fault together. A place is rank 0, one
inside, or the last, in turn, unless a row names it. `--points` adds to the published efficiencies from which the
simulator derives communication. Exits with 1 if a share misses its goal.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import product
from time import perf_counter
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from reporting import Share, argument_parser, keep, positive_int
from simulated_session import conclude_all, of_cluster

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.verdicts import ACCEPTING, Culprit, Verdict
from pytest_ddpscale.simulate.cluster import SimulatedCluster, open_cluster
from pytest_ddpscale.simulate.machine import COMPUTING, NodeSpread, Performance
from pytest_ddpscale.simulate.measuring import HELD_DOWN, Moment, SimulatedRun
from pytest_ddpscale.simulate.options import ClusterOptions, parse_faults
from pytest_ddpscale.simulate.writing import host_name
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged

CONFIDENCE = 0.95
PER_NODE = 8
ONE = ("resnet152-fp16",)
# B200 has published training results for ResNet-50 in NCHW only.
TWO = (*ONE, "resnet50-nchw-fp16")
A100, B200, RTX = "a100-sxm4-80gb", "b200", "rtx-pro-6000-server"
Column = Literal["accepted", "rejected", "incomplete", "found", "named", "accused", "efficiency passed"]
COLUMNS: tuple[Column, ...] = (
    "accepted", "rejected", "incomplete", "found", "named", "accused", "efficiency passed",
)  # fmt: skip
GROUPS = ("spread", "slow", "bound", "faults", "alike")
AtFault = Literal["none", "ranks", "node", "all"]


@dataclass(frozen=True)
class Goal:
    """A share in per cent that a column should reach, or not exceed."""

    column: Column
    at_least: float | None = None
    at_most: float | None = None

    def __str__(self) -> str:
        return f"{self.column} {'≤' if self.at_least is None else '≥'} {self.at_least or self.at_most:g} %"

    def is_met_by(self, share: Share) -> bool:
        """By the point estimate."""
        percent = 100 * share.value
        return percent >= self.at_least if self.at_least is not None else percent <= (self.at_most or 0.0)


@dataclass(frozen=True)
class Scenario:
    """A kind of cluster; noise, spread and slowness are in per cent.

    Attributes:
        group: one of `GROUPS`.
        name: in it.
        gpus: in nodes of eight, or one smaller node.
        runs: without ``--runs``.
        slow: how much slower than the median of its peers each rank at fault is, spread included; None to leave it.
        slow_count: number of ranks at fault, from the place on.
        faults: as on the command line, ``{rank}`` and ``{node}`` for the place.
        at_fault: what should be named; with ``none`` and ``all`` nothing.
        places: in turn, run by run; negative ones from the end.
        points: of efficiency above the published one.
        on_bound: sets `points` so that the efficiency on all GPUs of a node is exactly the bound.
        busy: utilization of the least busy GPU; None as published.
        starved: utilization of the GPUs at fault, of one about 2 points more or less than of another.
        hiccups: share of blocks.
    """

    group: str
    name: str
    sku: str = A100
    gpus: int = 8
    runs: int = 100
    workloads: tuple[str, ...] | None = ONE
    noise: float = 0.3
    spread: float = 1.0
    slow: float | None = None
    slow_count: int = 1
    faults: tuple[str, ...] = ()
    at_fault: AtFault = "none"
    places: tuple[int, ...] = (0, 3, -1)
    points: float = 0.0
    on_bound: bool = False
    busy: float | None = None
    starved: float | None = None
    hiccups: float = 0.0
    goals: tuple[Goal, ...] = ()

    @property
    def label(self) -> str:
        """What the row shows."""
        return f"{self.sku.split('-')[0]}, {self.gpus} GPUs, noise {self.noise:g} %, sd {self.spread:g} %: {self.name}"

    def ranks(self, number: int, layout: Layout) -> range:
        """Ranks at fault in a run."""
        if self.at_fault == "none":
            return range(0)
        if self.at_fault == "all":
            return range(layout.world_size)
        place = self.places[number % len(self.places)]
        if self.at_fault == "node":
            node = place % layout.nodes
            return range(node * layout.ranks_per_node, (node + 1) * layout.ranks_per_node)
        first = place % layout.world_size
        return range(first, min(first + self.slow_count, layout.world_size))


@dataclass(frozen=True)
class PlacedSpread(NodeSpread):
    """A spread in which the slow ranks are slower than the median of the others by exactly so much.

    Attributes:
        slow_ranks: which.
        ratio: of their median to that of their peers; of all ranks to the spread, if all are slow.
        by_fault: part of the ratio that an injected fault adds.
    """

    slow_ranks: tuple[int, ...] = ()
    ratio: float = 1.0
    by_fault: float = 1.0

    def factors(self, what: str, layout: Layout, launch: int) -> NDArray[np.float64]:
        """As `NodeSpread.factors`."""
        found = np.array(super().factors(what, layout, launch))
        if what != COMPUTING or not self.slow_ranks:
            return found
        is_slow = np.isin(np.arange(len(found)), self.slow_ranks)
        if is_slow.all():
            return found * self.ratio
        # A single rank gets exactly the ratio; several keep their own differences.
        at = np.median(found[~is_slow]) / np.median(found[is_slow])
        found[is_slow] *= at * self.ratio / self.by_fault
        return found


class StarvedRun(SimulatedRun):
    """A run of which some ranks wait for their host; see `Scenario.starved`."""

    starved: tuple[range, float] = range(0), 1.0

    def _block(self, study: Study, arm: Arm, when: Moment) -> Block | None:
        block, (ranks, busy) = super()._block(study, arm, when), self.starved
        if block is not None:
            found, are_starved = block.each("utilization").copy(), np.isin(block.each("ranks"), ranks)
            found[are_starved] = np.round(busy + 0.02 * np.cos(block.each("ranks")[are_starved]), 4)
            block.readings["utilization"] = found
        return block


@dataclass(frozen=True)
class Ending:
    """How a run ended: the columns that hold, and its seconds."""

    columns: frozenset[str]
    seconds: float


@lru_cache(maxsize=8)
def cluster_of(scenario: Scenario, points: float) -> SimulatedCluster:
    """The cluster of a scenario, with so many points of efficiency above the published one, without its slow ranks."""
    options = ClusterOptions(
        scenario.sku,
        gpus=scenario.gpus,
        noise=scenario.noise / 100,
        workloads=scenario.workloads,
        gpu_spread=scenario.spread / 100,
        hiccups=scenario.hiccups,
    )
    cluster = open_cluster(load_thresholds(packaged("thresholds.yaml")), options)
    return replace(cluster, performance=_with_points(cluster.performance, points, scenario.busy))


def _with_points(performance: Performance, points: float, busy: float | None) -> Performance:
    def moved(sizes: dict[int, float]) -> dict[int, float]:
        return {size: share + points / 100 * (size > 1) for size, share in sizes.items()}

    expectations = {
        name: replace(
            one,
            efficiency={**one.efficiency, "weak": moved(dict(one.efficiency.get("weak", {})))},
            utilization=one.utilization if busy is None else {1: busy},
        )
        for name, one in performance.expectations.items()
    }
    return replace(performance, expectations=expectations)


def run_of(scenario: Scenario, cluster: SimulatedCluster, number: int, seed: int) -> SimulatedRun:
    """A run of a scenario, the `number`-th of them."""
    plan = cluster.plan(seed=seed, short_blocks=True)
    ranks = scenario.ranks(number, plan.layout)
    at = {"rank": ranks.start, "node": ranks.start // plan.layout.ranks_per_node}
    faults = parse_faults([one.format(**at) for one in scenario.faults], plan.layout)
    performance = of_cluster(cluster.performance, seed)
    if scenario.slow is not None:
        by_fault = HELD_DOWN if any(one.kind == "bad-gpu" for one in faults) else 1.0
        sd, ratio = scenario.spread / 100, 1 + scenario.slow / 100
        placed = PlacedSpread(gpu_sd=sd, seed=seed, slow_ranks=tuple(ranks), ratio=ratio, by_fault=by_fault)
        performance = replace(performance, spread=placed)
    run = StarvedRun(plan, performance, faults, seed)
    run.starved = ranks, scenario.starved or 1.0
    return run if scenario.starved else SimulatedRun(plan, performance, faults, seed)


@lru_cache(maxsize=8)
def points_on_bound(scenario: Scenario) -> float:
    """Points above the published efficiency that put the true one, without round noise, on the bound (two secants)."""
    quiet, points = replace(scenario, noise=0.0), 0.0
    for _ in range(3):
        margins = []
        for seed in range(4):
            cluster = cluster_of(quiet, points)
            verdict = _efficiency(conclude_all(run_of(quiet, cluster, 0, seed), cluster, CONFIDENCE)[2])
            if verdict is None or verdict.value is None:
                raise ValueError(f"{scenario.label}: no weak scaling")
            margins.append(verdict.value - verdict.bound_value)
        points -= 100 * float(np.mean(margins))
    return points


def _efficiency(verdicts: Sequence[Verdict]) -> Verdict | None:
    of_node = [v for v in verdicts if v.metric == "weak_scaling_efficiency" and v.world_size <= PER_NODE]
    return max(of_node, key=lambda v: v.world_size, default=None)


def measure(scenario: Scenario, number: int, seed: int, points: float) -> Ending:
    """Simulate and judge a run."""
    began = perf_counter()
    points += points_on_bound(scenario) if scenario.on_bound else scenario.points
    cluster = cluster_of(scenario, points)
    run = run_of(scenario, cluster, number, seed)
    outcome, _, verdicts = conclude_all(run, cluster, CONFIDENCE)
    layout = run.plan.layout
    wrong = set(scenario.ranks(number, layout))
    # Links are never certain, and their ends are not accused.
    blamed = {c for v in verdicts if not v.passed for c in v.culprits}
    certain = set[int]().union(*(_ranks(c, layout) for c in blamed if c.is_certain and c.kind != "link"))
    is_named = bool(wrong) and scenario.at_fault != "all" and wrong <= certain | _linked(blamed, scenario, wrong)
    ended = "accepted" if outcome in ACCEPTING else "rejected" if outcome == "rejected" else "incomplete"
    efficiency = _efficiency(verdicts)
    columns = {
        ended: True,
        "named": is_named,
        "found": is_named and ended == "rejected",
        "accused": bool(certain - wrong),
        "efficiency passed": efficiency is not None and efficiency.passed,
    }
    return Ending(frozenset(name for name, holds in columns.items() if holds), perf_counter() - began)


def _ranks(culprit: Culprit, layout: Layout) -> set[int]:
    """The ranks that a culprit stands for: a GPU, or all GPUs of a node."""
    node = next(number for number in range(layout.nodes) if host_name(number) == culprit.host)
    per_node = range(layout.ranks_per_node) if culprit.place.index is None else (culprit.place.index,)
    return {node * layout.ranks_per_node + local for local in per_node}


def _linked(blamed: set[Culprit], scenario: Scenario, wrong: set[int]) -> set[int]:
    """The ranks at fault, if their links are slow and one is named, or if their links lose packets and the node is."""
    host = host_name(min(wrong) // PER_NODE)
    kinds = {{"slow-link": "link", "lossy-link": "node"}.get(one.partition(":")[0]) for one in scenario.faults}
    return wrong if any(c.kind in kinds and host in c.hosts for c in blamed) else set()


def _at_least(percent: float, *columns: Column) -> tuple[Goal, ...]:
    return tuple(Goal(column, at_least=percent) for column in columns)


def _at_most(percent: float, *columns: Column) -> tuple[Goal, ...]:
    return tuple(Goal(column, at_most=percent) for column in columns)


def spreads() -> Iterator[Scenario]:
    """Healthy clusters whose GPUs differ."""
    for sku, noise, sd in product((A100, B200), (0.3, 0.6), (0.0, 1.0, 1.5, 2.0)):
        goals = _at_least(95 if noise < 0.5 else 88, "accepted") if sd <= 1.5 else ()
        yield Scenario("spread", "healthy", sku, workloads=None, noise=noise, spread=sd, goals=goals)
    for sku in (A100, B200):
        yield Scenario("spread", "healthy", sku, 64, 100, TWO, goals=_at_least(90, "accepted"))
        only = ONE if sku == A100 else TWO
        yield Scenario("spread", "healthy", sku, 512, 40, only, goals=_at_least(80, "accepted"))


def slow_ones() -> Iterator[Scenario]:
    """Slow GPUs, a slow node, and losses that all GPUs have."""
    found = _at_least(95, "found")
    for sku, gpus in product((A100, B200), (8, 64)):
        base = Scenario("slow", "", sku, gpus, workloads=TWO, at_fault="ranks")
        for slow in (3.0, 4.0):
            goals = _at_most(1, "rejected", "named")
            yield replace(base, name=f"GPU {slow:g} % slow", slow=slow, goals=goals, runs=100)
        yield replace(base, name="GPU 5 % slow", slow=5.0, runs=30)
        for slow, place in product((6.5, 8.0, 10.0, 20.0), base.places):
            at = {0: "rank 0", -1: "last"}.get(place, "inside")
            yield replace(base, name=f"GPU {slow:g} % slow, {at}", slow=slow, places=(place,), goals=found, runs=40)
        name, goals = "GPU 6.5 % slow", _at_least(80, "found")
        yield replace(base, name=name, slow=6.5, noise=0.6, goals=goals, runs=60)
    yield Scenario("slow", "node 5 % slow", gpus=64, slow=5.0, at_fault="node", goals=found)
    for sku in (A100, B200):
        base = Scenario("slow", "", sku, workloads=TWO)
        rejected = _at_least(95, "rejected")
        yield replace(base, name="all GPUs 8 % slow", slow=8.0, at_fault="all", goals=rejected)
        for points, least in ((4.0, 95), (3.0, 80)):
            goals = _at_least(least, "rejected")
            yield replace(base, name=f"{points:g} points more communication", points=-points, goals=goals)


def on_bounds() -> Iterator[Scenario]:
    """Clusters whose efficiency must not pass: exactly on the bound, or excused by slow GPUs that are at fault."""
    base = Scenario("bound", "", spread=0.0, runs=400, goals=_at_most(1, "efficiency passed"))
    for gpus in (8, 64):
        yield replace(base, name="all alike, on the bound", gpus=gpus, on_bound=True)
    ranks = replace(base, at_fault="ranks")
    yield replace(ranks, name="one of 4 GPUs 8 % slow", gpus=4, slow=8.0)
    yield replace(ranks, name="half of 8 GPUs 5 % slow", slow=5.0, slow_count=4, places=(0, 4))
    yield replace(ranks, name="one of two GPUs 5 % slow", gpus=2, slow=5.0, places=(0, 1))
    yield replace(ranks, name="GPU 4 % slow by heat", slow=4.0, faults=("bad-gpu:{rank}:clock",))
    yield replace(ranks, name="GPU 4 % slow, its host too: GPUs 85 % busy", slow=4.0, busy=0.85)


def fault_classes() -> Iterator[Scenario]:
    """Every class of faults, on a node and on eight."""
    for gpus in (8, 64):
        base = Scenario("faults", "", gpus=gpus, runs=60, at_fault="ranks")
        yield replace(base, name="none", at_fault="none")
        for slow in (2.0, 3.0, 5.0, 8.0, 10.0, 20.0):
            yield replace(base, name=f"GPU {slow:g} % slow", slow=slow)
        half = replace(base, name="half of the GPUs 5 % slow", slow=5.0, slow_count=gpus // 2, places=(0, gpus // 2))
        yield half
        faults = {
            "GPU slower and slower, by 10 % at the end": "ramp:{rank}:1.1",
            "GPU 20 % slow in one of four rounds": "at-times:{rank}:1.2:4", "GPU lost": "missing-rank:{rank}:2",
            "GPU with wrong results": "corrupt-rank:{rank}",
            "GPU with 80 % of its memory bandwidth": "slow-probe:{rank}:memory-copy:0.8",
            "GPU with 50 % of its memory bandwidth": "slow-probe:{rank}:memory-copy:0.5",
            "GPU with 50 % of its host link": "slow-probe:{rank}:host-to-device:0.5",
            "GPU with 30 % of its host link": "slow-probe:{rank}:host-to-device:0.3",
            "GPU with memory errors": "bad-gpu:{rank}:ecc", "GPU with a quarter of its lanes": "bad-gpu:{rank}:lanes",
            "GPU with an NVLink down": "bad-gpu:{rank}:nvlink", "GPU throttled by heat": "bad-gpu:{rank}:clock",
        }  # fmt: skip
        for name, fault in faults.items():
            yield replace(base, name=name, faults=(fault,))
        yield replace(base, name="hiccups in 5 % of the blocks", at_fault="none", hiccups=0.05)
        of_node: AtFault = "node" if gpus > PER_NODE else "all"
        node = replace(base, at_fault=of_node)
        for factor in (1.05, 1.2):
            name = f"node {100 * factor - 100:g} % slow as it heats up"
            yield replace(node, name=name, faults=(f"throttle:{{node}}:{factor}",))
        if gpus > PER_NODE:
            yield replace(node, name="node 5 % slow", slow=5.0)
            yield replace(node, name="node 10 % slow", slow=10.0)
        starved = replace(base, name="a host starves its GPUs: 85 % busy, 15 % slow")
        if gpus > PER_NODE:
            yield replace(starved, at_fault="node", slow=15.0, starved=0.85, goals=_at_least(95, "found"))
        else:  # nobody is certain: of a single node it may be the bound, or the batch
            goals, faults_of_node = _at_least(95, "rejected"), ("throttle:{node}:1.15",)
            yield replace(starved, at_fault="none", busy=0.85, faults=faults_of_node, goals=goals)
        for share in (0.3, 0.5, 0.7):
            yield replace(node, name=f"links keep {share:.0%}", faults=(f"slow-link:{{node}}:{share}",))
        if gpus > PER_NODE:
            # Of messages 5 % stall; of 1 MiB in the Slurm lab 7 % did (docs/evidence/slurm-lab.md).
            yield replace(node, name="a node drops 5 % of its packets", faults=("lossy-link:{node}:0.05",))


def alikes() -> Iterator[Scenario]:
    """Faults of places that only provisional bounds judge."""
    found = _at_least(95, "found")
    b200 = Scenario("alike", "", B200, workloads=TWO, at_fault="ranks", runs=60, goals=found)
    rtx = replace(b200, sku=RTX, workloads=ONE)
    memory, host = "slow-probe:{rank}:memory-copy:0.5", "slow-probe:{rank}:host-to-device:0.3"
    yield replace(b200, name="GPU with 50 % of its memory bandwidth", faults=(memory,))
    # On one node those that the survey shows alike are peers, but not certain; on four nodes each has three more.
    rejected, pair = _at_least(95, "rejected"), "slow-pair:2:5:0.3"
    for gpus, goals in ((8, rejected), (4 * PER_NODE, found)):
        yield replace(b200, name="GPU with 30 % of its host link", faults=(host,), gpus=gpus, goals=goals)
    for one in (b200, rtx):
        yield replace(one, name="a pair with 30 %", faults=(pair,), at_fault="none", goals=rejected)
    for name, fault in {
        "all ports at half their speed": "slow-port:all:0.5", "a port at half its speed": "slow-port:{rank}:0.5",
        "a link between two nodes with 30 %": "slow-link:1-3:0.3",
    }.items():  # fmt: skip
        four = replace(b200, gpus=4 * PER_NODE, at_fault="ranks" if "{rank}" in fault else "none")
        yield replace(four, name=name, faults=(fault,), goals=found if "{rank}" in fault else rejected)
    for slow in (8.0, 30.0):
        yield replace(rtx, name=f"GPU {slow:g} % slow", slow=slow)
    for nodes in (2, 4):
        links = replace(rtx, name="a node's links keep 30 %", gpus=nodes * PER_NODE, at_fault="node")
        # Of two nodes neither can be told to be the slow one; the link between them can.
        goals = _at_least(95, "rejected") if nodes == 2 else found
        yield replace(links, faults=("slow-link:{node}:0.3",), goals=goals)


def scenarios(groups: Sequence[str]) -> Iterator[Scenario]:
    """Those of some groups, in order; nowhere is anything healthy accused."""
    for group, make in zip(GROUPS, (spreads, slow_ones, on_bounds, fault_classes, alikes), strict=True):
        for one in make() if group in groups else ():
            yield replace(one, goals=one.goals + _at_most(1, "accused"))


def seed_of(scenario: Scenario, number: int, seed: int) -> int:
    """Seed of a run below 2**32, the same whichever other scenarios are simulated."""
    of_row = zlib.crc32(f"{scenario.group}/{scenario.label}".encode())
    return int(np.random.SeedSequence([seed, of_row, number]).generate_state(1)[0])


@dataclass(frozen=True)
class Row:
    """Results of a scenario."""

    scenario: Scenario
    shares: dict[Column, Share]
    seconds: float

    @property
    def missed(self) -> list[Goal]:
        """Goals that it misses."""
        return [goal for goal in self.scenario.goals if not goal.is_met_by(self.shares[goal.column])]

    def cells(self) -> list[str]:
        """Of a line of the table."""
        shares = [_cell(self.shares[column]) for column in COLUMNS]
        if self.scenario.at_fault in ("none", "all"):
            shares[COLUMNS.index("found")] = shares[COLUMNS.index("named")] = "–"
        goals = "; ".join(f"{goal}{' **missed**' if goal in self.missed else ''}" for goal in self.scenario.goals)
        return [self.scenario.label, str(self.shares["accepted"].runs), *shares, goals]


def _cell(share: Share) -> str:
    low, high = share.interval
    return f"{100 * share.value:.3g} [{100 * low:.1f}, {100 * high:.1f}]"


def row_of(scenario: Scenario, endings: Sequence[Ending]) -> Row:
    """The row of some runs."""
    counts = {column: sum(column in one.columns for one in endings) for column in COLUMNS}
    shares = {column: Share(count, len(endings)) for column, count in counts.items()}
    return Row(scenario, shares, sum(one.seconds for one in endings) / len(endings))


def main() -> int:
    """Run the script. Returns its exit code: 1 if a goal is missed."""
    parser = argument_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS, help="groups (all)")
    parser.add_argument("--runs", type=positive_int, help="of each scenario; default: 40 to 400, by its goal")
    parser.add_argument("--most-gpus", type=positive_int, default=512, help="leave larger ones out (%(default)s)")
    parser.add_argument("--match", default="", help="rows whose scenario contains this regular expression (all)")
    parser.add_argument("--points", type=float, default=0.0, help="above the published efficiency (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="other seeds are other runs (%(default)s)")
    parser.add_argument("--jobs", type=positive_int, default=1, help="processes (%(default)s)")
    arguments = parser.parse_args()
    wanted = [
        one for one in scenarios(arguments.only)
        if one.gpus <= arguments.most_gpus and re.search(arguments.match, one.label)
    ]  # fmt: skip
    rows, group = [], ""
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for scenario in wanted:
            runs = range(arguments.runs or scenario.runs)
            seeds = [seed_of(scenario, run, arguments.seed) for run in runs]
            args = [scenario] * len(runs), runs, seeds, [arguments.points] * len(runs)
            row = row_of(scenario, list(pool.map(measure, *args, chunksize=max(1, len(runs) // (4 * arguments.jobs)))))
            if scenario.group != group:
                group = scenario.group
                print(f"\n{group}\n\n{_line(['scenario', 'runs', *COLUMNS, 'goal'])}\n{_line(['---'] * 10)}")
            print(_line(row.cells()), flush=True)
            rows.append(row)
    told = [
        {"scenario": asdict(row.scenario), "shares": {c: asdict(s) for c, s in row.shares.items()},
         "missed": list(map(str, row.missed)), "seconds_per_run": row.seconds}
        for row in rows
    ]  # fmt: skip
    keep(arguments.json, "cluster_verdicts", {"seed": arguments.seed, "points": arguments.points, "rows": told})
    return int(any(row.missed for row in rows))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
