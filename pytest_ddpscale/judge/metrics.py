"""The complete rounds of arms, and the value of each metric of training in each of them.

A metric is an expression on arrays whose last axis are the ranks of a place. To add one, declare it in
`pytest_ddpscale.plan.metric_catalogue` and add its function here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce

import numpy as np

from pytest_ddpscale.judge.agreement import agreeing_share
from pytest_ddpscale.judge.stats import Found, estimate_of
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import IMAGES_PER_JOULE, THROUGHPUT_PER_GPU, Metric
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.block import STEP_S, WAITED_S
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.table import NO_ROUNDS, ArmRounds, Columns, RankColumns
from pytest_ddpscale.util.arrays import BoolArray, FloatArray, IntArray, StepArray

TERA, GIGA, GIB = 1e12, 1e9, 2**30
PERCENTS = (50, 75, 90, 95, 99)
WHOLE = ""  # the place of all ranks that train an arm together
_MS_PER_S = 1000.0


def hosts_of(columns: Columns, study_id: str) -> list[str]:
    """Names of all hosts with measurements of a study, in the order of their ranks, which avoids copies of columns."""
    first: dict[str, int] = {}
    for ranks in (arm.ranks for arm in columns.of_study(study_id)):
        for host, at in ranks.by_host.items():
            first[host] = min(first.get(host, ranks.numbers[at[0]]), ranks.numbers[at[0]])
    return sorted(first, key=lambda host: first[host])


def rounds_begun(columns: Columns, study_id: str) -> set[int]:
    """Numbers of the rounds in which any rank reported on any arm of a study, complete or not."""
    return {number for arm in columns.of_study(study_id) for number in arm.numbers.tolist()}


def on_hosts(rounds: ArmRounds, hosts: Collection[str]) -> ArmRounds:
    """The same rounds with only the ranks on these hosts."""
    there = np.array([host in hosts for host in rounds.ranks.hosts], np.bool_)
    return rounds if there.all() else rounds.of(slice(None), there).there()


def merged(columns: Columns, study_id: str, arm: Arm, layout: Layout) -> ArmRounds:
    """Complete rounds of all groups of ranks that trained an arm: of each node, or of the group with rank 0.

    Groups are left out of rounds in which a rank is missing, because its pace is unknown, and rounds with another batch
    size than the arm's, which do other work. Validation checks which of the groups that take turns was due.
    """
    return columns.once(("merged", study_id, arm, layout), lambda: _merged(columns, study_id, arm, layout))


def _merged(columns: Columns, study_id: str, arm: Arm, layout: Layout) -> ArmRounds:
    measured = columns.arms.get((study_id, arm.name), NO_ROUNDS)
    is_by_node = layout.judged_by_node([arm])
    groups = [*measured.ranks.by_host.values()] if is_by_node else [_with_rank_0(measured, arm, layout)]
    at, group_of = _padded(groups), np.full(len(measured.ranks), -1)
    for number, group in enumerate(groups):
        group_of[group] = number
    present, numbers = measured.present[:, at] & (at >= 0), measured.ranks.numbers[at]
    is_complete = (present.sum(axis=2) == arm.world_size) & measured.is_of_work(arm.batch_size)[:, np.newaxis]
    if arm.placement == "packed":  # then ranks are consecutive
        last = np.max(np.where(present, numbers, -1), axis=2, initial=-1)
        first = np.min(np.where(present, numbers, last[:, :, np.newaxis]), axis=2, initial=np.iinfo(np.int64).max)
        is_complete &= last - first == arm.world_size - 1
    return measured.only(np.pad(is_complete, ((0, 0), (0, 1)))[:, group_of]).there()


def _with_rank_0(measured: ArmRounds, arm: Arm, layout: Layout) -> IntArray:
    """Columns of the group with rank 0, or of the first node if groups take turns there."""
    if layout.nodes == 1 or arm.world_size > layout.world_size:
        return np.arange(len(measured.ranks))
    ranks = range(layout.ranks_per_node) if layout.takes_turns(arm) else layout.groups(arm)[0]
    return np.flatnonzero(np.isin(measured.ranks.numbers, np.fromiter(ranks, np.int64)))


def _padded(groups: Sequence[IntArray]) -> IntArray:
    """Columns of groups, -1 where one has fewer, (groups, most columns of one)."""
    found = np.full((len(groups), max(map(len, groups), default=0)), -1)
    for row, group in zip(found, groups, strict=True):
        row[: len(group)] = group
    return found


@dataclass(frozen=True, eq=False)
class Groups:
    """Complete rounds of arms at the places that are judged.

    Attributes:
        places: names of the hosts, or `WHOLE` alone.
        merged: complete rounds of each arm.
        columns: of each arm, those of the ranks of each place, -1 where it has fewer, (places, most ranks of one).
    """

    places: Sequence[str]
    merged: Sequence[ArmRounds]
    columns: Sequence[IntArray]

    @cached_property
    def arms(self) -> Sequence[ArmRounds]:
        """Rounds of each arm, with cells (rounds, places, ranks of a place)."""
        return [rounds.at(columns) for rounds, columns in zip(self.merged, self.columns, strict=True)]

    def at(self, place: int) -> Sequence[ArmRounds]:
        """Rounds of one place, with its ranks alone, of each arm."""
        of_arms = zip(self.merged, self.columns, strict=True)
        return [rounds.of(slice(None), at[place][at[place] >= 0]).there() for rounds, at in of_arms]


def groups(columns: Columns, study_id: str, arms: Sequence[Arm], layout: Layout) -> Groups:
    """Complete rounds of arms at the places where they are judged together.

    Each of several nodes is a place if all these arms fit a node; otherwise the only place has the ranks of each arm's
    group with rank 0.
    """
    key = "groups", study_id, tuple(arms), layout
    return columns.once(key, lambda: _groups(columns, study_id, arms, layout))


def _groups(columns: Columns, study_id: str, arms: Sequence[Arm], layout: Layout) -> Groups:
    rounds = [merged(columns, study_id, arm, layout) for arm in arms]
    if not layout.judged_by_node(arms):
        at = [_with_rank_0(one, arm, layout)[np.newaxis] for one, arm in zip(rounds, arms, strict=True)]
        return Groups((WHOLE,), rounds, at)
    places = columns.once(("hosts", study_id), lambda: hosts_of(columns, study_id))
    nowhere = np.zeros(0, np.int64)
    return Groups(
        places, rounds, [_padded([one.ranks.by_host.get(host, nowhere) for host in places]) for one in rounds]
    )


def last_round(found: Groups | None) -> int | None:
    """Number of the last round of the measured arm; None without any."""
    return int(found.merged[-1].numbers[-1]) if found and len(found.merged[-1]) else None


@dataclass(frozen=True, eq=False)
class Arms:
    """Input of a metric: cells are (rounds, places, ranks of a place), or those of one place (rounds, ranks).

    Attributes:
        measured: complete rounds of the measured arm, which has `world_size` ranks.
        compared: those of its baseline; None without one.
        slowness: step time of the baseline's ranks over that of a typical one, if they take turns there.
        flops_per_sample: of the forward and backward pass; None if not counted.
        seeded: a number for each rank's own result of the seeded step, 0 without one.
    """

    measured: ArmRounds
    compared: ArmRounds | None
    world_size: int
    slowness: FloatArray | float = 1.0
    flops_per_sample: float | None = None
    seeded: IntArray = field(default_factory=lambda: np.zeros((), np.int64))

    @property
    def baseline(self) -> ArmRounds:
        """The baseline of a metric that has one."""
        assert self.compared is not None
        return self.compared

    @property
    def paired(self) -> Arms:
        """The rounds that both arms have: drift affects all arms of a round equally, so they are compared there."""
        if self.compared is None or np.array_equal(self.measured.numbers, self.compared.numbers):
            return self
        _, *rows = np.intersect1d(self.measured.numbers, self.compared.numbers, return_indices=True)
        measured, compared = (one.of(at) for one, at in zip((self.measured, self.compared), rows, strict=True))
        return replace(self, measured=measured, compared=compared)

    @property
    def imported(self) -> BoolArray:
        """Rounds that are single samples of an imported result, (rounds, …)."""
        measured = self.measured.single_sample
        return measured if self.compared is None else measured | self.compared.single_sample


def _efficiency(arms: Arms) -> FloatArray:
    """Throughput per GPU among many over that of one GPU alone, in the same job; only the batch may differ.

    If ranks take turns in the baseline, each turn's throughput is scaled to a typical rank: otherwise slow ranks in the
    baseline would make scaling look better.
    """
    return arms.measured.samples_per_s_per_gpu / arms.baseline.least(arms.baseline.per_second * arms.slowness)


def _own(arms: Arms, values: FloatArray) -> FloatArray:
    """The values without imported rounds, whose single samples are too few for a difference of two arms or ranks."""
    return np.where(arms.imported, np.nan, values)


def _held(measured: ArmRounds, name: str) -> FloatArray:
    """A reading with NaN for 0: training always takes energy and memory, so 0 means unknown."""
    cells = measured.reading(name)
    return np.where(cells > 0, cells, np.nan)


def peak_memory_bytes(measured: ArmRounds) -> FloatArray:
    """The most memory of all ranks; NaN if that of any rank is unknown, (rounds, …)."""
    return measured.most(_held(measured, "peak_memory_bytes"))


def memory_spread(measured: ArmRounds) -> FloatArray:
    """Maximum minus minimum memory of the ranks, relative to the maximum; NaN if any rank's is unknown, (rounds, …)."""
    most = peak_memory_bytes(measured)
    return (most - measured.least(_held(measured, "peak_memory_bytes"))) / most


