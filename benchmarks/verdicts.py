"""How often simulated clusters get the right verdict: docs/evidence/verdicts.md, docs/thresholds.md.

    nice -n 15 python benchmarks/verdicts.py spread slow bound faults alike --jobs 2 --seed 201
    python benchmarks/verdicts.py plausible --runs 2 --match b200.*memor
    python benchmarks/verdicts.py power --with thresholds=thresholds.yaml sku=l40s workloads=resnet50-fp16
    python benchmarks/verdicts.py minutes

A table is benchmarks/verdicts/NAME.txt, a line of it a scenario: a SKU, GPUs, fields of `Scenario`, and after colons
the name and the goals; words after `with` are of all lines after it. Every run simulates another cluster, measures,
stops and concludes as a session does. Columns, shares in per cent with 95 % Wilson intervals:

* accepted, rejected, incomplete: how it ended; "partial" counts as incomplete. A fault that is accepted is missed.
* caught: a requirement did not pass, without those that the table's first scenario of the SKU misses in most runs.
* found: rejected, and everything at fault is among the culprits that are certain.
* named: the latter alone, whatever the outcome; links, and a node that drops packets, need not be certain.
* accused: anything healthy is named with certainty.
* efficiency passed: the requirement on weak scaling at the largest size on a node passed.

Beside them the mean and the most of the minutes of training, and by what most runs ended as they did.
"x % slow" is the time for the same work over the median of its peers, spread and fault together. No machine is
measured. Exit code 1 if a share misses its goal.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from oracle_runs import CONFIDENCE, until_decided
from reporting import Share, argument_parser, positive_int, row, table, typed

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.judge.coverage import coverage_of
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.links import slow_links
from pytest_ddpscale.judge.outcome import RunFacts, conclude
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.estimate import STARTUP_S, round_seconds, warm_up_seconds
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.report.words.reasons import say, worded
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.evidence import Evidence, evidence_of
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.verdicts import ACCEPTING, Culprit, Verdict
from pytest_ddpscale.simulate import writing
from pytest_ddpscale.simulate.cluster import SimulatedCluster, open_cluster
from pytest_ddpscale.simulate.machine import COMPUTING, NodeSpread
from pytest_ddpscale.simulate.measuring import HELD_DOWN, SimulatedRun
from pytest_ddpscale.simulate.options import ClusterOptions, parse_faults
from pytest_ddpscale.thresholds.cases import AnyCase, training_cases
from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged

TABLES = Path(__file__).with_name("verdicts")
PACKAGED = packaged("thresholds.yaml")
# A SKU without a rejecting published bound accepts nobody: no sign of a fault.
UNCALIBRATED = "no published bound covers all devices"
# What the published matrix of 24 configurations has figures for.
PUBLISHED = {
    "throughput_per_gpu", "weak_scaling_efficiency", "strong_scaling_speedup", "strong_scaling_efficiency",
    "device_utilization", "peak_memory_gib",
}  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """A kind of cluster; noise, spread and slowness are in per cent.

    Attributes:
        table: its file.
        name: in it.
        goals: such as ``found >= 95``.
        gpus: in nodes of eight, or one smaller node; 0 for the largest requirement's.
        workloads: all if none is named.
        noise: of a round.
        sd: between GPUs.
        slow: how much slower than the median of its peers each rank at fault is, spread included; 0 to leave it.
        count: number of ranks at fault, from the place on.
        faults: as on the command line, ``{rank}``, ``{node}`` and ``{next}`` for the place, ``{each}`` for all ranks.
        at: what should be named: ``ranks`` or ``node``; with ``none`` and ``all`` nothing.
        places: in turn, run by run; negative ones from the end.
        points: of efficiency above the published one.
        on_bound: sets `points` so that the efficiency on all GPUs of a node is exactly the bound.
        busy: utilization of the least busy GPU; 0 as published.
        hiccups: share of blocks.
        nic: bandwidth of a GPU to other nodes.
        only: ``published`` for requirements of the published matrix, ``training``, or ``all``.
        blocks: ``short`` or ``full``, for minutes.
    """

    table: str
    name: str
    goals: tuple[str, ...]
    sku: str
    gpus: int = 8
    runs: int = 100
    workloads: tuple[str, ...] = ()
    noise: float = 0.3
    sd: float = 1.0
    slow: float = 0.0
    count: int = 1
    faults: tuple[str, ...] = ()
    at: str = "none"
    places: tuple[int, ...] = (0, 3, -1)
    points: float = 0.0
    on_bound: bool = False
    busy: float = 0.0
    hiccups: float = 0.0
    nic: float = ClusterOptions.nic_gbps
    only: str = "all"
    blocks: str = "short"
    thresholds: Path = PACKAGED

    @property
    def label(self) -> str:
        """What the row shows."""
        size = f"{self.gpus or 'all'} GPUs"
        return f"{self.sku.split('-')[0]}, {size}, noise {self.noise:g} %, sd {self.sd:g} %: {self.name}"

    def ranks(self, number: int, layout: Layout) -> range:
        """Ranks at fault in a run."""
        place, all_ranks = self.places[number % len(self.places)], range(layout.world_size)
        if self.at == "node":
            first = place % layout.nodes * layout.ranks_per_node
            return all_ranks[first : first + layout.ranks_per_node]
        first = place % layout.world_size
        return {"none": all_ranks[:0], "all": all_ranks}.get(self.at, all_ranks[first : first + self.count])

    def placed_faults(self, number: int, layout: Layout) -> tuple[Any, ...]:
        """The faults of a run. Raises OptionError."""
        ranks, texts = self.ranks(number, layout), list[str]()
        at = {"rank": ranks.start, "next": ranks.start + 1, "node": ranks.start // layout.ranks_per_node}
        for text in self.faults:
            texts += [text.format(**at, each=rank) for rank in (ranks if "{each}" in text else ranks[:1] or [0])]
        return parse_faults(texts, layout)


def scenarios(table: str, text: str, more: Sequence[str] = ()) -> Iterator[Scenario]:
    """Those of the lines of a table, with more words for all. Raises ValueError and BadInput."""
    shared: list[str] = []
    for line in text.splitlines():
        words, *told = line.split(" : ")
        if line.startswith("with "):
            shared = line.split()[1:]
        if not line or line.startswith(("#", "with ")):
            continue
        skus, gpus, *own = words.split()
        for sku, size in product(skus.split(","), gpus.split(",")):
            given = typed(Scenario, (f"sku={sku}", f"gpus={size}", *shared, *own, *more))
            name, goals = (*told, "")[:2]
            scenario = Scenario(table, name, tuple(filter(None, goals.split("; "))), **given)
            scenario.placed_faults(0, cluster_of(scenario, 0.0).layout)
            yield scenario


@lru_cache(maxsize=8)
def cluster_of(scenario: Scenario, points: float) -> SimulatedCluster:
    """The cluster of a scenario, with so many points of efficiency above the published one, without its slow ranks."""
    options = ClusterOptions(
        scenario.sku, gpus=scenario.gpus or None, noise=scenario.noise / 100, workloads=scenario.workloads or None,
        gpu_spread=scenario.sd / 100, hiccups=scenario.hiccups, nic_gbps=scenario.nic,
    )  # fmt: skip
    cluster = open_cluster(_loaded(scenario.thresholds), options)
    expectations = {
        name: replace(
            one,
            efficiency={**one.efficiency, "weak": _with_points(one.efficiency["weak"], points)},
            utilization={1: scenario.busy} if scenario.busy else one.utilization,
        )
        for name, one in cluster.performance.expectations.items()
    }
    cases = cluster.cases if scenario.only == "all" else tuple(training_cases(cluster.cases))
    if scenario.only == "published":
        known = [case for case in cases if case.requirement.source.measured is not None]
        cases = tuple(case for case in known if case.requirement.metric in PUBLISHED)
    return replace(cluster, cases=cases, performance=replace(cluster.performance, expectations=expectations))


_loaded = lru_cache(load_thresholds)


def _with_points(sizes: Mapping[int, float], points: float) -> dict[int, float]:
    return {size: share + points / 100 * (size > 1) for size, share in sizes.items()}


@dataclass(frozen=True)
class PlacedSpread(NodeSpread):
    """A spread in which the slow ranks are slower than the median of the others by exactly so much."""

    slow_ranks: tuple[int, ...] = ()
    ratio: float = 1.0  # of their median to that of their peers; of all ranks to the spread, if all are slow
    by_fault: float = 1.0  # part of the ratio that an injected fault adds

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


def run_of(scenario: Scenario, cluster: SimulatedCluster, number: int, seed: int) -> SimulatedRun:
    """A run of a scenario, the `number`-th of them, on nodes and GPUs whose differences follow from the seed."""
    plan = cluster.plan(seed=seed, short_blocks=scenario.blocks == "short")
    ranks, faults = scenario.ranks(number, plan.layout), scenario.placed_faults(number, plan.layout)
    spread: NodeSpread = replace(cluster.performance.spread, seed=seed)
    if scenario.slow:
        by_fault = HELD_DOWN if any(fault.kind == "bad-gpu" for fault in faults) else 1.0
        ratio = 1 + scenario.slow / 100
        spread = PlacedSpread(**vars(spread), slow_ranks=tuple(ranks), ratio=ratio, by_fault=by_fault)
    return SimulatedRun(plan, replace(cluster.performance, spread=spread), faults, seed)


@dataclass(frozen=True)
class Session:
    """What a session came to: verdicts, but no comparison with earlier runs, and the arms of each round by study."""

    verdicts: dict[str, Verdict]
    cases: list[AnyCase]
    evidence: Evidence
    rounds: dict[str, list[tuple[Arm, ...]]]


def session(run: SimulatedRun, cluster: SimulatedCluster) -> Session:
    """Simulate a session that stops each study once all requirements on it are decided, and judge all."""
    plan, rounds = run.plan, defaultdict[str, list[tuple[Arm, ...]]](list)
    found: list[AnyRecord] = [*until_decided(run, cluster, lambda study, timed, *_: rounds[study].append(timed))]
    blocks = [one for one in found if cluster.is_watched and isinstance(one, Block)]
    found += [writing.telemetry_of_turns([block], cluster.expectation(plan), run.faults) for block in blocks]
    evidence = evidence_of(plan, None, found)
    asked = [case for case in cluster.cases if case.requirement.definition.subject != "node"]
    return Session({one.id: worded(judge(one, evidence, CONFIDENCE)) for one in asked}, asked, evidence, rounds)


@dataclass(frozen=True)
class Ending:
    """How a run ended."""

    columns: dict[str, bool]
    by: str  # what ended it so
    missed: frozenset[str]  # requirements that did not pass
    minutes: float  # of machine time for training


@lru_cache(maxsize=8)
def points_on_bound(scenario: Scenario) -> float:
    """Points above the published efficiency that put the true one, without round noise, on the bound (two secants)."""
    quiet, points = replace(scenario, noise=0.0), 0.0
    for _ in range(3):
        cluster, margins = cluster_of(quiet, points), []
        for seed in range(4):
            verdict = _efficiency(session(run_of(quiet, cluster, 0, seed), cluster).verdicts.values())
            margins += [verdict.value - verdict.bound_value] if verdict and verdict.value is not None else []
        points -= 100 * float(np.mean(margins))
    return points


def _efficiency(verdicts: Iterable[Verdict]) -> Verdict | None:
    of_node = [v for v in verdicts if v.metric == "weak_scaling_efficiency" and v.world_size <= 8]
    return max(of_node, key=lambda v: v.world_size, default=None)


def measure(scenario: Scenario, seed: int, number: int) -> Ending:
    """Simulate and judge the `number`-th run; the same for a seed, whichever other scenarios are simulated."""
    key = zlib.crc32(f"{scenario.table}/{scenario.label}".encode())
    seed_of_run = int(np.random.SeedSequence([seed, key, number]).generate_state(1)[0])
    points = scenario.points + (points_on_bound(scenario) if scenario.on_bound else 0.0)
    cluster = cluster_of(scenario, points)
    run = run_of(scenario, cluster, number, seed_of_run)
    return _ending(scenario, cluster, run, session(run, cluster), number)


def _ending(scenario: Scenario, cluster: SimulatedCluster, run: SimulatedRun, done: Session, number: int) -> Ending:
    verdicts, layout, links = tuple(done.verdicts.values()), run.plan.layout, slow_links(done.evidence)
    coverage = coverage_of(done.evidence, done.cases, done.verdicts, {}, layout.ranks_per_node)
    facts = RunFacts(verdicts, len(verdicts), coverage=coverage, slow_links=[say(one.because) for one in links])
    outcome, reason = (found := conclude(facts))[0], say(found[1])
    ended = "accepted" if outcome in ACCEPTING else "rejected" if outcome == "rejected" else "incomplete"
    wrong = set(scenario.ranks(number, layout))
    # Links are never certain, and their ends are not accused.
    blamed = {c for v in verdicts if not v.passed for c in v.culprits}
    certain = set[int]().union(*(_ranks(c, layout) for c in blamed if c.is_certain and c.kind != "link"))
    columns = {name: ended == name for name in ("accepted", "rejected", "incomplete")}
    if wrong and scenario.at != "all":
        is_named = wrong <= certain | _linked(blamed, scenario, wrong)
        columns |= {"found": is_named and ended == "rejected", "named": is_named}
    efficiency = _efficiency(verdicts)
    columns |= {"accused": bool(certain - wrong), "efficiency passed": efficiency is not None and efficiency.passed}
    # Where no sound value is known the simulator takes 5 % more than the bound: a warning there says nothing.
    guessed = {
        case.id for case in done.cases if case.requirement.sound_value is None
        and not (case.requirement.definition.compares_places or case.requirement.definition.reads_own_pace)
    }  # fmt: skip
    failed = {v.id: v.severity for v in verdicts if v.outcome == "failed"}
    warned = [name for name, severity in failed.items() if severity == "warn" and name not in guessed]
    told: list[tuple[object, str]] = [
        (ended == "rejected", _summary([name for name, severity in failed.items() if severity == "fail"])),
        (links, "the search among nodes"),
        (ended == "incomplete" and UNCALIBRATED not in reason, re.split(r" \(|\. ", reason.rpartition(", but ")[2])[0]),
        (warned, f"warns: {_summary(warned)}"),
    ]
    by = next((text for holds, text in told if holds), "nothing")
    speeds = {name: one.samples_per_s for name, one in cluster.performance.expectations.items()}
    seconds = [STARTUP_S, *(warm_up_seconds(study, speeds) for study in run.plan.studies)]
    seconds += [round_seconds(study, arms, speeds) for study in run.plan.studies for arms in done.rounds[study.id]]
    missed = frozenset(v.id for v in verdicts if not v.passed)
    return Ending(columns, by, missed, sum(seconds) / 60)


def _summary(names: Sequence[str]) -> str:
    """``throughput_per_gpu (8), node_check[pcie]``: metrics with the number of their requirements, or the only one."""
    of: dict[str, list[str]] = defaultdict(list)
    for name in names:
        of[name.partition("[")[0]].append(name)
    most = sorted(of.items(), key=lambda one: -len(one[1]))[:4]
    return ", ".join(its[0] if len(its) == 1 else f"{metric} ({len(its)})" for metric, its in most)


def _ranks(culprit: Culprit, layout: Layout) -> set[int]:
    """The ranks that a culprit stands for: a GPU, or all GPUs of a node."""
    node = next(number for number in range(layout.nodes) if writing.host_name(number) == culprit.host)
    per_node = range(layout.ranks_per_node) if culprit.place.index is None else (culprit.place.index,)
    return {node * layout.ranks_per_node + local for local in per_node}


def _linked(blamed: set[Culprit], scenario: Scenario, wrong: set[int]) -> set[int]:
    """The ranks at fault, if their links are slow and one is named, or if their links lose packets and the node is."""
    host = writing.host_name(min(wrong) // 8)
    kinds = {{"slow-link": "link", "lossy-link": "node"}.get(fault.partition(":")[0]) for fault in scenario.faults}
    return wrong if any(c.kind in kinds and host in c.hosts for c in blamed) else set()


def row_of(scenario: Scenario, endings: Sequence[Ending], set_aside: frozenset[str]) -> tuple[list[str], bool]:
    """Of a line of the table, its cells, and whether it misses a goal, by the point estimate."""
    runs, minutes = len(endings), [one.minutes for one in endings]
    shares = {name: Share(sum(one.columns[name] for one in endings), runs) for name in endings[0].columns}
    shares["caught"] = Share(sum(bool(one.missed - set_aside) for one in endings), runs)

    def is_missed(goal: str) -> bool:
        column, side, percent = re.split(" ([<>]=) ", goal)
        off = 100 * shares[column].value - float(percent)
        return off < 0 if side == ">=" else off > 0

    by = Counter(one.by for one in endings).most_common(1)[0][0]
    goals = "; ".join(f"{one} %{' **missed**' * is_missed(one)}" for one in scenario.goals)
    of = (str(shares.get(name, "–")) for name in COLUMNS)
    took = f"{sum(minutes) / runs:.1f}, {max(minutes):.1f}"
    return [scenario.label, str(runs), *of, took, by, goals], any(map(is_missed, scenario.goals))


def most_missed(endings: Sequence[Ending]) -> frozenset[str]:
    """Requirements that more than half of the runs miss."""
    counts = Counter(name for one in endings for name in one.missed)
    return frozenset(name for name, count in counts.items() if 2 * count > len(endings))


COLUMNS = ("accepted", "rejected", "incomplete", "caught", "found", "named", "accused", "efficiency passed")


def main() -> int:
    """Run the script. Returns its exit code."""
    parser = argument_parser(__doc__)
    names = sorted(file.stem for file in TABLES.glob("*.txt") if file.stem != "sequences")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"some of {', '.join(names)}")
    parser.add_argument("--line", action="append", default=[], metavar="TEXT", help="a scenario as a line has it")
    parser.add_argument("--with", nargs="+", default=[], dest="more", metavar="FIELD=VALUE", help="of all scenarios")
    parser.add_argument("--runs", type=positive_int, help="of each scenario; default: by the table")
    parser.add_argument("--match", default="", help="rows whose scenario contains this regular expression (all)")
    parser.add_argument("--seed", type=int, default=0, help="other seeds are other runs (%(default)s)")
    parser.add_argument("--jobs", type=positive_int, default=1, help="processes (%(default)s)")
    given = parser.parse_args()
    texts = {"line": "\n".join(given.line)} if given.line else {}
    try:
        texts |= {name: (TABLES / f"{name}.txt").read_text(encoding="utf-8") for name in given.tables}
        wanted = [one for name, text in texts.items() for one in scenarios(name, text, given.more)]
    except (BadInput, OSError, ValueError) as error:
        parser.error(str(error))
    begun, sound, is_missed = "", dict[tuple[str, str], frozenset[str]](), False
    with ProcessPoolExecutor(given.jobs) as pool:
        for one in (one for one in wanted if re.search(given.match, one.label)):
            if one.table != begun:
                begun = one.table
                print(f"\n{begun}\n")
                print(table(["scenario", "runs", *COLUMNS, "minutes", "by", "goal"], ()))
            runs = given.runs or one.runs
            found = list(pool.map(partial(measure, one, given.seed), range(runs), chunksize=max(1, runs // 8)))
            set_aside = sound.setdefault((begun, one.sku), most_missed(found))
            cells, has_missed = row_of(one, found, set_aside)
            is_missed |= has_missed
            print(row(*cells), flush=True)
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
