"""The values that answer a question: one for each place and round; and why a place has none.

A place is a node, if each of several nodes answers by itself, or all ranks together (`WHOLE`). A probe's bound applies
to each device, group of ranks that communicate, or pair of ranks. Bandwidths follow nccl-tests
(github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md): with S bytes in t seconds among n ranks the bus bandwidth, which is
comparable with that of the hardware for any n, is

    all-reduce                   S/t · 2(n - 1)/n
    all-gather, reduce-scatter   S/t · (n - 1)/n, with S the whole buffer: gathered, or before it is scattered
    all-to-all                   S/t · (n - 1)/n, with S all bytes that a rank sends, including those to itself
    broadcast, reduce            S/t
    send-recv                    S/t, with S the bytes that each end sends

nccl-tests takes the mean time of all ranks; here the slowest rank's time counts, because the aim is to find a bad one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from pytest_ddpscale.judge.agreement import numbered
from pytest_ddpscale.judge.metrics import (
    GIGA,
    TERA,
    VALUE_OF,
    WHOLE,
    Arms,
    Groups,
    errors_of,
    groups,
    last_round,
    slowness_of,
)
from pytest_ddpscale.judge.peers import median_over_rounds, medians_of_others
from pytest_ddpscale.judge.slow import arms_read, own_pace_of, pace_in, slow_ranks
from pytest_ddpscale.judge.stats import Estimated, estimate, possible_part
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout, Ranks
from pytest_ddpscale.plan.metric_catalogue import NODE_UNIFORMITY, Scale
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import Plan, Scaling, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import JudgedPlace, Place
from pytest_ddpscale.run.table import NO_ROUNDS, ArmRounds, RankColumns
from pytest_ddpscale.run.verdicts import Flag
from pytest_ddpscale.util.arrays import FloatArray, IntArray
from pytest_ddpscale.util.listing import first_few

P = TypeVar("P", bound=Hashable)
# A worker may shorten a message by up to this per rank, to split it evenly in aligned pieces.
_ALIGNMENT_BYTES = 256
# Why something has no values.
_SENTENCES = {
    "not planned": "{} was not measured in this run",
    "not probed": "{} was not probed in this run",
    "planned differently": "measured differently: {}",
    "broke": "{}",
    "interrupted": "{}",
    "one node": "needs at least 2 nodes to spread ranks over; this run had one",
    "no round": "no complete round of {}",
    "no baseline": "{} has no complete round of the arm {} to compare with",
    "not read": "{} could not be read on every rank{}",
    "unsupported": "{} could not be done: {}",
}


class Missing(NamedTuple):
    """Why a place, or a whole study, has no values: a code with its arguments."""

    why: str
    args: tuple[object, ...] = ()

    @property
    def outcome(self) -> Literal["not_measured", "error"]:
        """Outcome of its verdict."""
        return "error" if self.why == "broke" else "not_measured"

    @property
    def flags(self) -> tuple[Flag, ...]:
        """Flags of its verdict."""
        return ("interrupted",) if self.why == "interrupted" else ()

    @property
    def text(self) -> str:
        """The sentence."""
        return _SENTENCES[self.why].format(*self.args)


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

    def items(self) -> Iterator[tuple[P, FloatArray]]:
        """Places that have values, with those that are known, in the order of the rounds."""
        for place in np.flatnonzero(self.rounds()).tolist():
            yield self.places[place], self.samples[place][~np.isnan(self.samples[place])]

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
        return _nothing(question.metric.scale, why_no_study(evidence.plan, question))
    return evidence.once(("values", question, study.id), lambda: _of_study(question, study, evidence))


def _nothing(scale: Scale, why: Missing) -> Values[Any]:
    return Values(scale, (), np.zeros(0, np.int64), np.zeros((0, 0)), {}, why, np.zeros(0))


def _of_study(question: Question, study: Study, evidence: Evidence) -> Values[str]:
    found, metric = groups_of(question, study, evidence), question.metric
    arms = Arms(
        found.arms[-1], found.arms[0] if question.baseline else None, question.world_size,
        _slowness(question, study, evidence, found), evidence.flops_per_sample.get(study.id),
    ).paired  # fmt: skip
    if metric.compares_results:
        ranks = found.merged[-1].ranks.numbers.tolist()
        arms = replace(arms, seeded=numbered(evidence.seeded_checksums(study.id), ranks)[found.columns[-1]])
    if metric.reads_own_pace:
        numbers, samples = _over_peers(question, study, evidence, found.places)
    else:
        numbers, samples = arms.measured.numbers, np.ascontiguousarray(VALUE_OF[metric.name](arms).T)
    missing = {}
    for at in np.flatnonzero(np.isnan(samples).all(axis=1)).tolist():
        measured, compared = (found.arms[arm].present[:, at].any() for arm in (-1, 0))
        if not measured:
            why = Missing("no round", (f"{question.world_size} ranks in {study.id}",))
        elif not compared:
            why = Missing("no baseline", (study.id, question.baseline.name if question.baseline else ""))
        else:
            hosts = found.merged[-1].ranks.by_host.keys() if found.places[at] == WHOLE else [found.places[at]]
            why = Missing("not read", (metric.name, _why_unread(question, study.id, evidence, [*hosts])))
        missing[found.places[at]] = why
    is_one_node = question.placement == "spread" and evidence.plan.nodes == 1
    broken = why_broken(study.id, evidence) or (Missing("one node") if is_one_node else None)
    return Values(metric.scale, found.places, numbers, samples, missing, broken, errors_of(metric, arms))


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


def groups_of(question: Question, study: Study, evidence: Evidence) -> Groups:
    """The complete rounds of the question's arms, the measured one last."""
    return groups(evidence.columns, study.id, question.arms, evidence.plan.layout)


