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

**The rows of values.csv:** what each requirement found, and what none asks for: each device's own pace and probes, and
what training and probes reached within each node. The history keeps the latter.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from pytest_ddpscale.judge.answer import numbered
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
    of_all_time,
    slowness_of,
)
from pytest_ddpscale.judge.peers import median_over_rounds, medians_of_others
from pytest_ddpscale.judge.slow import arms_read, columns_in, of_nodes_s, own_pace_of, own_pace_s, pace_in, slow_ranks
from pytest_ddpscale.judge.stats import OF_LAUNCH, Estimated, estimate
from pytest_ddpscale.judge.sustained import at_the_end
from pytest_ddpscale.plan.arm import USUAL, Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import METRICS, NODE_UNIFORMITY, THROUGHPUT_PER_GPU, Metric, Scale
from pytest_ddpscale.plan.operation import KINDS
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import Plan, Scaling, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import JudgedPlace, Place
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.run.table import NO_ROUNDS, ArmRounds, RankColumns, memoized
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.thresholds.cases import Case, cases_of, training_cases
from pytest_ddpscale.util.arrays import FloatArray, IntArray

P = TypeVar("P", bound=Hashable)
# A worker may shorten a message by up to this per rank, to split it evenly in aligned pieces.
_ALIGNMENT_BYTES = 256


@dataclass(frozen=True, eq=False)
class Values(Generic[P]):
    """What one question found.

    Attributes:
        scale: how the values err.
        places: all that were to be measured, as far as they are known.
        numbers: of the rounds, ascending, (rounds,).
        samples: in the metric's unit, or before the division by the SKU's constant; NaN if missing, (places, rounds).
        missing: why a place has nothing, or its utilization only in place of what could not be read.
        broken: why nothing counts, though there may be values: it was not planned, broke or was interrupted; else None.
        errors: relative error of a place that has a single imported sample, else NaN, (places,).
        launch_sd: as of `estimate`.
        weights: lengths of what each sample is a share of, (places, rounds); None if all count alike.
    """

    scale: Scale
    places: Sequence[P]
    numbers: IntArray
    samples: FloatArray
    missing: Mapping[P, Reason] = field(default_factory=dict)
    broken: Reason | None = None
    errors: FloatArray | float = math.nan
    launch_sd: FloatArray | float = 0.0
    weights: FloatArray | None = None

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

    def estimated(self, confidence: FloatArray | float, limit: int = 0) -> Estimated:
        """Values and intervals of all places; the arguments are those of `estimate`."""
        samples = self.samples if self.weights is None else of_all_time(self.samples, self.weights)
        return estimate(samples, self.scale, confidence, limit, self.errors, launch_sd=self.launch_sd)


_NOTHING: Values[Any] = Values("factors", (), np.zeros(0, np.int64), np.zeros((0, 0)))


