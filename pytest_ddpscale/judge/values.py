"""The values that answer a question: one for each place and round; and why a place has none.

A place is a node, if each of several nodes answers by itself, or all ranks together (`WHOLE`); of a probe it is a
device, a group of ranks or a pair of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from pytest_ddpscale.judge.metrics import Arms, Read, Slowness, read, slowness_of
from pytest_ddpscale.judge.peers import median_over_rounds, medians_of_others
from pytest_ddpscale.judge.rounds import WHOLE, Groups, groups, hosts_of, last_round
from pytest_ddpscale.judge.slow import SlowRanks, arms_read, own_pace_of, pace_in
from pytest_ddpscale.judge.stats import Estimated, estimate, possible_part
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import NODE_UNIFORMITY, Scale
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import Plan, Scaling, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.column_record import FloatArray, IntArray
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Flag

P = TypeVar("P", bound=Hashable)


class Why(Enum):
    """Why something has no values: the outcome of its verdict, and the sentence."""

    NOT_PLANNED = "not_measured", "{scaling} scaling of {workload} was not measured in this run"
    PLANNED_DIFFERENTLY = "not_measured", "measured differently: {details}"
    BROKE = "error", "{details}"
    INTERRUPTED = "not_measured", "{details}"
    ONE_NODE = "not_measured", "needs at least 2 nodes to spread ranks over; this run had one"
    NO_ROUND = "not_measured", "no complete round of {ranks} ranks in {details}"
    NO_BASELINE = "not_measured", "{details} has no complete round of the arm {baseline} to compare with"
    NOT_READ = "not_measured", "{metric} could not be read on every rank{details}"
    NOT_PROBED = "not_measured", "{probe} was not probed in this run"
    NO_PROBED_ROUND = "not_measured", "no complete round of {probe}"
    UNSUPPORTED = "not_measured", "{probe} could not be done: {details}"

    def __init__(self, outcome: Literal["not_measured", "error"], sentence: str) -> None:
        self.outcome: Literal["not_measured", "error"] = outcome
        self.sentence = sentence

    @property
    def flags(self) -> tuple[Flag, ...]:
        """Flags of its verdict."""
        return ("interrupted",) if self is Why.INTERRUPTED else ()


class Missing(NamedTuple):
    """Why a place, or a whole study, has no values; `details` are what the run recorded about it, or the study."""

    why: Why
    details: str = ""

    def text(self, question: Question | Arm) -> str:
        """The sentence."""
        if isinstance(question, Arm):
            return self.why.sentence.format(details=self.details, probe=question.name)
        return self.why.sentence.format(
            details=self.details, scaling=question.metric.scaling, workload=question.workload.name,
            ranks=question.world_size, baseline=question.baseline.name if question.baseline else "",
            metric=question.metric.name,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Values(Generic[P]):
    """What one question found.

    Attributes:
        scale: how the values err.
        places: all that were to be measured, as far as they are known.
        numbers: of the rounds, ascending, (rounds,).
        samples: in the metric's unit, or before the division by the SKU's constant; NaN if missing, (places, rounds).
        missing: why a place has nothing.
        broken: why nothing counts, though there may be values: it was not planned, broke or was interrupted; else None.
        errors: relative error of a place that has a single imported sample, else NaN, (places,).
    """

    scale: Scale
    places: Sequence[P]
    numbers: IntArray
    samples: FloatArray
    missing: Mapping[P, Missing]
    broken: Missing | None
    errors: FloatArray
    _kept: dict[Any, Estimated] = field(init=False, default_factory=dict)

    def __truediv__(self, constant: float) -> Values[P]:
        """Relative to a constant of the SKU."""
        return self if constant == 1 else replace(self, samples=self.samples / constant)

    def of(self, place: int) -> FloatArray:
        """The known values of a place, given by its index, in the order of the rounds."""
        values = self.samples[place]
        known: FloatArray = values[~np.isnan(values)]
        return known

    def items(self) -> Iterator[tuple[P, FloatArray]]:
        """Places that have values, with them."""
        for place in np.flatnonzero(self.rounds()).tolist():
            yield self.places[place], self.of(place)

    def rounds(self) -> IntArray:
        """Number of known values of each place, (places,)."""
        return np.asarray((~np.isnan(self.samples)).sum(axis=1))

    def estimated(self, confidence: float, limit: int = 0) -> Estimated:
        """Values and intervals of all places; the arguments are those of `estimate`."""
        key = confidence, limit
        if key not in self._kept:
            self._kept[key] = estimate(self.samples, self.scale, confidence, limit, self.errors)
        return self._kept[key]


def values(question: Question, evidence: Evidence) -> Values[str]:
    """The values of a metric of training, by host if each of several nodes is judged by itself, else of `WHOLE`.

    A metric that is a ratio to a constant of the SKU is returned before the division.
    """
    study = matching_study(evidence.plan, question)
    if study is None:
        why = why_no_study(evidence.plan, question)
        return Values(question.metric.scale, (), np.zeros(0, np.int64), np.zeros((0, 0)), {}, why, np.zeros(0))
    return evidence.once(("values", question, study.id), lambda: _of_study(question, study, evidence))


def _of_study(question: Question, study: Study, evidence: Evidence) -> Values[str]:
    found = groups_of(question, study, evidence)
    columns, slowness = evidence.columns, _slowness(question, study, evidence, found)
    is_by_node = evidence.plan.layout.judged_by_node(question.arms)
    places = hosts_of(columns, study.id) if is_by_node else [WHOLE]
    flops, checksums = evidence.flops_per_sample.get(study.id), evidence.seeded_checksums(study.id)
    of_each = []
    for one in () if question.metric.reads_own_pace else found:
        baseline = one.arms[0] if question.baseline else None
        arms = Arms(one.arms[-1], baseline, question.world_size, slowness, flops, checksums)
        of_each.append((one, read(question.metric, arms)))
    numbers, samples, errors = table_of(places, of_each)
    if question.metric.reads_own_pace:
        numbers, samples = _over_peers(question, study, evidence, places)
    missing = {}
    nothing = np.flatnonzero(np.isnan(samples).all(axis=1)).tolist()
    if nothing:
        with_rounds = [
            {one.places[place] for one in found for place in np.unique(one.arms[arm].measured.node).tolist()}
            for arm in (-1, 0)
        ]
        for place in (places[row] for row in nothing):
            measured, compared = (place in those for those in with_rounds)
            why = Why.NOT_READ if measured and compared else Why.NO_BASELINE if measured else Why.NO_ROUND
            hosts = hosts_of(columns, study.id) if place == WHOLE else [place]
            details = _why_unread(question, study.id, evidence, hosts) if why is Why.NOT_READ else study.id
            missing[place] = Missing(why, details)
    is_one_node = question.placement == "spread" and evidence.plan.nodes == 1
    broken = why_broken(study.id, evidence) or (Missing(Why.ONE_NODE) if is_one_node else None)
    return Values(question.metric.scale, places, numbers, samples, missing, broken, errors)


def _over_peers(
    question: Question, study: Study, evidence: Evidence, places: Sequence[str]
) -> tuple[IntArray, FloatArray]:
    """Numbers of the rounds; time over the peers' of the place's slowest GPU, or of the node, (places, rounds).

    The peers are those of the whole run, as in `uniformity`.
    """
    arm = arms_read(question, study)[-1]
    pace, measured = pace_in(study, arm, evidence), evidence.columns.arms.get((study.id, arm.name))
    times_s, by_host, rounds = pace.times_s, pace.ranks.by_host, pace.numbers
    if measured is not None and measured.single_sample.any():
        times_s = np.full(times_s.shape, np.nan)
    if question.metric is NODE_UNIFORMITY and len(rounds):
        times_s, by_host = pace.of_nodes_s, {host: np.array([at]) for at, host in enumerate(by_host)}
    ratios = times_s / medians_of_others(times_s)
    numbers, rows = np.unique(rounds, return_inverse=True)
    found = np.full((len(places), len(numbers)), np.nan)
    for row, place in enumerate(places if len(rounds) else ()):
        at = np.arange(ratios.shape[1]) if place == WHOLE else by_host.get(place, np.zeros(0, np.int64))
        if len(at):
            slowest = ratios[:, at[np.nan_to_num(median_over_rounds(ratios[:, at])).argmax()]]
            known = ~np.isnan(slowest)
            found[row, rows[known]] = slowest[known]
    return numbers, found


def _why_unread(question: Question, study_id: str, evidence: Evidence, hosts: Sequence[str]) -> str:
    """``: GPU 3 on n1: Not Supported``: the first GPU without an asked utilization; empty if the reason is unknown."""
    told = evidence.telemetry.of_arm(study_id, question.measured.name, hosts)
    if question.metric.reads_utilization:
        for row, said in enumerate(told.unreadable):
            if why := said.get("utilization") or said.get("device"):
                return f": {told.place_of(row).number} on {told.place_of(row).host}: {why}"
    return ""


def groups_of(question: Question, study: Study, evidence: Evidence) -> list[Groups]:
    """The complete rounds of the question's arms, the measured one last."""
    return groups(evidence.columns, study.id, question.arms, evidence.plan.layout)


