"""The value of each metric of training in each round, from the rounds of its arms.

To add a metric, declare it in `pytest_ddpscale.plan.metric_catalogue` and add its function here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from pytest_ddpscale.judge.agreement import agreeing_share
from pytest_ddpscale.judge.rounds import GIB, TERA, ArmRounds, merged
from pytest_ddpscale.judge.slow import OwnPace
from pytest_ddpscale.judge.stats import Found, estimate_of
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import Metric
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.column_record import FloatArray, IntArray
from pytest_ddpscale.run.columns import StepArray
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.readings import STEP_S

Slowness = Mapping[tuple[str, int], float]  # by host and local rank: a relaunch may renumber ranks
PERCENTS = (50, 75, 90, 95, 99)
_MS_PER_S = 1000.0


@dataclass(frozen=True)
class Arms:
    """Input of a metric. Rounds may be rows of many places: `pytest_ddpscale.judge.rounds.Groups`.

    Attributes:
        measured: complete rounds of the measured arm, which has `world_size` ranks.
        compared: those of its baseline; None without one.
        slowness: step time of ranks over that of a typical one, where known, if they take turns in the baseline.
        flops_per_sample: of the forward and backward pass; None if not counted.
        seeded_checksums: of the seeded step that each rank computed alone, by rank.
    """

    measured: ArmRounds
    compared: ArmRounds | None
    world_size: int
    slowness: Slowness = field(default_factory=dict)
    flops_per_sample: float | None = None
    seeded_checksums: Mapping[int, str] = field(default_factory=dict)

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
        shared = np.intersect1d(self.measured.numbers, self.compared.numbers, assume_unique=True)
        measured, compared = (one.of(np.isin(one.numbers, shared)) for one in (self.measured, self.compared))
        return replace(self, measured=measured, compared=compared)


class Read(NamedTuple):
    """Values of a metric, by number of the round or row; NaN if unknown.

    `errors` are relative errors of imported samples, NaN for our own rounds; None without imported rounds.
    """

    numbers: IntArray
    values: FloatArray
    errors: FloatArray | None


def read(metric: Metric, arms: Arms) -> Read:
    """Values of a metric of training."""
    arms = arms.paired
    return Read(arms.measured.numbers, VALUE_OF[metric.name](arms), _errors(metric, arms))


def _efficiency(arms: Arms) -> FloatArray:
    """Throughput per GPU among many over that of one GPU alone, in the same job; only the batch may differ.

    If ranks take turns in the baseline, each turn's throughput is scaled to a typical rank: otherwise slow ranks in the
    baseline would make scaling look better.
    """
    alone = arms.baseline.samples_per_s_per_gpu
    if arms.slowness and len(alone):
        of_ranks = np.array([arms.slowness.get(place, 1.0) for place in arms.baseline.ranks.places])
        turns = arms.baseline.measured.rank_of_cell[np.arange(len(alone)), arms.baseline.slowest]
        alone = alone * of_ranks[turns]
    return arms.measured.samples_per_s_per_gpu / alone


def _own(arms: Arms, values: FloatArray) -> FloatArray:
    """The values without imported rounds, whose single samples are too few for a difference of two arms or ranks."""
    imported = arms.measured.measured.single_sample
    if arms.compared is not None:
        imported = imported | arms.compared.measured.single_sample
    return np.where(imported, np.nan, values)


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
    "input_pipeline_efficiency": lambda arms: _pace(arms) / arms.baseline.samples_per_s_per_gpu,
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
    "device_utilization": lambda arms: arms.measured.utilization,
    "peak_memory_gib": lambda arms: arms.measured.peak_memory_bytes / GIB,
    "memory_spread": lambda arms: arms.measured.memory_spread,
    # One round below 1 is a disagreement, however many are 1: their mean says nothing.
    "replica_agreement": lambda arms: agreeing_share(arms.measured, arms.seeded_checksums),
    "images_per_joule": lambda arms: arms.measured.images_per_joule,
}
# An imported round has the error of its steps, of which ratios have those of both; or is taken as exact.
_PACED = ("throughput_per_gpu", "inference_throughput", "generation_ratio", "model_flops_utilization",
          "weak_scaling_efficiency", "strong_scaling_efficiency", "strong_scaling_speedup",
          "input_pipeline_efficiency")  # fmt: skip
_EXACT = ("step_time_cv", "device_utilization", "peak_memory_gib", "memory_spread")


def _errors(metric: Metric, arms: Arms) -> FloatArray | None:
    imported = arms.measured.measured.single_sample
    if not imported.any():
        return None
    if metric.name in _EXACT:
        return np.where(imported, 0.0, np.nan)
    return _paced_error(arms) if metric.name in _PACED else None


def _paced_error(arms: Arms) -> FloatArray:
    own = arms.measured.single_sample_error
    return own if arms.compared is None else np.hypot(own, arms.compared.single_sample_error)  # two independent samples


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
    values = _pace(arms) / arms.baseline.samples_per_s_per_gpu if compared else _pace(arms)
    errors = _paced_error(arms)
    return estimate_of(values, "factors", confidence, error=float(errors[0]))


def paces(evidence: Evidence, study: Study, *arms: Arm) -> FloatArray:
    """Samples per second and GPU of arms in the rounds that all of them have, (arms, rounds)."""
    found = [merged(evidence.columns, study.id, arm, evidence.plan.layout) for arm in arms]
    numbers = reduce(np.intersect1d, (one.numbers for one in found))
    return np.stack([one.samples_per_s_per_gpu[np.isin(one.numbers, numbers)] for one in found])


def slowness_of(each: OwnPace, *, within_hosts: bool = False) -> dict[tuple[str, int], float]:
    """Step time of each rank over that of the median rank (the faster of two middle ones), by place.

    The median is of all ranks, or of those of the rank's own host. Ratios are taken within rounds, in which every rank
    computes alone, and averaged over them, which cancels variation common to a round.
    """
    if np.isnan(each.times_s).all():
        return {}
    by_size: dict[int, list[IntArray]] = {}
    for columns in each.ranks.by_host.values() if within_hosts else [np.arange(len(each.ranks))]:
        by_size.setdefault(len(columns), []).append(columns)
    found: dict[tuple[str, int], float] = {}
    for columns in map(np.stack, by_size.values()):
        logs = np.log(each.times_s)[:, columns]
        means = _mean(logs - _mean(logs, axis=2)[:, :, np.newaxis], axis=0)
        typical = np.sort(means, axis=1)[:, (columns.shape[1] - 1) // 2]
        factors = np.exp(means - typical[:, np.newaxis]).ravel().tolist()
        found |= zip(each.ranks.of(columns.ravel()).places, factors, strict=True)
    return found


def _mean(values: FloatArray, axis: int) -> FloatArray:
    """Mean of the values that are not NaN; NaN if there are none."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def percentile(values: Sequence[float] | StepArray, percent: float) -> float:
    """The value that `percent` (0 … 100) of the values do not exceed, interpolated linearly between neighbours.

    Definition 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American Statistician 50 (1996).

    Raises:
        ValueError: there are no values, or `percent` is out of range.
    """
    if not len(values) or not 0 <= percent <= 100:
        raise ValueError(f"percentile {percent:g} of {len(values)} values; expected 0 to 100 of at least 1")
    return float(np.percentile(np.asarray(values, np.float64), percent))


