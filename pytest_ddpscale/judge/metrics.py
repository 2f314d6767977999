"""The complete rounds of arms, and the value of each metric of training in each of them.

A metric is an expression on arrays whose last axis are the ranks of a place. To add one, declare it in
`pytest_ddpscale.plan.metric_catalogue` and add its function here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import NamedTuple

import numpy as np

from pytest_ddpscale.judge.answer import agreeing_share
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import IMAGES_PER_JOULE, Metric
from pytest_ddpscale.run.block import STEP_S
from pytest_ddpscale.run.table import NO_ROUNDS, ArmRounds, Columns, memoized
from pytest_ddpscale.util.arrays import FloatArray, IntArray

TERA, GIGA, GIB = 1e12, 1e9, 2**30
WHOLE = ""  # the place of all ranks that train an arm together
_MS_PER_S = 1000.0


def rounds_begun(columns: Columns, study_id: str) -> set[int]:
    """Numbers of the rounds in which any rank reported on any arm of a study, complete or not."""
    return {number for arm in columns.of_study(study_id) for number in arm.numbers.tolist()}


@memoized
def merged(columns: Columns, study_id: str, arm: Arm, layout: Layout) -> ArmRounds:
    """Complete rounds of all groups of ranks that trained an arm: of each node, or of all of them together.

    Groups are left out of rounds in which a rank is missing, because its pace is unknown. Validation checks that those
    that worked are the arm's, with its batch, and which of the groups that take turns was due.
    """
    measured = columns.arms.get((study_id, arm.name), NO_ROUNDS)
    group = measured.ranks.numbers // (layout.ranks_per_node if layout.judged_by_node([arm]) else layout.world_size)
    count = np.zeros((1 + group.max(initial=0), len(measured)), np.int64)
    np.add.at(count, group, measured.present.T)
    return measured.only((count == arm.world_size)[group].T).there()


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

    def at(self, places: int | Sequence[bool]) -> ArmRounds:
        """Rounds of the measured arm at one place or several, with their ranks alone."""
        columns = self.columns[-1][places]
        return self.merged[-1].of(slice(None), columns[columns >= 0]).there()


@memoized
def groups(columns: Columns, study_id: str, arms: tuple[Arm, ...], layout: Layout) -> Groups:
    """Complete rounds of arms at the places where they are judged together.

    Each of several nodes is a place if all these arms fit a node, in the order of their ranks, which avoids copies;
    otherwise the only place has the ranks of each arm, of one that fits a node those of the first.
    """
    rounds, per_node = [merged(columns, study_id, arm, layout) for arm in arms], layout.ranks_per_node
    if not layout.judged_by_node(arms):
        most = [per_node if layout.fits_node(arm) else layout.world_size for arm in arms]
        at = [np.flatnonzero(of_arm.ranks.numbers < end)[np.newaxis] for of_arm, end in zip(rounds, most, strict=True)]
        return Groups((WHOLE,), rounds, at)
    ranks = [arm.ranks for arm in columns.of_study(study_id)]
    hosts = {
        int(columns_of_arm.numbers[at[0]]) // per_node: host
        for columns_of_arm in ranks
        for host, at in columns_of_arm.by_host.items()
    }
    nodes, at = sorted(hosts), []
    for of_arm in rounds:
        own = np.full((layout.nodes, per_node), -1)
        own[np.divmod(of_arm.ranks.numbers, per_node)] = np.arange(len(of_arm.ranks))
        at.append(own[nodes][:, (own >= 0).any(axis=0)])
    return Groups([hosts[node] for node in nodes], rounds, at)


def last_round(grouped: Groups | None) -> int | None:
    """Number of the last round of the measured arm; None without any."""
    return int(grouped.merged[-1].numbers[-1]) if grouped and len(grouped.merged[-1]) else None


class Arms(NamedTuple):
    """Input of a metric: cells are (rounds, places, ranks of a place).

    Attributes:
        arms: complete rounds of the baseline, if there is one, and of the measured arm, which has `world_size` ranks.
        slowness: step time of the baseline's ranks over that of a typical one, if they take turns there.
        flops_per_sample: of the forward and backward pass; None if not counted.
        seeded: a number for each rank's own result of the seeded step, 0 without one.
    """

    arms: Sequence[ArmRounds]
    world_size: int
    slowness: FloatArray | float = 1.0
    flops_per_sample: float | None = None
    seeded: IntArray = np.zeros((), np.int64)

    @property
    def measured(self) -> ArmRounds:
        """The measured arm."""
        return self.arms[-1]

    @property
    def baseline(self) -> ArmRounds:
        """The baseline of a metric that has one."""
        return self.arms[0]

    @property
    def paired(self) -> Arms:
        """The rounds that both arms have: drift affects all arms of a round equally, so they are compared there."""
        numbers = reduce(np.intersect1d, (of_arm.numbers for of_arm in self.arms))
        kept = (
            of_arm if len(of_arm) == len(numbers) else of_arm.of(np.isin(of_arm.numbers, numbers))
            for of_arm in self.arms
        )
        return self._replace(arms=[*kept])


def _efficiency(arms: Arms) -> FloatArray:
    """Throughput per GPU among many over that of one GPU alone, in the same job; only the batch may differ.

    If ranks take turns in the baseline, each turn's throughput is scaled to a typical rank: otherwise slow ranks in the
    baseline would make scaling look better.
    """
    return arms.measured.samples_per_s_per_gpu / arms.baseline.least(arms.baseline.per_second * arms.slowness)


def _held(measured: ArmRounds, name: str) -> FloatArray:
    """A reading with NaN for 0: training always takes energy and memory, so 0 means unknown."""
    cells = measured.reading(name)
    return np.where(cells > 0, cells, np.nan)


def _utilization(arms: Arms) -> FloatArray:
    """Of each rank, at least: where it could not be read, the share of its SMs that worked."""
    busy = arms.measured.reading("utilization")
    return arms.measured.least(np.where(np.isnan(busy), arms.measured.reading("sm_activity"), busy))


def _memory_spread(arms: Arms) -> FloatArray:
    """Maximum minus minimum memory of the ranks, relative to the maximum; NaN if any rank's is unknown, (rounds, …)."""
    held = _held(arms.measured, "peak_memory_bytes")
    most = arms.measured.most(held)
    return (most - arms.measured.least(held)) / most


