"""Weak scaling against the slowest GPU: GPUs of one model differ, and all wait for the slowest, which is no fault.

The value of weak scaling compares GPUs together with a typical one alone. Against the slowest GPU it is, in each round,

    t(ddp@k) ÷ t(one GPU) × f(slowest) ÷ f(the one GPU),

t being throughput per GPU and f a rank's own forward time in ddp@k of that round, which waits for nobody. The slowest
is the rank with the longest forward time in the rounds *before*, for the first round in the study before. Chosen within
the round itself, its noise would make the value too good; so a wrong choice can only lower it.

This value counts only if nothing but spread is there (`Spread`): every GPU within the limit of its peers, and so its
node; no two groups of GPUs; none held down by heat or power; no gaps between kernels, which are part of f; and where
ranks also computed alone in this study, no smaller wait by that. Limits above `MOST_EXCUSED` excuse nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from pytest_ddpscale.judge.bounds import against_bound
from pytest_ddpscale.judge.caveats import HOST_BOUND_UTILIZATION, Asked
from pytest_ddpscale.judge.devices import flags
from pytest_ddpscale.judge.metrics import Arms, Read
from pytest_ddpscale.judge.own_pace import OwnPace, forward_step_s, own_pace_of
from pytest_ddpscale.judge.peers import compare, median_over_rounds, relative_logs
from pytest_ddpscale.judge.rounds import WHOLE, ArmRounds, Groups, merged
from pytest_ddpscale.judge.stragglers import WATCHED_SHARE, find_slow_group
from pytest_ddpscale.judge.values import Values, groups_of, joined, table_of
from pytest_ddpscale.plan.metric_catalogue import WEAK_SCALING_EFFICIENCY
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.column_record import FloatArray, IntArray
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import AgainstSlowest, Verdict
from pytest_ddpscale.thresholds.cases import Case

MOST_EXCUSED = 0.10  # a limit above it, as on CPUs, is no limit of ordinary spread
_SMALLER_WAIT = 0.01  # by which the wait may be smaller in steps of ranks that compute alone
State = Literal["counts", "open", "not"]


def applies_to(case: Case) -> bool:
    """Whether a requirement is one on weak scaling, with limits that tell spread from faults."""
    limits = case.peers.computing, case.peers.nodes
    is_limited = limits[0] is not None and all(one is None or one <= MOST_EXCUSED for one in limits)
    return case.requirement.definition is WEAK_SCALING_EFFICIENCY and is_limited


def values_against_slowest(case: Case, study: Study, evidence: Evidence, values: Values[str]) -> Values[str] | None:
    """Weak scaling against the slowest GPU, at the places of `values` of one launch; None if no own pace was read.

    Args:
        case: to which this `applies_to`.
        study: that measured it.
        evidence: of the launch.
        values: of weak scaling, not against the slowest.
    """
    pace = own_pace_of(study, evidence)
    if pace is None:
        return None
    question = case.question
    found = [(one, _read(one, pace, case)) for one in groups_of(question, study, evidence)]
    numbers, samples, errors = table_of(values.places, found)
    return Values(values.scale, values.places, numbers, samples[np.newaxis], {}, values.broken, errors[np.newaxis])


def _read(groups: Groups, pace: OwnPace, case: Case) -> Read:
    arms = Arms(groups.arms[-1], groups.arms[0], case.world_size).paired
    measured, baseline = arms.measured, arms.baseline
    rows = np.arange(len(measured))
    if not len(rows):
        return Read(measured.numbers, np.zeros(0), None)
    own_s, cells = forward_step_s(measured), measured.measured.rank_of_cell
    before = pace.before(measured.numbers // len(groups.places), measured.ranks.places)
    before = np.take_along_axis(before, cells, axis=1)
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
    """Judges the places of one requirement on weak scaling in one launch with regard to spread.

    Args:
        asked: the requirement, with the values that are not against the slowest GPU.
        study: that measured it.
        each: values against the slowest GPU in each launch; the place has their interval.
        launch: index of this launch among them.
    """

    def __init__(self, asked: Asked, study: Study, each: Sequence[Values[str]], launch: int) -> None:
        self._asked, self._study = asked, study
        self._values, self._own = joined(each), each[launch]

    def judged(self, verdict: Verdict, blank: Verdict, place: str, confidence: float) -> Verdict:
        """The verdict on a place, from that on its value: better, open again, or the same.

        A place passes if either interval clears the bound. It fails only if the value against the slowest GPU is clear
        below the bound, or if that does not count and the other is.
        """
        if verdict.outcome not in ("failed", "inconclusive") or verdict.value is None:
            return verdict
        case = self._asked.case
        assert isinstance(case, Case)
        row, own = self._row(place)
        spread = self._of_place(place)
        if row is None or own is None or spread.state == "not":
            return verdict
        found = against_bound(
            blank, case.requirement, own, lambda: self._values.found(row, confidence, self._asked.limit)
        )
        if found.value is None:
            return verdict
        against = AgainstSlowest(found.value, found.interval, spread.slowest, spread.behind)
        text = (
            f"{100 * (found.value - verdict.value):.1f} points of the loss are the spread of its GPUs: "
            f"{spread.slowest} is {spread.behind:.1%} behind the median, limit {case.peers.computing:.0%}"
        )
        if spread.state == "open":
            if verdict.outcome == found.outcome == "failed":
                return verdict
            reason = f"not shown to be spread alone: {spread.why}"
            return replace(verdict, outcome="inconclusive", reason=reason, against_slowest=against, p_value=None)
        if found.outcome == "failed":
            return replace(
                verdict, outcome="failed", reason=f"{found.reason}; {text}", p_value=found.p_value,
                against_slowest=against,
            )  # fmt: skip
        reason = (
            found.reason if found.outcome == "inconclusive" else f"the bound is kept against the slowest GPU; {text}"
        )
        if found.outcome == "inconclusive":
            reason = f"against the slowest GPU {found.value:.1%}: {found.reason}"
        return replace(verdict, outcome=found.outcome, reason=reason, p_value=None, against_slowest=against)

    def _row(self, place: str) -> tuple[int | None, FloatArray | None]:
        if place not in self._own.places:
            return None, None
        own = self._own.of(list(self._own.places).index(place))
        return (list(self._values.places).index(place), own) if len(own) else (None, None)

    def _of_place(self, place: str) -> Spread:
        key = "spread", self._study.id, place, self._asked.case.id
        return self._asked.evidence.once(key, lambda: self._find(place))

    def _find(self, place: str) -> Spread:
        whole = self._whole
        if whole is None:
            return Spread("not", "no own pace was read", "", 0.0)
        at = whole.columns(place)
        with_pace = at[~np.isnan(whole.compared.ratio[at])]
        if not len(with_pace):
            return Spread("open", f"the pace of {place or 'its GPUs'} is not known yet", "", 0.0)
        worst = int(with_pace[np.argmax(whole.compared.ratio[with_pace])])
        _, host, local_rank, _ = whole.pace.rounds.ranks.who(worst)
        behind = float(whole.compared.ratio[worst]) - 1

        def told(state: State, why: str) -> Spread:
            return Spread(state, why, f"GPU {local_rank} on {host}", behind)

        if why := whole.why_not(place) or self._why_not_computing(place, whole):
            return told("not", why)
        if not whole.compared.within[at].all():
            return told("open", f"not every GPU is certain to be within {whole.limit:.0%} of its peers")
        if whole.is_open_node(place):
            return told("open", "its node is not certain to be within the limit of nodes")
        return told("counts", "")

    @cached_property
    def _whole(self) -> _Whole | None:
        case, evidence, study = self._asked.case, self._asked.evidence, self._study
        assert isinstance(case, Case)
        limits = case.peers
        pace = own_pace_of(study, evidence)
        if pace is None or limits.computing is None:
            return None
        key = "spread of all", study.id, limits
        computing, nodes = limits.computing, limits.nodes
        return evidence.once(key, lambda: _Whole(study, evidence, pace, computing, nodes))

    def _why_not_computing(self, place: str, whole: _Whole) -> str:
        """Heat, power or a host that is too slow, which forward times contain; empty if none is there."""
        evidence = self._asked.evidence
        arm = self._asked.rounds(place).measured
        hosts = list(arm.ranks.by_host)
        total, count = self._asked.sums(lambda rounds: rounds.utilization)
        row = list(self._asked.values.places).index(place)
        if count[row] or not evidence.goes_on:
            busy = total[row] / count[row] if count[row] else np.nan
            if not busy >= HOST_BOUND_UTILIZATION:
                told = "of unknown utilization" if np.isnan(busy) else f"{busy:.0%} busy"
                return f"its least busy GPU was {told}, so forward times may contain waiting for the host"
        if evidence.goes_on:
            return ""  # telemetry is read after the measurement
        told_of = evidence.telemetry.of_arm(arm.study, arm.arm, hosts)
        if not len(told_of.rank):
            return "heat and power of its GPUs were not recorded"
        return "a GPU was held down by heat, power supply or board" if flags(told_of)["throttled"].any() else ""


class _Whole:
    """What the forward times of all ranks of a study say, for all of its places."""

    def __init__(self, study: Study, evidence: Evidence, pace: OwnPace, limit: float, nodes: float | None) -> None:
        self.pace, self.limit = pace, limit
        self.compared = compare(pace.times_s, limit)
        self.groups = find_slow_group(pace.as_steps, WATCHED_SHARE * limit)
        self._hosts = list(pace.rounds.ranks.by_host)
        is_one = len(self._hosts) == 1 or nodes is None
        self._of_nodes = None if is_one else compare(pace.of_nodes_s, nodes or limit)
        self._nodes_limit = nodes or limit
        each = next((arm for arm in study.arms if arm.kind == "each"), None)
        self._each = None if each is None else merged(evidence.columns, study.id, each, evidence.plan.layout)

    def columns(self, place: str) -> IntArray:
        """Columns of the ranks at a place."""
        ranks = self.pace.rounds.ranks
        return np.arange(len(ranks)) if place == WHOLE else ranks.by_host.get(place, np.zeros(0, np.int64))

    def why_not(self, place: str) -> str:
        """What the loss of a place has beside spread; empty if nothing is seen."""
        at = self.columns(place)
        if self.compared.beyond[at].any():
            return f"a GPU is more than {self.limit:.0%} slower than its peers"
        if len(self.pace.rounds.ranks) <= 3:
            return "its GPUs have too few peers"
        if self.groups:
            return f"GPUs fall into two groups: {self.groups[0].others} and the slower ones"
        node = self._node(place)
        if node is not None and (node[0] > 1 + self._nodes_limit).any():
            return f"its node is more than {self._nodes_limit:.0%} slower than the others"
        if self._each is not None and len(self._each):
            waits = [_wait(one, place) for one in (self.pace.as_steps, self._each)]
            if waits[0] - waits[1] > _SMALLER_WAIT:
                told = f"the slowest by {waits[1]:.1%}, by forward passes {waits[0]:.1%}"
                return f"GPUs that compute alone differ less: {told}"
        return ""

    def is_open_node(self, place: str) -> bool:
        """Whether a node of the place may yet be beyond the limit of nodes."""
        node = self._node(place)
        return node is not None and not bool((node[1] < 1 + self._nodes_limit).all())

    def _node(self, place: str) -> tuple[FloatArray, FloatArray] | None:
        """Limits of the interval of the nodes of a place; two nodes are compared with each other."""
        if self._of_nodes is None:
            return None
        at = slice(None) if place == WHOLE else [self._hosts.index(place)]
        return self._of_nodes.low[at], self._of_nodes.high[at]


def _wait(rounds: ArmRounds, place: str) -> float:
    """By how much the slowest rank of a place is slower than its median one."""
    at = np.arange(len(rounds.ranks)) if place == WHOLE else rounds.ranks.by_host.get(place, np.zeros(0, np.int64))
    if not len(at):
        return 0.0
    usual = median_over_rounds(relative_logs(rounds.mean_step_s[:, at]))
    return float(np.expm1(np.nanmax(usual))) if not np.isnan(usual).all() else 0.0