def table_of(places: Sequence[str], found: Sequence[tuple[Groups, Read]]) -> tuple[IntArray, FloatArray, FloatArray]:
    """Numbers of the rounds, values (places, rounds), and errors (places,)."""
    split = [np.divmod(rows.numbers, len(one.places)) for one, rows in found]
    numbers = np.unique(np.concatenate([np.zeros(0, np.int64), *(rounds for rounds, _ in split)]))
    table, errors = np.full((len(places), len(numbers)), np.nan), np.full(len(places), np.nan)
    row = {place: number for number, place in enumerate(places)}
    for (one, rows), (rounds, nodes) in zip(found, split, strict=True):
        at = np.array([row[place] for place in one.places], np.int64)[nodes]
        table[at, np.searchsorted(numbers, rounds)] = rows.values
        if rows.errors is not None:
            errors[at] = rows.errors
    return numbers, table, errors


def _slowness(question: Question, study: Study, evidence: Evidence, found: Sequence[Groups]) -> Slowness:
    """Slowness of the ranks if they take turns in the baseline: among their own host's, or among those compared."""
    if question.metric.baseline != "alone" or question.world_size == 1:
        return {}
    last = last_round(found)
    pace = own_pace_of(study, evidence, last)
    each = SlowRanks(study, evidence, None).pace.of_whole_rounds() if pace is None else pace
    if evidence.plan.layout.judged_by_node(question.arms):
        return evidence.once(("slowness", study.id, last), lambda: slowness_of(each, within_hosts=True))
    return slowness_of(each.on_hosts(found[0].arms[-1].ranks.by_host))