def _pace(arms: Arms) -> FloatArray:
    return arms.measured.samples_per_s_per_gpu


def _step_time_p95(arms: Arms) -> FloatArray:
    """Over the raw steps of all ranks, in ms; without any, as in imported results, the largest of the ranks' own."""
    of_steps, own_s = _percentile_ms(arms, 95), arms.measured.reading("step_p95_s")
    return np.where(np.isnan(of_steps), _MS_PER_S * arms.measured.most(own_s), of_steps)


def _step_time_cv(arms: Arms) -> FloatArray:
    """Standard deviation of the step time over its mean, on the rank where it is largest, (rounds, …).

    Each rank is compared with its own mean, so a uniformly slow rank counts as steady. NaN if any is unknown. Imported
    results without raw steps have a summary.
    """
    measured = arms.measured
    steps_s = measured.reading(STEP_S).astype(np.float64)
    count, mean_s = (~np.isnan(steps_s)).sum(axis=-1), _mean(steps_s, axis=-1)
    squares = np.nansum((steps_s - mean_s[..., np.newaxis]) ** 2, axis=-1)
    of_steps = np.sqrt(squares / np.maximum(count - 1, 1)) / mean_s
    return measured.most(np.where(count > 1, of_steps, measured.reading("step_stdev_s") / measured.mean_step_s))


# Lowered by heat at full load: `judge/sustained`.
OF_PACE = {"throughput_per_gpu", "generation_ratio", "model_flops_utilization"}
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
    "exposed_communication": lambda arms: 1 - arms.baseline.step_s / arms.measured.step_s,
    "computation_time": lambda arms: _MS_PER_S * arms.measured.step_s,
    "communication_time": lambda arms: _MS_PER_S * (arms.measured.step_s - arms.baseline.step_s),
    "ddp_overhead": lambda arms: arms.measured.step_s / arms.baseline.step_s - 1,
    "step_time_p95": _step_time_p95,
    "inference_latency_p50": lambda arms: _percentile_ms(arms, 50),
    "inference_latency_p95": lambda arms: _percentile_ms(arms, 95),
    "inference_latency_p99": lambda arms: _percentile_ms(arms, 99),
    "step_time_cv": _step_time_cv,
    "device_utilization": _utilization,
    "peak_memory_gib": lambda arms: arms.measured.most(_held(arms.measured, "peak_memory_bytes")) / GIB,
    "memory_spread": _memory_spread,
    # One round below 1 is a disagreement, however many are 1: their mean says nothing.
    "replica_agreement": lambda arms: agreeing_share(arms.measured, arms.seeded),
    "images_per_joule": lambda arms: arms.measured.least(
        arms.measured.work * arms.measured.count / _held(arms.measured, "energy_j")
    ),
}