def _slowness(question: Question, study: Study, evidence: Evidence, found: Groups) -> FloatArray | float:
    """Slowness of the baseline's ranks if they take turns: among their own host's, or among those compared."""
    if question.metric.baseline != "alone" or question.world_size == 1:
        return 1.0
    last, is_by_node = last_round(found), evidence.plan.layout.judged_by_node(question.arms)
    pace = own_pace_of(evidence, study, last) or slow_ranks(evidence, study, None)[0].of_whole_rounds()
    pace = pace if is_by_node else pace.on_hosts(found.merged[-1].ranks.by_host)
    key = "slowness", study.id, last, is_by_node, pace.ranks.numbers.tobytes()
    factors = evidence.once(key, lambda: slowness_of(pace.ranks, pace.times_s, within_hosts=is_by_node))
    return np.array([factors.get(place, 1.0) for place in found.merged[0].ranks.places])[found.columns[0]]


def why_broken(study_id: str, evidence: Evidence) -> Missing | None:
    """Why a measured study does not count; None if it does."""
    if study_id in evidence.errors:
        return Missing("broke", (evidence.errors[study_id],))
    return Missing("interrupted", (evidence.interrupted[study_id],)) if study_id in evidence.interrupted else None


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
            return Missing("planned differently", ("; ".join(_differences(scaling, near, workload)),))
    return Missing("not planned", (f"{scaling} scaling of {workload.name}",))


def _differences(scaling: Scaling, one: Workload, other: Workload) -> list[str]:
    """``field found, required`` for each field in which the training differs."""
    left_out = ("name", "global_batch_size" if scaling == "weak" else "batch_size")
    both = one.differences(other).items()
    return [f"{field} {found}, required {required}" for field, (found, required) in both if field not in left_out]


def values_of_probe(probe: Arm, evidence: Evidence) -> Values[JudgedPlace]:
    """Values of a probe, in its metric's unit, at the places that took part. Raises as `Layout.crews`."""
    study = evidence.plan.probes
    if study is None or probe not in study.arms:
        return _nothing("factors", Missing("not probed", (probe.name,)))
    found = probed_values(evidence.probed(probe), probe, evidence.plan.layout)
    why = _why_unprobed(probe, evidence)
    missing = {found.places[place]: why for place in np.flatnonzero(found.rounds() == 0).tolist()}
    return replace(found, missing=missing, broken=why_broken(study.id, evidence))


def _why_unprobed(probe: Arm, evidence: Evidence) -> Missing:
    reason = evidence.unsupported.get(probe.name)
    return Missing("unsupported", (probe.name, reason)) if reason is not None else Missing("no round", (probe.name,))