def why_broken(study_id: str, evidence: Evidence) -> Missing | None:
    """Why a measured study does not count; None if it does."""
    if study_id in evidence.errors:
        return Missing(Why.BROKE, evidence.errors[study_id])
    return Missing(Why.INTERRUPTED, evidence.interrupted[study_id]) if study_id in evidence.interrupted else None


def samples_of(question: Question, evidence: Evidence) -> FloatArray:
    """Values of a question round by round; empty if it was not measured.

    If each node is judged alone, the worst node's value of each round that all nodes have.
    """
    found = values(question, evidence)
    samples = found.samples[found.rounds() > 0]
    if not len(samples) or (list(found.places) != [WHOLE] and len(samples) < evidence.plan.nodes):
        return np.zeros(0)
    whole = samples[:, ~np.isnan(samples).any(axis=0)]
    return np.asarray(whole.max(axis=0) if question.metric.upper_bound else whole.min(axis=0))


class WorstValue(NamedTuple):
    """The worst value of all places, with the same attributes as `pytest_ddpscale.run.verdicts.Verdict`."""

    value: float
    interval: tuple[float, float] | None
    place: str


def worst_value(question: Question, evidence: Evidence, confidence: float) -> WorstValue | None:
    """The value of a question without a requirement, estimated as the judge does, at the place where it is worst.

    Its metric needs no number from the thresholds file. None if it was not measured.
    """
    key = "worst", question, confidence
    return evidence.once(key, lambda: _worst(question, values(question, evidence), confidence))


def _worst(question: Question, found: Values[str], confidence: float) -> WorstValue | None:
    metric, samples, estimated = question.metric, found.samples, found.estimated(confidence)
    least = 0.0 if metric.scale == "factors" or metric.baseline is None else -np.inf
    is_impossible = np.isinf(samples) | (samples < least) | ((samples == 0) & (metric.scale == "factors"))
    rows = np.flatnonzero((found.rounds() > 0) & ~is_impossible.any(axis=1))
    told = estimated.values[rows]
    rows, told = rows[np.isfinite(told)], told[np.isfinite(told)]
    if not len(rows):
        return None
    row = int(rows[told.argmax() if metric.upper_bound else told.argmin()])
    worst = estimated.found(row)
    interval = worst.interval and possible_part(
        *worst.interval, worst.value, metric.range_at(question.world_size, "possible")
    )
    return WorstValue(worst.value, interval, found.places[row])


def covers(plan: Plan, question: Question) -> bool:
    """Whether the plan has every arm that the question needs."""
    study = matching_study(plan, question)
    return study is not None and set(question.arms) <= set(study.arms)


def matching_study(plan: Plan, question: Question) -> Study | None:
    """The study of the same training, whatever its workload is called; None if there is none.

    If there are several, the one with most of the needed arms.
    """
    scaling, needed = question.metric.scaling, set(question.arms)
    same = [
        s for s in plan.studies if s.scaling == scaling and not _differences(scaling, s.workload, question.workload)
    ]
    return max(same, key=lambda study: len(needed & set(study.arms)), default=None)


def why_no_study(plan: Plan, question: Question) -> Missing:
    """Why a question has no study."""
    scaling, workload = question.metric.scaling, question.workload
    for near in (study.workload for study in plan.studies if study.scaling == scaling):
        # Probably meant to be the same: equal name, or equal model and precision.
        models = [(one.family.model, one.precision) for one in (near, workload)]
        if near.name == workload.name or models[0] == models[1]:
            return Missing(Why.PLANNED_DIFFERENTLY, "; ".join(_differences(scaling, near, workload)))
    return Missing(Why.NOT_PLANNED)


def _differences(scaling: Scaling, one: Workload, other: Workload) -> list[str]:
    """``field found, required`` for each field in which the training differs."""
    left_out = ("name", "global_batch_size" if scaling == "weak" else "batch_size")
    both = one.differences(other).items()
    return [f"{field} {found}, required {required}" for field, (found, required) in both if field not in left_out]