def errors_of(metric: Metric, arms: Arms) -> FloatArray:
    """Relative error of the places that have one imported sample, NaN of others, (places,).

    The standard deviation of the steps over the square root of their number, as if steps were independent: imported
    files keep no raw steps to estimate their correlation from. Ratios have the errors of both arms; what is no speed is
    taken as exact, but the error of an energy, or of a difference of two arms, is unknown.
    """
    imported = arms.measured.single_sample
    is_unknown = metric is IMAGES_PER_JOULE or (metric.scale == "differences" and len(arms.arms) > 1)
    squares = np.where(imported & (not is_unknown), 0.0, np.nan)
    is_p95 = metric.name == "step_time_p95"
    own_error = 2.11 if is_p95 else 1.0  # of a normal distribution's, beside that of its mean
    for of_arm in arms.arms if imported.any() and metric.scale == "factors" else ():
        slowest = is_p95 | (of_arm.mean_step_s == of_arm.step_s[..., np.newaxis])
        own = of_arm.reading("step_stdev_s") / of_arm.mean_step_s / np.sqrt(np.maximum(of_arm.count, 1))
        squares += (own_error * of_arm.most(np.where(slowest, own, 0.0))) ** 2
    return np.asarray(np.sqrt(np.fmax.reduce(squares, axis=0, initial=np.nan)))


def slowness_of(times_s: FloatArray, groups: Sequence[IntArray]) -> FloatArray:
    """Step time of each rank over that of the median rank (the faster of two middle ones) of its group, (ranks,).

    Ratios are taken within rounds, in which every rank computes alone, and averaged over them, which cancels variation
    common to a round. 1 for ranks of no group, and if no time of any group is known.

    Args:
        times_s: of a step, (rounds, ranks).
        groups: columns of those that are compared with each other.
    """
    factors, of_any = np.ones(times_s.shape[1]), np.concatenate([np.zeros(0, np.int64), *groups])
    for at in () if np.isnan(times_s[:, of_any]).all() else groups:
        logs = np.log(times_s[:, at])
        means = _mean(logs - _mean(logs, axis=1)[:, np.newaxis], axis=0)
        factors[at] = np.exp(means - np.sort(means)[(len(at) - 1) // 2])
    return factors


def of_all_time(shares: FloatArray, lengths: FloatArray) -> FloatArray:
    """Series whose mean is the share of the time of all windows together, and which vary as it does, (places, rounds).

    A ratio of two sums, linearized (Cochran, "Sampling Techniques", 3rd ed., 1977, section 6.3). The mean of the shares
    would count windows of one second and of ten alike, though a busy machine leaves less of the long one. A value of a
    series can be below 0; an impossible share is -inf.

    Args:
        shares: of each window, NaN if unknown, (places, rounds).
        lengths: of the windows, (places, rounds).
    """
    are_possible = (shares >= 0) & np.isfinite(shares)
    known = np.where(are_possible, shares, np.nan)
    lengths = np.where(np.isnan(known), np.nan, lengths)
    weights = lengths / _mean(lengths, axis=1)[:, np.newaxis]
    share = _mean(weights * known, axis=1)[:, np.newaxis]
    return np.where(are_possible | np.isnan(shares), share + weights * (known - share), -np.inf)


def _mean(values: FloatArray, axis: int) -> FloatArray:
    """Mean of the values that are not NaN; NaN if there are none."""
    count = (~np.isnan(values)).sum(axis=axis)
    return np.asarray(np.nansum(values, axis=axis) / np.where(count, count, np.nan))


def _percentile_ms(arms: Arms, per_cent: float) -> FloatArray:
    """A percentile of the step time over the raw steps of all ranks, in ms; NaN without raw steps, (rounds, …).

    Definition 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American Statistician 50 (1996).
    """
    steps_s = arms.measured.reading(STEP_S)
    if not steps_s.size:
        return np.full(steps_s.shape[:-2], np.nan)
    steps_s = np.sort(steps_s.reshape(*steps_s.shape[:-2], -1).astype(np.float64), axis=-1)
    at = np.maximum((~np.isnan(steps_s)).sum(axis=-1, keepdims=True) - 1, 0) * (per_cent / 100)
    low, high = (np.take_along_axis(steps_s, one.astype(np.int64), axis=-1) for one in (np.floor(at), np.ceil(at)))
    return np.asarray(_MS_PER_S * (low + (high - low) * (at - np.floor(at)))[..., 0])
