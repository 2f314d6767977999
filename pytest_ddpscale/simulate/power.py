"""Which faults a thresholds file catches, by judging simulated runs like real ones."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.results.verdicts import Verdict
from pytest_ddpscale.simulate.faults import ALL, COMMON_FAULTS, FORMS, NODE_FAULTS, Faults, InjectedFault, parse_fault
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.simulate.simulated_cluster import SimulatedCluster
from pytest_ddpscale.simulate.simulated_nodes import host_name
from pytest_ddpscale.simulate.simulated_session import decide_all

DEFAULT_FAULTS = (
    "slow-gpu:1.02", "slow-gpu:1.05", "slow-gpu:1.1", "slow-gpu:1.2", "slow-link:0.5", "slow-link:0.25",
    "slow-link:0.05", "throttle:1.05", "throttle:1.2", "ramp:1.05", "step:1.05:8",
    "slow-gpu:all:1.02", "slow-gpu:all:1.1", "drift:5", "missing-rank", "corrupt-rank", "bad-gpu:ecc", "bad-gpu:lanes",
    "bad-gpu:nvlink", "bad-gpu:clock", "slow-probe:memory-copy:0.9", "slow-probe:memory-copy:0.7",
)  # fmt: skip
_HEADER = ("fault", "size", "caught", "rejected", "right one named", "mostly by")
_MOST_METRICS = 2


@dataclass(frozen=True)
class Share:
    """Share of runs in which something happened."""

    count: int
    runs: int

    @property
    def value(self) -> float:
        """The share, 0 … 1."""
        return self.count / self.runs

    @property
    def interval(self) -> tuple[float, float]:
        """95 % score interval: Wilson (1927), J. Am. Stat. Assoc. 22."""
        z = NormalDist().inv_cdf(0.975)
        weight = 1 + z * z / self.runs
        centre = (self.value + z * z / (2 * self.runs)) / weight
        reach = z / weight * (self.value * (1 - self.value) / self.runs + z * z / (4 * self.runs**2)) ** 0.5
        return max(0.0, centre - reach), min(1.0, centre + reach)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:4.0%} [{low:.0%}, {high:.0%}]"


@dataclass(frozen=True)
class Catch:
    """Result of one fault (``slow-gpu:1.05``; ``none`` without one) over all its trials.

    Attributes:
        fault: as written.
        caught: runs in which a requirement did not pass.
        rejected: runs in which a requirement that can reject failed.
        named: runs in which the right GPU or node was named; without a fault, runs in which any was.
        metrics: those that did not pass, the most frequent failure first.
    """

    fault: str
    caught: Share
    rejected: Share
    named: Share
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class Power:
    """Faults that a thresholds file catches; the first catch is without a fault and shows false alarms.

    Requirements that a sound simulated machine misses in more than half of the runs are set aside and not counted.
    """

    catches: tuple[Catch, ...]
    set_aside: tuple[Verdict, ...]


def measure_power(
    cluster: SimulatedCluster,
    plan: Plan,
    faults: Sequence[str],
    trials: int,
    confidence: float,
    seed: int,
    progress: Callable[[str], None] = lambda fault: None,
) -> Power:
    """Simulate and judge `trials` runs without a fault and with each fault; the same seed gives the same shares.

    Faults are ``KIND:SIZE``; rank or node are drawn anew in every run. `progress` is called with each fault before its
    runs.

    Raises:
        OptionError: a fault is invalid, or `trials` is below 1.
    """
    if trials < 1:
        raise OptionError("--trials", f"found {trials}", "a whole number from 1 up")
    for text in faults:
        place_fault(text, plan.layout, random.Random(seed))  # noqa: S311 (only checks it before the first run)
    runs: dict[str, list[_Trial]] = {}
    for text in ("none", *dict.fromkeys(faults)):
        progress(text)
        runs[text] = [_trial(cluster, plan, text, confidence, f"{seed}/{text}/{number}") for number in range(trials)]
    set_aside = _never_kept(runs["none"])
    ignored = {verdict.id for verdict in set_aside}
    return Power(tuple(_catch(text, found, ignored) for text, found in runs.items()), set_aside)


def place_fault(text: str, layout: Layout, chance: random.Random) -> InjectedFault:
    """The fault ``KIND:SIZE`` at a random rank or node; ``KIND:all:SIZE`` affects all ranks.

    Raises:
        OptionError: unknown kind or invalid size.
    """
    kind, _, size = text.partition(":")
    if kind not in FORMS:
        raise OptionError("--faults", f"found {text!r}", f"KIND:SIZE such as {', '.join(DEFAULT_FAULTS)}")
    place = chance.randrange(layout.nodes if kind in NODE_FAULTS else layout.world_size)
    strikes_all = kind == "drift" or (kind in COMMON_FAULTS and size.startswith(f"{ALL}:"))
    placed = [kind, *([] if strikes_all else [str(place)]), *([size] if size else [])]
    return parse_fault(":".join(placed), layout, where=f"--faults {text}")


@dataclass(frozen=True)
class _Trial:
    """One simulated run, with its fault if it had one."""

    fault: InjectedFault | None
    layout: Layout
    verdicts: tuple[Verdict, ...]

    def not_passed(self, ignored: set[str]) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if not verdict.passed and verdict.id not in ignored]

    def names_the_right_one(self, ignored: set[str]) -> bool:
        """Whether any requirement blames the faulty GPU or node; without a fault, whether any blames one."""
        blamed = [culprit for verdict in self.not_passed(ignored) for culprit in verdict.culprits]
        if self.fault is None or self.fault.place is None:
            return bool(blamed)
        if self.fault.kind in NODE_FAULTS:
            return any(culprit.host == host_name(self.fault.place) for culprit in blamed)
        node, index = divmod(self.fault.place, self.layout.ranks_per_node)
        return any((culprit.host, culprit.gpu_index) == (host_name(node), index) for culprit in blamed)


def _trial(cluster: SimulatedCluster, plan: Plan, text: str, confidence: float, seed: str) -> _Trial:
    chance = random.Random(seed)  # noqa: S311 (not for secrets)
    fault = None if text == "none" else place_fault(text, plan.layout, chance)
    faults = Faults((fault,) if fault else (), plan.layout)
    seed_of_run = chance.getrandbits(64)
    performance = cluster.performance.of_cluster(seed_of_run)
    return _Trial(
        fault, plan.layout, decide_all(SimulatedRun(plan, performance, faults, seed_of_run), cluster, confidence)
    )


def _never_kept(sound: Sequence[_Trial]) -> tuple[Verdict, ...]:
    missed = Counter(verdict.id for trial in sound for verdict in trial.verdicts if not verdict.passed)
    return tuple(v for v in sound[0].verdicts if 2 * missed[v.id] > len(sound))


def _catch(text: str, trials: Sequence[_Trial], ignored: set[str]) -> Catch:
    caught = [trial.not_passed(ignored) for trial in trials]
    rejected = [any(v.outcome == "failed" and v.severity == "fail" for v in verdicts) for verdicts in caught]
    named = sum(trial.names_the_right_one(ignored) for trial in trials)
    failed, not_passed = Counter[str](), Counter[str]()
    for verdicts in caught:
        failed.update({verdict.metric for verdict in verdicts if verdict.outcome == "failed"})
        not_passed.update({verdict.metric for verdict in verdicts})
    metrics = sorted(not_passed, key=lambda metric: (-failed[metric], -not_passed[metric], metric))
    runs = len(trials)
    return Catch(
        text, Share(sum(map(bool, caught)), runs), Share(sum(rejected), runs), Share(named, runs), tuple(metrics)
    )


def power_lines(power: Power) -> Iterator[str]:
    """The table and its legend."""
    rows = [_HEADER, *map(_row, power.catches)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield ""
    yield f"{power.catches[0].caught.runs} simulated runs of each, with 95 % score intervals: no machine was measured."
    yield "Caught: a requirement failed, was inconclusive or not measured. Rejected: one that can reject failed."
    yield "The row none shows false alarms and false accusations."
    for verdict in power.set_aside:
        yield f"Not counted, because a sound simulated machine does not meet it: {verdict.id}: {verdict.reason}"


def _row(catch: Catch) -> tuple[str, ...]:
    kind, _, size = catch.fault.partition(":")
    # A fault of all ranks has no culprit.
    named = "–" if kind == "drift" or size.startswith(f"{ALL}:") else str(catch.named)
    return kind, size, str(catch.caught), str(catch.rejected), named, ", ".join(catch.metrics[:_MOST_METRICS])