def step_time_percentiles_ms(*measured: ArmRounds) -> dict[int, float]:
    """`PERCENTS` of an arm's step time in ms over the raw steps of all ranks and rounds; may be empty."""
    steps_s = np.concatenate([np.zeros(0, np.float32), *(steps for one in measured for steps in _raw_steps_s(one))])
    if not len(steps_s):
        return {}
    found = np.percentile(steps_s.astype(np.float64), PERCENTS)
    return dict(zip(PERCENTS, (_MS_PER_S * found).tolist(), strict=True))


def round_percentiles_ms(measured: ArmRounds, percent: float) -> FloatArray:
    """A percentile of each round's step time over the raw steps of all its ranks, in ms; NaN without raw steps."""
    steps_s = measured.measured.of_steps(STEP_S)
    if measured.is_whole and steps_s.size and not np.isnan(steps_s).any():
        found: FloatArray = np.percentile(steps_s.reshape(len(steps_s), -1).astype(np.float64), percent, axis=1)
    else:
        of_rounds = _raw_steps_s(measured)
        found = np.array([percentile(one, percent) if len(one) else np.nan for one in of_rounds], np.float64)
    return _MS_PER_S * found


def step_time_cv(measured: ArmRounds) -> FloatArray:
    """Standard deviation of the step time over its mean, on the rank where it is largest, (rounds,).

    Each rank is compared with its own mean, so a uniformly slow rank counts as steady. NaN if any is unknown.
    """
    of_ranks = _cv(measured)
    unknown = (np.isnan(of_ranks) & measured.present).any(axis=1)
    largest = np.max(np.where(np.isnan(of_ranks), 0.0, of_ranks), axis=1, initial=0.0)
    return np.where(unknown, np.nan, largest)


def _cv(measured: ArmRounds) -> FloatArray:
    """Coefficient of variation of the raw steps; from the summary of imported results without raw steps."""
    steps_s = measured.measured.of_steps(STEP_S).astype(np.float64)
    is_step = ~np.isnan(steps_s)
    count = is_step.sum(axis=2)
    mean_s = np.where(is_step, steps_s, 0.0).sum(axis=2) / np.maximum(count, 1)
    squares = np.where(is_step, steps_s - mean_s[:, :, np.newaxis], 0.0) ** 2
    stdev_s = np.sqrt(squares.sum(axis=2) / np.maximum(count - 1, 1))
    of_steps = stdev_s / np.where(mean_s > 0, mean_s, np.nan)
    return np.where(count > 1, of_steps, measured.measured.reading("step_stdev_s") / measured.mean_step_s)


def _raw_steps_s(measured: ArmRounds) -> list[StepArray]:
    """Durations of all steps of all ranks in each round; empty if a rank kept none, as in imported results."""
    steps_s = measured.measured.of_steps(STEP_S)
    found = []
    for row, there in enumerate(measured.present):
        of_ranks = steps_s[row, there]
        is_step = ~np.isnan(of_ranks)
        found.append(of_ranks[is_step] if is_step.any(axis=1).all() else np.zeros(0, np.float32))
    return found