@memoized
def values(evidence: Evidence, question: Question) -> Values[str]:
    """The values of a metric of training, by host if each of several nodes is judged by itself, else of `WHOLE`.

    A metric that is a ratio to a constant of the SKU is returned before the division.
    """
    study, metric = matching_study(evidence.plan, question), question.metric
    if study is None:
        return replace(_NOTHING, broken=why_no_study(evidence.plan, question))
    grouped = groups_of(question, study, evidence)
    ranks, flops = grouped.merged[-1].ranks, evidence.flops_per_sample.get(study.id)
    slowness: FloatArray | float = 1.0
    if metric.baseline == "alone" and question.world_size > 1:
        # Of the baseline's ranks, if they take turns: among their own host's, or among those compared.
        last, is_by_node = last_round(grouped), WHOLE not in grouped.places
        own = own_pace_of(evidence, study, last)
        pace = own or slow_ranks(evidence, study, None)[0]
        times_s, beside = own_pace_s(pace), [*pace.ranks.by_host.values()]
        times_s = times_s if own else times_s[~np.isnan(times_s).any(axis=1)]
        if not is_by_node:
            beside = [np.flatnonzero([host in ranks.by_host for host in pace.ranks.hosts])]
        key = "slowness", study.id, last, is_by_node, tuple(ranks.by_host)
        factors: FloatArray = evidence.memoize(key, lambda: np.append(slowness_of(times_s, beside), 1.0))
        slowness = factors[columns_in(pace.ranks, grouped.merged[0].ranks)][grouped.columns[0]]
    arms = Arms(grouped.arms, question.world_size, slowness, flops).paired
    if metric.compares_results:
        seeded = numbered(evidence.seeded_checksums(study.id), ranks.numbers.tolist())
        arms = arms._replace(seeded=seeded[grouped.columns[-1]])
    if metric.reads_own_pace:
        # Of the place's slowest GPU, or of the node, with the peers of the whole run, as in `uniformity`.
        pace = pace_in(study, arms_read(question, study)[-1], evidence)
        own_s, columns = own_pace_s(pace), dict[str, Any](pace.ranks.by_host)
        if metric is NODE_UNIFORMITY and columns:
            own_s, columns = of_nodes_s(pace.ranks, own_s), {host: [at] for at, host in enumerate(columns)}
        ratios = own_s / medians_of_others(own_s)
        columns[WHOLE], typical = np.arange(ratios.shape[1]), np.nan_to_num(median_over_rounds(ratios))
        numbers, samples = pace.numbers, np.full((len(grouped.places), len(pace)), np.nan)
        for row, place in enumerate(grouped.places):
            of_place = columns.get(place, ())
            if len(of_place):
                samples[row] = ratios[:, of_place[typical[of_place].argmax()]]
    else:
        numbers, samples = arms.measured.numbers, np.ascontiguousarray(VALUE_OF[metric.name](arms).T)
    missing, lacking = {}, np.isnan(samples).all(axis=1)
    if metric.reads_utilization:
        lacking |= (np.isnan(arms.measured.reading("utilization")) & arms.measured.present).any(axis=(0, 2))
    for at in np.flatnonzero(lacking).tolist():
        measured, compared = (grouped.arms[arm].present[:, at].any() for arm in (-1, 0))
        if not measured:
            why = because("no-round", question.world_size, study.id)
        elif not compared:
            why = because("no-baseline", study.id, question.arms[0].name)
        else:
            hosts = [*ranks.by_host] if grouped.places[at] == WHOLE else [grouped.places[at]]
            telemetry, unread = evidence.telemetry.of_arm(study.id, question.measured.name, hosts), list[str]()
            for row, reasons in enumerate(telemetry.unreadable if metric.reads_utilization else ()):
                if (cause := reasons.get("utilization") or reasons.get("device")) and not unread:
                    unread = [telemetry.place_of(row).number, telemetry.place_of(row).host, cause]
            why = because("not-read", metric.name, *unread)
            if not unread and not np.isnan(samples[at]).all():
                continue
            if unread:  # a GPU that was read may fail by itself
                known = np.fmin.reduce(arms.measured.reading("utilization")[:, at], axis=-1, initial=np.nan)
                samples[at] = np.where(np.isnan(samples[at]), known, samples[at])
        missing[grouped.places[at]] = why
    is_one_node = question.placement == "spread" and evidence.plan.nodes == 1
    broken = why_broken(study.id, evidence) or (because("one-node") if is_one_node else None)
    errors, launch_sd = errors_of(metric, arms), OF_LAUNCH * (metric.is_rate and evidence.plan.device_type == "cuda")
    factors, reaches = at_the_end(grouped.places, question, study, evidence)
    samples, of_places = samples * factors, np.hypot(launch_sd, reaches)
    weights = arms.measured.most(arms.measured.seconds).T if metric.reads_utilization else None
    return Values(metric.scale, grouped.places, numbers, samples, missing, broken, errors, of_places, weights)


def groups_of(question: Question, study: Study, evidence: Evidence) -> Groups:
    """The complete rounds of the question's arms, the measured one last."""
    return groups(evidence.columns, study.id, tuple(question.arms), evidence.plan.layout)


def why_broken(study_id: str, evidence: Evidence) -> Reason | None:
    """Why a measured study does not count; None if it does."""
    for code, studies in (("broke", evidence.errors), ("interrupted", evidence.interrupted)):
        if study_id in studies:
            return because(code, studies[study_id])
    return None