def waited_s_per_step(measured: ArmRounds) -> FloatArray:
    """Seconds per step that ranks waited for data, the most of all ranks; NaN with synthetic data, (rounds, …)."""
    waited_s = measured.of_steps(WAITED_S)
    is_unknown = np.isnan(waited_s).all(axis=-1)
    in_all = np.where(is_unknown, np.nan, np.nansum(waited_s, axis=-1, dtype=np.float64))
    return measured.most(in_all / np.maximum(measured.count, 1))


def _images_per_joule(arms: Arms) -> FloatArray:
    return arms.measured.least(arms.measured.work * arms.measured.count / _held(arms.measured, "energy_j"))


def _latency(per_cent: float) -> Callable[[Arms], FloatArray]:
    return lambda arms: round_percentiles_ms(arms.measured, per_cent)


def _pace(arms: Arms) -> FloatArray:
    return arms.measured.samples_per_s_per_gpu


# Of one place alone; those that read the own pace compare places: `values`.
VALUE_OF: Mapping[str, Callable[[Arms], FloatArray]] = {
    "throughput_per_gpu": _pace,
    "inference_throughput": _pace,
    "generation_ratio": _pace,  # over the reference's throughput
    # In 10¹² operations per second, over the peak. As in PaLM: counts the FLOPs that both passes need.
    "model_flops_utilization": lambda arms: _pace(arms) * ((arms.flops_per_sample or np.nan) / TERA),
    "weak_scaling_efficiency": _efficiency,
    "strong_scaling_efficiency": _efficiency,
    "strong_scaling_speedup": lambda arms: arms.world_size * _efficiency(arms),
    "input_pipeline_efficiency": _efficiency,
    # Noise makes it slightly negative if communication is completely hidden.
    "exposed_communication": lambda arms: _own(arms, 1 - arms.baseline.step_s / arms.measured.step_s),
    "computation_time": lambda arms: _own(arms, _MS_PER_S * arms.measured.step_s),
    "communication_time": lambda arms: _own(arms, _MS_PER_S * (arms.measured.step_s - arms.baseline.step_s)),
    "ddp_overhead": lambda arms: _own(arms, arms.measured.step_s / arms.baseline.step_s - 1),
    "step_time_p95": _latency(95),
    "inference_latency_p50": _latency(50),
    "inference_latency_p95": _latency(95),
    "inference_latency_p99": _latency(99),
    "step_time_cv": lambda arms: step_time_cv(arms.measured),
    "device_utilization": lambda arms: arms.measured.least(arms.measured.reading("utilization")),
    "peak_memory_gib": lambda arms: peak_memory_bytes(arms.measured) / GIB,
    "memory_spread": lambda arms: memory_spread(arms.measured),
    # One round below 1 is a disagreement, however many are 1: their mean says nothing.
    "replica_agreement": lambda arms: agreeing_share(arms.measured, arms.seeded),
    "images_per_joule": _images_per_joule,
}


