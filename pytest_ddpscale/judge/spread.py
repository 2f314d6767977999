"""Weak scaling against the slowest GPU: GPUs of one model differ, and all wait for the slowest, which is no fault.

The value of weak scaling compares GPUs together with a typical one alone. Against the slowest GPU it is, in each round,

    t(ddp@k) ÷ t(one GPU) × f(slowest) ÷ f(the one GPU),

t being throughput per GPU and f a rank's own forward time in ddp@k of that round, which waits for nobody. The slowest
is the rank with the longest forward time in the rounds *before*, for the first round in the study before. Chosen within
the round itself, its noise would make the value too good; so a wrong choice can only lower it.

This value counts only if nothing but spread is shown to be there (`Spread`): every GPU of the arm within the limit of
its peers, and so its node; no two groups of GPUs, of which those closer than the limit only leave it open; none held
down by heat or power, by telemetry of each; no gaps between kernels, which are part of f; where ranks also computed
alone in this study, no smaller wait by that; and a value in every round. What is unknown is not shown. Limits above
`MOST_EXCUSED` excuse nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from typing import Literal, TypeAlias

import numpy as np

from pytest_ddpscale.judge.caveats import HOST_BOUND_UTILIZATION
from pytest_ddpscale.judge.devices import SHARE_OF_ROUNDS, flags
from pytest_ddpscale.judge.judged import Judged
from pytest_ddpscale.judge.metrics import Arms, Read
from pytest_ddpscale.judge.own_pace import OwnPace, last_round, own_pace_of, own_pace_s, until
from pytest_ddpscale.judge.peers import compare, median_over_rounds, relative_logs
from pytest_ddpscale.judge.rounds import ArmRounds, Groups, merged
from pytest_ddpscale.judge.stragglers import find_slow_at_times, find_slow_group
from pytest_ddpscale.judge.values import Values, groups_of, table_of
from pytest_ddpscale.plan.metric_catalogue import WEAK_SCALING_EFFICIENCY
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.column_record import FloatArray, IntArray
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import AgainstSlowest, Verdict
from pytest_ddpscale.thresholds.cases import Case

MOST_EXCUSED = 0.10  # a limit above it, as on CPUs, is no limit of ordinary spread
_SMALLER_WAIT = 0.01  # by which the wait may be smaller in steps of ranks that compute alone
# Two possible groups are doubted from this distance of their medians on, if the gap between their nearest GPUs is this
# share of it. Without noise 2.8 % of nodes with half of the GPUs 5 % slower and 1 % of spread are excused; of healthy
# nodes with 1.5 % of spread, 91 %.
_GROUPS_APART, _GAP_OF_GROUPS = 0.035, 0.3
FEWEST_RANKS = 4  # each with three peers
State: TypeAlias = Literal["counts", "open", "not"]


def applies_to(case: Case) -> bool:
    """Whether a requirement is one on weak scaling, with limits that tell spread from faults."""
    limits = case.peers.computing, case.peers.nodes
    is_limited = limits[0] is not None and all(one is None or one <= MOST_EXCUSED for one in limits)
    return case.requirement.definition is WEAK_SCALING_EFFICIENCY and is_limited


def values_against_slowest(case: Case, study: Study, evidence: Evidence, values: Values[str]) -> Values[str] | None:
    """Weak scaling against the slowest GPU, at the places of `values`; None if no own pace was read.

    Args:
        case: to which this `applies_to`.
        study: that measured it.
        evidence: of the run.
        values: of weak scaling, not against the slowest.
    """
    pace = own_pace_of(study, evidence)
    if pace is None:
        return None
    question = case.question
    found = [(one, _read(one, pace, case)) for one in groups_of(question, study, evidence)]
    numbers, samples, errors = table_of(values.places, found)
    return Values(values.scale, values.places, numbers, samples, {}, values.broken, errors)


def _read(groups: Groups, pace: OwnPace, case: Case) -> Read:
    arms = Arms(groups.arms[-1], groups.arms[0], case.world_size).paired
    measured, baseline = arms.measured, arms.baseline
    rows = np.arange(len(measured))
    if not len(rows):
        return Read(measured.numbers, np.zeros(0), None)
    own_s, cells = own_pace_s(measured), measured.measured.rank_of_cell
    before = pace.before(measured.numbers // len(groups.places), measured.ranks.places, cells)
    before = np.where(np.isnan(own_s) | np.isnan(before), -np.inf, before)
    slowest = before.argmax(axis=1)
    there = {place: number for number, place in enumerate(measured.ranks.places)}
    of_baseline = np.array([there.get(place, -1) for place in baseline.ranks.places], np.int64)
    turns = of_baseline[baseline.measured.rank_of_cell[rows, baseline.slowest]]
    is_turn = cells == turns[:, np.newaxis]
    values = measured.samples_per_s_per_gpu / baseline.samples_per_s_per_gpu
    values = values * own_s[rows, slowest] / own_s[rows, is_turn.argmax(axis=1)]
    is_known = np.isfinite(before[rows, slowest]) & is_turn.any(axis=1)
    return Read(measured.numbers, np.where(is_known, values, np.nan), None)


@dataclass(frozen=True)
class Spread:
    """Whether the differences of GPUs at a place are shown to be nothing but spread.

    Attributes:
        state: ``counts`` if they are; ``open`` if more rounds may show it; ``not`` if something else is there, or
            cannot be excluded.
        why: what is open or there; empty if it counts.
        slowest: its slowest GPU.
        behind: its forward time over the median of its peers', less 1.
    """

    state: State
    why: str
    slowest: str
    behind: float


class SpreadJudge:
    """Judges the places of one requirement on weak scaling with regard to spread.

    Args:
        asked: the requirement, with the values that are not against the slowest GPU.
        study: that measured it.
        own: values against the slowest GPU, at the same places.
    """

    def __init__(self, asked: Judged, study: Study, own: Values[str]) -> None:
        self._asked, self._study, self._own = asked, study, own
        self._judged: dict[float, Judged] = {}
        self._row = {place: row for row, place in enumerate(own.places)}

    def judged(self, verdict: Verdict, blank: Verdict, place: str, confidence: float) -> Verdict:
        """The verdict on a place, from that on its value: better, open again, or the same.

        A place passes if either interval clears the bound. It fails only if both are clear below it, or if the value
        against the slowest GPU does not count and the other is: without spread both are the same, so one below the
        bound and one above is noise.
        """
        if verdict.outcome not in ("failed", "inconclusive") or verdict.value is None:
            return verdict
        case, row = self._case, self._row[place]
        own = self._own.of(row)
        if not len(own):
            return verdict
        if confidence not in self._judged:
            at_confidence = replace(blank, confidence=confidence)
            self._judged[confidence] = Judged(at_confidence, case, self._asked.evidence, self._own, self._asked.limit)
        found = self._judged[confidence].verdict_on(row)
        if found.value is None:
            return verdict
        spread = self._of_place(place)
        against = AgainstSlowest(found.value, found.interval, spread.slowest, spread.behind)
        value = f"{100 * found.value:.1f} % against the slowest GPU"
        if found.outcome == "failed":
            if verdict.outcome != "failed" or spread.state == "not":
                return verdict
            reason = f"{verdict.reason}; {value} does, too"
            return replace(verdict, reason=reason, against_slowest=against)
        if spread.state == "counts" and found.value > verdict.value * (1 + self._limit):
            spread = replace(spread, state="not", why="it would excuse more than the limit of a GPU")
        if spread.state == "not":
            return replace(verdict, notes=(*verdict.notes, f"not excused as spread: {spread.why}"))
        if spread.state == "open":
            reason = f"{value}, not shown to be spread alone: {spread.why}"
            return replace(verdict, outcome="inconclusive", reason=reason, against_slowest=against)
        notes = tuple(dict.fromkeys((*verdict.notes, *(f"against the slowest GPU {note}" for note in found.notes))))
        reason = f"{value}: {found.reason}"
        if found.outcome == "passed":
            reason = (
                f"{value} keeps the bound; {100 * (found.value - verdict.value):.1f} points of the loss are the "
                f"spread of its GPUs: {spread.slowest} is {100 * spread.behind:.1f} % behind the median, "
                f"limit {100 * self._limit:.3g} %"
            )
        return replace(verdict, outcome=found.outcome, reason=reason, notes=notes, against_slowest=against)

    @property
    def _case(self) -> Case:
        assert isinstance(self._asked.case, Case)
        return self._asked.case

    @property
    def _limit(self) -> float:
        limit = self._case.peers.computing
        assert limit is not None  # or `applies_to` is False
        return limit

    def _of_place(self, place: str) -> Spread:
        key = "spread", self._study.id, place, self._case.id, self._case.peers
        return self._asked.evidence.once(key, lambda: self._find(place))

    def _find(self, place: str) -> Spread:
        whole, ranks = self._whole, self._ranks.get(place, {})
        if whole is None:
            return Spread("not", "no own pace was read", "", 0.0)
        at = np.array([whole.column.get(one, -1) for one in ranks], np.int64)
        if (at < 0).any() or not len(at):
            return Spread("not", "the own pace of some of its GPUs was not read", "", 0.0)
        compared = whole.compared
        with_pace = at[~np.isnan(compared.ratio[at])]
        if not len(with_pace):
            return Spread("open", "the pace of its GPUs is not known yet", "", 0.0)
        worst = int(with_pace[np.argmax(compared.ratio[with_pace])])
        slowest = whole.pace.rounds.ranks.who(worst)[1]
        found = Spread("counts", "", f"{slowest.number} on {slowest.host}", float(compared.ratio[worst]) - 1)
        if why := whole.why_not(at) or self._why_not_whole(place) or self._why_not_computing(place, ranks):
            return replace(found, state="not", why=why)
        if not compared.within[at].all():
            why = f"not every GPU is certain to be within {100 * whole.limit:.3g} % of its peers"
            return replace(found, state="open", why=why)
        if apart := whole.groups_apart(at):
            why = f"its GPUs may be two groups, {100 * apart:.1f} % apart"
            return replace(found, state="open", why=why)
        if whole.is_open_node(at):
            return replace(found, state="open", why="its node is not certain to be within the limit of nodes")
        return found

    @cached_property
    def _whole(self) -> _Whole | None:
        evidence, study, limits = self._asked.evidence, self._study, self._case.peers
        last = last_round(self._asked.groups)
        pace = own_pace_of(study, evidence, last)
        if pace is None:
            return None
        each = next((arm for arm in study.arms if arm.kind == "each"), None)

        def find() -> _Whole:
            alone = None if each is None else merged(evidence.columns, study.id, each, evidence.plan.layout)
            return _Whole(pace, None if alone is None else until(alone, last), self._limit, limits.nodes)

        return evidence.once(("spread of all", study.id, limits, last), find)

    @cached_property
    def _ranks(self) -> Mapping[str, Mapping[tuple[str, int], int]]:
        """By place, the host and local rank of each rank of the measured arm, and its number of rounds."""
        found: dict[str, dict[tuple[str, int], int]] = {}
        for one in self._asked.groups:
            arm = one.arms[-1]
            size, who = arm.present.shape[1], arm.ranks.places
            times = np.zeros((len(one.places), size), np.int64)
            np.add.at(times, arm.measured.node, arm.present)
            for number, (place, counts) in enumerate(zip(one.places, times.tolist(), strict=True)):
                theirs = who[number * size : (number + 1) * size]
                found[place] = {rank: count for rank, count in zip(theirs, counts, strict=True) if count}
        return found

    @cached_property
    def _busy(self) -> tuple[FloatArray, FloatArray]:
        """Sum over the rounds of the least busy GPU's utilization, and their number, for each place."""
        return self._asked.sums(lambda rounds: rounds.utilization)

    def _why_not_whole(self, place: str) -> str:
        """Rounds without a value against the slowest GPU could be those that would have failed."""
        row = self._row[place]
        has_value = ~np.isnan(self._asked.values.samples[row])
        has_own = ~np.isnan(self._own.samples[row])
        lacking = np.isin(self._asked.values.numbers[has_value], self._own.numbers[has_own], invert=True)
        # Before the first round of all it is unknown which GPU is slowest.
        return f"forward times lack in {lacking[1:].sum()} rounds" if lacking[1:].any() else ""

    def _why_not_computing(self, place: str, ranks: Mapping[tuple[str, int], int]) -> str:
        """Heat, power or a host that is too slow, which forward times contain; empty if shown that none is there."""
        evidence, (total, count) = self._asked.evidence, self._busy
        row = self._row[place]
        if count[row] < SHARE_OF_ROUNDS * self._asked.values.rounds()[row] or not count[row]:
            return "it is unknown how busy its GPUs were, so forward times may contain waiting for the host"
        busy = total[row] / count[row]
        if busy < HOST_BOUND_UTILIZATION:
            told = f"its least busy GPU was {100 * busy:.0f} % busy"
            return f"{told}, so forward times may contain waiting for the host"
        if evidence.goes_on:
            return ""  # telemetry is read after the measurement
        measured, *others = self._held_down
        if any(measured[0].get(rank, 0) < SHARE_OF_ROUNDS * times for rank, times in ranks.items()):
            return "heat and power of its GPUs are not known"
        if any(rank in held for _, held in (measured, *others) for rank in ranks):
            return "a GPU was held down by heat, power supply or board"
        return ""

    @cached_property
    def _held_down(self) -> Sequence[tuple[Mapping[tuple[str, int], int], Collection[tuple[str, int]]]]:
        """Of the measured arm, its baseline and the arm of paces: rounds in which each GPU was polled, and which GPUs
        were held down in any round."""
        evidence = self._asked.evidence
        question = self._case.question
        names = [question.measured.name, *([question.baseline.name] if question.baseline else [])]
        names += [self._whole.pace.rounds.measured.arm] if self._whole else []
        return [evidence.once(("held down", self._study.id, name), partial(self._of_arm, name)) for name in names]

    def _of_arm(self, name: str) -> tuple[Mapping[tuple[str, int], int], Collection[tuple[str, int]]]:
        told = self._asked.evidence.telemetry
        told = told.of(told.rows_of_arm(self._study.id, name))
        is_polled = told.throttle_reasons.where(lambda reasons: reasons is not None)
        polled: Counter[tuple[str, int]] = Counter()
        for number, times in zip(*np.unique(told.place[is_polled], return_counts=True), strict=True):
            polled[told.places[int(number)].of_rank] += int(times)
        held = [told.places[number] for number in np.unique(told.place[flags(told)["throttled"]]).tolist()]
        return polled, {place.of_rank for place in held}