def samples_of(question: Question, evidence: Evidence) -> FloatArray:
    """Values of a question round by round; empty if it was not measured.

    If each node is judged alone, the worst node's value of each round that all nodes have.
    """
    measured = values(evidence, question)
    samples = measured.samples[measured.rounds() > 0]
    if len(samples) < (1 if WHOLE in measured.places else evidence.plan.nodes):
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
    measured, metric = values(evidence, question), question.metric
    estimated = measured.estimated(confidence)
    if np.isnan(estimated.values).all():
        return None
    row = int(np.nanargmax(estimated.values if metric.upper_bound else -estimated.values))
    value, interval = estimated.estimate_at(row, metric.range_at(question.world_size, "possible"))
    return WorstValue(value, interval, measured.places[row])


def matching_study(plan: Plan, question: Question) -> Study | None:
    """The study of the same training, whatever its workload is called; None if there is none.

    If there are several, the one with most of the needed arms.
    """
    scaling, needed = question.metric.scaling, set(question.arms)
    same = [
        s for s in plan.studies if s.scaling == scaling and not _differences(scaling, s.workload, question.workload)
    ]
    return max(same, key=lambda study: len(needed & set(study.arms)), default=None)


def why_no_study(plan: Plan, question: Question) -> Reason:
    """Why a question has no study."""
    scaling, workload = question.metric.scaling, question.workload
    for near in (study.workload for study in plan.studies if study.scaling == scaling):
        # Probably meant to be the same: equal name, or equal model and precision.
        models = [(workload.family.model, workload.precision) for workload in (near, workload)]
        if near.name == workload.name or models[0] == models[1]:
            return because("planned-differently", *_differences(scaling, near, workload))
    return because("not-planned", scaling, workload.name)


def _differences(scaling: Scaling, one: Workload, other: Workload) -> list[tuple[str, str, str]]:
    """Each field in which the training differs, what was found and what is required."""
    left_out = ("name", "global_batch_size" if scaling == "weak" else "batch_size")
    both = one.differences(other).items()
    return [(field, str(actual), str(required)) for field, (actual, required) in both if field not in left_out]


def values_of_probe(probe: Arm, evidence: Evidence) -> Values[JudgedPlace]:
    """Values of a probe, in its metric's unit, at the places that took part. Raises as `Layout.crews`."""
    study = evidence.plan.probes
    if study is None or probe not in study.arms:
        return replace(_NOTHING, broken=because("not-probed", probe.name))
    measured = probed_values(evidence.probed(probe), probe, evidence.plan.layout)
    of_launch = OF_LAUNCH * (evidence.plan.device_type == "cuda")
    return replace(measured, broken=why_broken(study.id, evidence), launch_sd=of_launch)


def probed_values(probed: ArmRounds | None, probe: Arm, layout: Layout) -> Values[JudgedPlace]:
    """Values in measurements of a probe, None if there are none; ranks outside the layout are ignored.

    The slowest rank sets the value. Rounds in which a rank of the place is missing are left out, because its speed is
    unknown, and so are measurements with another message or matrix size than the probe's name has. Raises as
    `Layout.crews`.
    """
    probed, operation = NO_ROUNDS if probed is None else probed, probe.operation
    form = "single device" if operation.is_single_device else operation.kind
    key = form, probe.world_size, layout  # probes of a form have the same places, whatever else they ask
    places, ends = probed.ranks.memoize(key, lambda: _places_there(probed.ranks, probe, layout))
    slack = 0 if operation.message_bytes is None else _ALIGNMENT_BYTES * probe.world_size
    is_asked = np.abs(probed.work - (operation.message_bytes or operation.named_flops or probed.work)) <= slack
    reached = np.where(is_asked, probed.per_second * unit_factor(probe), np.nan)
    numbers, rounds = np.unique(probed.numbers, return_inverse=True)
    values = np.full((len(places), len(numbers)), np.nan)
    for turn, row in enumerate(rounds.tolist()):
        groups = probed.groups[turn][ends]
        mine = np.flatnonzero((groups == groups[:, :1]).all(axis=1))  # whose turn it is
        slowest = reached[turn][ends[mine]].min(axis=1)  # NaN if any is
        values[mine, row] = np.fmax(values[mine, row], slowest)
    return Values("factors", places, numbers, values)