def probed_values(probed: ArmRounds | None, probe: Arm, layout: Layout) -> Values[JudgedPlace]:
    """Values in measurements of a probe, None if there are none; ranks outside the layout are ignored.

    The slowest rank sets the value. Rounds in which a rank of the place is missing are left out, because its speed is
    unknown, and so are measurements with another message or matrix size than the probe's name has. Raises as
    `Layout.crews`.
    """
    probed = NO_ROUNDS if probed is None else probed
    form = "single device" if probe.operation.is_single_device else probe.operation.kind
    key = form, probe.world_size, layout  # probes of a form have the same places, whatever else they ask
    places, ends = probed.ranks.once(key, lambda: _places_there(probed.ranks, probe, layout))
    message, flops = probe.operation.message_bytes, probe.operation.named_flops
    counts = probed.present
    if message is not None:
        counts = counts & (np.abs(probed.work - message) <= _ALIGNMENT_BYTES * probe.world_size)
    if flops is not None:
        counts = counts & (probed.work == flops)
    reached = np.where(counts, probed.per_second * unit_factor(probe), np.nan)
    numbers, rounds = np.unique(probed.numbers, return_inverse=True)
    values = np.full((len(places), len(numbers)), np.nan)
    for turn in np.unique(probed.turn):
        rows, mine = np.flatnonzero(probed.turn == turn), np.arange(len(places))
        groups = probed.groups[rows]
        if (groups == groups[:1]).all():  # look only at those whose turn it is
            mine = np.flatnonzero((groups[0][ends] == groups[0][ends[:, :1]]).all(axis=1))
        together = (groups[:, ends[mine]] == groups[:, ends[mine, :1]]).all(axis=2)
        slowest = np.where(together, reached[rows][:, ends[mine]].min(axis=2), np.nan)  # NaN if any is
        cells = np.ix_(mine, rounds[rows])
        values[cells] = np.fmax(values[cells], slowest.T)
    return Values("factors", places, numbers, values, {}, None, np.full(len(places), np.nan))


def why_incomplete(probe: Arm, values: Values[JudgedPlace], evidence: Evidence) -> str:
    """Why a probe cannot pass although nothing fails: it is unsupported, or places are missing; else empty."""
    expected, rounds = evidence.plan.layout.groups_of_round(probe), values.rounds().tolist()
    there = [place for place, count in zip(values.places, rounds, strict=True) if count]
    if not there or probe.name in evidence.unsupported:
        return _why_unprobed(probe, evidence).text
    if len(there) == len(expected):
        return ""
    seen = {place.ranks for place in there}
    at = {rank: place for gang in evidence.gangs for rank, place in enumerate(gang.places)}
    absent = [ranks for ranks in expected if ranks not in seen]
    names = [
        place_of(probe, ranks, [at[rank] for rank in ranks]).name if ranks[-1] in at
        else f"rank {' to '.join(map(str, dict.fromkeys((ranks[0], ranks[-1]))))}"
        for ranks in absent
    ]  # fmt: skip
    text = f"measured on {len(there)} of {len(expected)} {there[0].noun}; {first_few([*dict.fromkeys(names)])} missing"
    unseen = sorted(set(evidence.hosts).difference(*(probed.ranks.by_host for probed in evidence.probes)))
    return text + (f" (no results from {first_few(unseen)})" if unseen else "")


def _places_there(who: RankColumns, probe: Arm, layout: Layout) -> tuple[list[JudgedPlace], IntArray]:
    """Places whose ranks all have a column, and the columns of each, (places, ranks of one)."""
    expected = layout.groups_of_round(probe)
    if not len(who):
        return [], np.zeros((0, 1), np.int64)
    ranks = np.array(expected, np.int64)
    at = np.minimum(np.searchsorted(who.numbers, ranks), len(who) - 1)
    at_all = (who.numbers[at] == ranks).all(axis=1)
    there = zip(np.flatnonzero(at_all).tolist(), at[at_all].tolist(), strict=True)
    ends = who.rank_places
    return [place_of(probe, expected[i], [ends[column] for column in of]) for i, of in there], at[at_all]


def place_of(probe: Arm, ranks: Ranks, ends: Sequence[Place]) -> JudgedPlace:
    """The place that these ranks, which are at `ends`, form."""
    is_device, host = probe.operation.is_single_device, ends[0].host
    if is_device or probe.operation.kind == "send-recv":
        return JudgedPlace("gpu" if is_device else "link", ranks, host, (*ends,))
    return JudgedPlace("node" if all(end.host == host for end in ends) else "gang", ranks, host)


def unit_factor(probe: Arm) -> float:
    """Factor from work per second to the metric's unit, TFLOPS for a matmul and GB/s for others."""
    if probe.operation.precision is not None:
        return 1 / TERA
    return probe.operation.bus_factor(probe.world_size) / GIGA