class _Whole:
    """What the forward times of all ranks of a study say, for all of its places."""

    def __init__(self, pace: OwnPace, each: ArmRounds | None, limit: float, nodes: float | None) -> None:
        self.pace, self.limit = pace, limit
        ranks = pace.rounds.ranks
        self.column = {place: number for number, place in enumerate(ranks.places)}
        self.compared = compare(pace.times_s, limit)
        self.groups = find_slow_group(pace.as_steps, limit)
        self._apart = float(np.median([one.ratio for one in self.groups] or [1.0])) - 1
        slow_at_times = find_slow_at_times(pace.as_steps, limit)
        self._at_times = [self.column[one.culprit.place.of_rank] for one in slow_at_times]
        self._node_of = np.zeros(len(ranks), np.int64)
        for number, at in enumerate(ranks.by_host.values()):
            self._node_of[at] = number
        self._is_one, self._nodes_limit = len(ranks.by_host) == 1, nodes
        self._of_nodes = None if self._is_one or nodes is None else compare(pace.of_nodes_s, nodes)
        self._each = each
        self._column_of_each = {} if self._each is None else dict(zip(self._each.ranks.places, count()))

    def why_not(self, at: IntArray) -> str:
        """What the loss of ranks, given by their columns, has beside spread, or may have; empty if nothing."""
        if len(self.pace.rounds.ranks) < FEWEST_RANKS:
            return "its GPUs have too few peers"
        if (self.compared.low[at] > 1 + self.limit).any():
            return f"a GPU is more than {100 * self.limit:.3g} % slower than its peers"
        if np.isin(at, self._at_times).any():
            return "a GPU is far slower than its peers at times"
        if self._apart >= self.limit:
            return f"GPUs fall into two groups: {self.groups[0].others} and the slower ones"
        if not self._is_one and self._nodes_limit is None:
            return "nodes are not compared with each other"
        if self._of_nodes is not None and self._nodes_limit is not None:
            low = self._of_nodes.low[np.unique(self._node_of[at])]
            if (low > 1 + self._nodes_limit).any():
                return f"its node is more than {100 * self._nodes_limit:.3g} % slower than the others"
        return self._why_each(at)

    def _why_each(self, at: IntArray) -> str:
        places = [self.pace.rounds.ranks.places[column] for column in at.tolist()]
        of_each = np.array([self._column_of_each.get(place, -1) for place in places], np.int64)
        is_there = of_each >= 0
        if self._each is None or is_there.sum() < 2:
            return ""
        by_passes, by_steps = _wait(self.pace.as_steps, at[is_there]), _wait(self._each, of_each[is_there])
        if by_passes - by_steps <= _SMALLER_WAIT:
            return ""
        told = f"the slowest by {100 * by_steps:.1f} %, by forward passes {100 * by_passes:.1f} %"
        return f"GPUs that compute alone differ less: {told}"

    def groups_apart(self, at: IntArray) -> float:
        """By how much the medians of two possible groups of ranks differ; 0 if there are none, or hardly apart.

        Spread within the groups hides the gap between them from `find_slow_group`, which accuses; this only doubts. So
        do its groups that are closer than the limit, of which ordinary spread makes some by chance.
        """
        if self.groups:
            return self._apart
        usual = median_over_rounds(relative_logs(self.pace.times_s[:, at]))
        usual = np.sort(usual[~np.isnan(usual)])
        least = max(2, -(-len(usual) // 4))
        if len(usual) < 2 * least:
            return 0.0
        gaps = np.diff(usual)[least - 1 : len(usual) - least]
        split = least + int(np.argmax(gaps))
        apart = float(np.median(usual[split:]) - np.median(usual[:split]))
        is_gap = gaps.max() >= _GAP_OF_GROUPS * apart
        return float(np.expm1(apart)) if is_gap and apart >= np.log1p(_GROUPS_APART) else 0.0

    def is_open_node(self, at: IntArray) -> bool:
        """Whether a node of these ranks may yet be beyond the limit; two nodes are compared with each other."""
        if self._of_nodes is None or self._nodes_limit is None:
            return False
        return not bool((self._of_nodes.high[np.unique(self._node_of[at])] < 1 + self._nodes_limit).all())


def _wait(rounds: ArmRounds, at: IntArray) -> float:
    """By how much the slowest of some ranks is slower than their median one."""
    usual = median_over_rounds(relative_logs(rounds.mean_step_s[:, at]))
    return float(np.expm1(np.nanmax(usual))) if not np.isnan(usual).all() else 0.0