def _places_there(who: RankColumns, probe: Arm, layout: Layout) -> tuple[list[JudgedPlace], IntArray]:
    """Places whose ranks all have a column, and the columns of each, (places, ranks of one)."""
    ranks, places = np.array(layout.groups_of_round(probe), np.int64), list[JudgedPlace]()
    ranks = ranks[np.isin(ranks, who.numbers).all(axis=1)]
    columns = np.searchsorted(who.numbers, ranks)
    for group, ends in zip(map(tuple, ranks.tolist()), who.rank_places[columns].tolist(), strict=True):
        host = ends[0].host
        if probe.operation.is_single_device or probe.operation.kind == "send-recv":
            places.append(JudgedPlace("link" if ends[1:] else "gpu", group, host, tuple(ends)))
        else:
            places.append(JudgedPlace("node" if layout.fits_node(probe) else "gang", group, host))
    return places, columns


def why_incomplete(probe: Arm, values: Values[JudgedPlace], evidence: Evidence) -> Reason | None:
    """Why a probe cannot pass although nothing fails: it is unsupported, or places are missing; else None."""
    measured = {values.places[at].ranks: values.places[at].noun for at in np.flatnonzero(values.rounds()).tolist()}
    if probe.name in evidence.unsupported:
        return because("unsupported", probe.name, evidence.unsupported[probe.name])
    if not measured:
        return because("no-round-of", probe.name)
    expected = evidence.plan.layout.groups_of_round(probe)
    absent = tuple((ranks[0], ranks[-1]) for ranks in expected if ranks not in measured)
    unseen = sorted(set(evidence.hosts).difference(*(probed.ranks.by_host for probed in evidence.probes)))
    noun = next(iter(measured.values()))
    return because("places-missing", len(measured), len(expected), noun, absent, tuple(unseen)) if absent else None


def unit_factor(probe: Arm) -> float:
    """Factor from work per second to the metric's unit, TFLOPS for a matmul and GB/s for others."""
    if probe.operation.precision is not None:
        return 1 / TERA
    return probe.operation.bus_factor(probe.world_size) / GIGA


_DIGEST_DIGITS = 12
_NOT_WORK = "name", "global_batch_size"


class Row(NamedTuple):
    """One value of one place.

    Attributes:
        requirement: its id; empty where none asks.
        workload: workload or probe.
        arm: that was measured; empty of a requirement, which may compare two.
        place: that decides a requirement, in words; or the node, device, group or pair that was measured.
        host: with NVML's index and UUID of a device, on a CPU the local rank and ``cpu``; empty where a place decides.
        value: in `unit`, with its interval.
        outcome: of the verdict, at the place that decides it; empty elsewhere, as are then the next five.
        code: why it has its outcome: `Verdict.code`.
        blocks: whether it keeps the machine from being accepted.
        measured: digest of all that a value depends on beside its place; equal digests may be compared.
    """

    requirement: str
    metric: str
    workload: str
    world_size: int
    arm: str
    place: str
    host: str
    gpu_index: int | None
    gpu_uuid: str
    value: float | None
    low: float | None
    high: float | None
    unit: str
    rounds: int
    outcome: str = ""
    code: str = ""
    severity: str = ""
    bound_kind: str = ""
    bound: float | None = None
    blocks: bool | None = None
    measured: str = ""


class OwnValues(NamedTuple):
    """What an arm measured of each device, node, or group and pair of ranks of a node, whether or not it is asked for.

    Attributes:
        workload: its name; of a probe its kind.
        measured: digest of all that a value depends on beside its place; equal digests may be compared.
    """

    metric: Metric
    workload: str
    arm: Arm
    unit: str
    measured: str
    values: Values[JudgedPlace]