def errors_of(metric: Metric, arms: Arms) -> FloatArray:
    """Relative error of the places that have one imported sample, NaN of others, (places,).

    The standard deviation of the steps over the square root of their number, as if steps were independent: imported
    files keep no raw steps to estimate their correlation from. Ratios have the errors of both arms; what is no speed is
    taken as exact, but of energy the error is unknown.
    """
    imported = arms.imported
    if not imported.any() or metric is IMAGES_PER_JOULE:
        return np.full(imported.shape[1:], np.nan)
    squares = np.zeros(imported.shape)
    for one in (arms.measured, *([] if arms.compared is None else [arms.compared])):
        slowest = one.mean_step_s == one.step_s[..., np.newaxis]
        own = one.reading("step_stdev_s") / one.mean_step_s / np.sqrt(np.maximum(one.count, 1))
        squares += one.most(np.where(slowest, own, 0.0)) ** 2
    errors = np.sqrt(squares) if metric.scale == "factors" else np.zeros(imported.shape)
    return np.asarray(np.fmax.reduce(np.where(imported, errors, np.nan), axis=0, initial=np.nan))


def throughput(
    evidence: Evidence, study: Study, arm: Arm, confidence: float, baseline: Arm | None = None
) -> Found | None:
    """Samples per second and GPU of an arm, at the slowest rank's pace, or over those of another in the same rounds.

    With an interval, valid for all rounds together, from eight rounds on; None without a round.
    """
    measured, *compared = (
        merged(evidence.columns, study.id, one, evidence.plan.layout) for one in (arm, baseline) if one is not None
    )
    arms = Arms(measured, compared[0] if compared else None, arm.world_size).paired
    if not len(arms.measured):
        return None
    values = _efficiency(arms) if compared else _pace(arms)
    return estimate_of(values, "factors", confidence, error=float(errors_of(THROUGHPUT_PER_GPU, arms)))