def own_values(evidence: Evidence) -> Iterator[OwnValues]:
    """Per device its throughput alone and beside all others, without communication, and per node that under DDP; then
    probes within nodes, without rounds that had a wrong result. Studies that broke have none."""
    plan, throughput = evidence.plan, THROUGHPUT_PER_GPU
    launch_sd = OF_LAUNCH * (plan.device_type == "cuda")
    for study in plan.studies:
        for arm in study.arms if study.id not in evidence.errors else ():
            measured = evidence.columns.arms.get((study.id, arm.name))
            if measured is None or arm.variant != USUAL:
                continue
            # Only synthetic data: a slow disk does not make a GPU slower.
            if arm.kind in ("alone", "each") and arm.data_of(study.workload) == "synthetic":
                places = [JudgedPlace("gpu", (), place.host, (place,)) for place in measured.ranks.rank_places]
                samples, numbers = measured.per_second.T, measured.numbers
            elif arm.kind == "ddp" and plan.layout.fits_node(arm):
                grouped = groups(evidence.columns, study.id, (arm,), plan.layout)
                hosts = [*grouped.merged[0].ranks.by_host] if WHOLE in grouped.places else grouped.places
                places = [JudgedPlace("node", (), host) for host in hosts]
                samples, numbers = grouped.arms[0].samples_per_s_per_gpu.T[: len(hosts)], grouped.arms[0].numbers
            else:
                continue
            of_arm = Values[JudgedPlace]("factors", places, numbers, samples, launch_sd=launch_sd)
            keys = throughput, study.workload.name, arm, throughput.unit_of(study.workload.family)
            yield OwnValues(*keys, digest_of(plan, study, arm), of_arm)
    for arm in plan.probes.arms if plan.probes and plan.probes.id not in evidence.errors else ():
        if plan.layout.fits_node(arm):
            probed, metric = evidence.probed(arm) or NO_ROUNDS, METRICS[KINDS[arm.operation.kind].metric]
            of_probe = replace(probed_values(probed.only(~probed.wrong), arm, plan.layout), launch_sd=launch_sd)
            yield OwnValues(metric, arm.kind, arm, metric.unit, digest_of(plan), of_probe)


def rows_of(judgement: Judgement, evidence: Evidence) -> Iterator[Row]:
    """All rows of a run: the numbers of the place that decides a requirement are its verdict's own."""
    cases = dict[str, Case]()
    with suppress(ValueError):  # an earlier version compiled them
        cases = {case.id: case for case in training_cases(cases_of(judgement.requirements))}
    for verdict in judgement.verdicts:
        keys, case = (verdict.id, verdict.metric, verdict.workload, verdict.world_size, ""), cases.get(verdict.id)
        kind, (low, high) = next(iter(verdict.bound)), verdict.interval or (None, None)
        yield Row(
            *keys, verdict.place, "", None, "", verdict.value, low, high, verdict.unit, verdict.rounds, verdict.outcome,
 verdict.code, verdict.severity, kind, verdict.bound_value, judgement.is_blocked_by(verdict),
        )  # fmt: skip
        if verdict.place and case and not case.requirement.definition.reads_own_pace:
            of_nodes = values(evidence, case.question) / case.constant
            places = [JudgedPlace("node", (), host) for host in of_nodes.places]
            rows = _rows(keys, places, of_nodes.estimated(verdict.confidence), verdict.unit)
            yield from (row for row in rows if row.place != verdict.place)
    confidence = max((verdict.confidence for verdict in judgement.verdicts), default=0.95)
    for own in own_values(evidence):
        keys = "", own.metric.name, own.workload, own.arm.world_size, own.arm.name
        yield from _rows(keys, own.values.places, own.values.estimated(confidence), own.unit, own.measured)


def _rows(
    keys: tuple[str, str, str, int, str],
    places: Iterable[JudgedPlace],
    estimated: Estimated,
    unit: str,
    digest: str = "",
) -> Iterator[Row]:
    """The rows of an arm, one for each place that has a value."""
    ends = (np.where(estimated.say_nothing, np.nan, end) for end in (estimated.low, estimated.high))
    cells = np.stack([estimated.values, *ends], axis=1).astype(object)
    cells[cells != cells] = None  # NaN
    for at, (value, low, high), rounds in zip(places, cells.tolist(), estimated.rounds.tolist(), strict=True):
        gpu = at.ends[0] if at.kind == "gpu" else Place(at.host)
        if rounds:
            yield Row(*keys, at.name, at.host, gpu.index, gpu.uuid, value, low, high, unit, rounds, measured=digest)


def digest_of(plan: Plan, study: Study | None = None, arm: Arm | None = None) -> str:
    """Digest of what a value of an arm depends on, besides its place: a rank's workload and block length.

    On a CPU ranks share a node's cores, idle or not, so their number counts too; it is all that a probe depends on.
    """
    data: dict[str, Any] = {"ranks_per_cpu": plan.layout.ranks_per_node if plan.device_type == "cpu" else None}
    if study is not None and arm is not None:
        workload = {name: setting for name, setting in study.workload.settings.items() if name not in _NOT_WORK}
        data |= {"workload": workload | {"batch_size": arm.batch_size}, "block_s": study.block_s}
    return hashlib.sha256(strict_json(dict(sorted(data.items()))).encode()).hexdigest()[:_DIGEST_DIGITS]