def paces(evidence: Evidence, study: Study, *arms: Arm) -> FloatArray:
    """Samples per second and GPU of arms in the rounds that all of them have, (arms, rounds)."""
    found = [merged(evidence.columns, study.id, arm, evidence.plan.layout) for arm in arms]
    numbers = reduce(np.intersect1d, (one.numbers for one in found))
    return np.stack([one.samples_per_s_per_gpu[np.isin(one.numbers, numbers)] for one in found])


def slowness_of(ranks: RankColumns, times_s: FloatArray, *, within_hosts: bool = False) -> dict[tuple[str, int], float]:
    """Step time of each rank over that of the median rank (the faster of two middle ones), by place.

    The median is of all ranks, or of those of the rank's own host. Ratios are taken within rounds, in which every rank
    computes alone, and averaged over them, which cancels variation common to a round.

    Args:
        ranks: of each column.
        times_s: of a step, (rounds, ranks).
        within_hosts: whether ranks are compared with those of their own host.
    """
    if np.isnan(times_s).all():
        return {}
    at = _padded([*ranks.by_host.values()] if within_hosts else [np.arange(len(ranks))])
    logs = np.log(np.where(at >= 0, times_s[:, at], np.nan))
    means = _mean(logs - _mean(logs, axis=2)[:, :, np.newaxis], axis=0)
    middle = np.maximum((at >= 0).sum(axis=1, keepdims=True) - 1, 0) // 2
    factors = np.exp(means - np.take_along_axis(np.sort(means, axis=1), middle, axis=1))
    places = [ranks.places[column] for column in at[at >= 0].tolist()]
    return dict(zip(places, factors[at >= 0].tolist(), strict=True))


def _mean(values: FloatArray, axis: int) -> FloatArray:
    """Mean of the values that are not NaN; NaN if there are none."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def step_time_percentiles_ms(measured: ArmRounds) -> dict[int, float]:
    """`PERCENTS` of an arm's step time in ms over the raw steps of all ranks and rounds; may be empty."""
    steps_s = _raw_steps_s(measured)
    steps_s = steps_s[~np.isnan(steps_s)].astype(np.float64)
    if not len(steps_s):
        return {}
    return dict(zip(PERCENTS, (_MS_PER_S * np.percentile(steps_s, PERCENTS)).tolist(), strict=True))


def round_percentiles_ms(measured: ArmRounds, percent: float) -> FloatArray:
    """A percentile of the step time over the raw steps of all ranks, in ms; NaN without raw steps, (rounds, …).

    Definition 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American Statistician 50 (1996).
    """
    steps_s = _raw_steps_s(measured)
    if not steps_s.size:
        return np.full(steps_s.shape[:-2], np.nan)
    steps_s = np.sort(steps_s.reshape(*steps_s.shape[:-2], -1).astype(np.float64), axis=-1)
    at = np.maximum((~np.isnan(steps_s)).sum(axis=-1, keepdims=True) - 1, 0) * (percent / 100)
    low, high = (np.take_along_axis(steps_s, one.astype(np.int64), axis=-1) for one in (np.floor(at), np.ceil(at)))
    return np.asarray(_MS_PER_S * (low + (high - low) * (at - np.floor(at)))[..., 0])


def _raw_steps_s(measured: ArmRounds) -> StepArray:
    """Seconds of all steps; NaN in rounds of which a rank kept none, (…, ranks, steps)."""
    steps_s = measured.of_steps(STEP_S)
    is_unknown = np.asarray((measured.present & np.isnan(steps_s[..., :1]).all(axis=-1)).any(axis=-1))
    return np.where(is_unknown[..., None, None], np.float32(np.nan), steps_s) if is_unknown.any() else steps_s


def step_time_cv(measured: ArmRounds) -> FloatArray:
    """Standard deviation of the step time over its mean, on the rank where it is largest, (rounds, …).

    Each rank is compared with its own mean, so a uniformly slow rank counts as steady. NaN if any is unknown. Imported
    results without raw steps have a summary.
    """
    steps_s = measured.of_steps(STEP_S).astype(np.float64)
    is_step = ~np.isnan(steps_s)
    count, mean_s = is_step.sum(axis=-1), _mean(steps_s, axis=-1)
    squares = np.where(is_step, steps_s - mean_s[..., np.newaxis], 0.0) ** 2
    of_steps = np.sqrt(squares.sum(axis=-1) / np.maximum(count - 1, 1)) / mean_s
    return measured.most(np.where(count > 1, of_steps, measured.reading("step_stdev_s") / measured.mean_step_s))
