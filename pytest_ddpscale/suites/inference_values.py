"""Results of forward passes by batch: the metrics of inference, and the loss of GPUs that work at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pytest_ddpscale.judge.metrics import merged
from pytest_ddpscale.judge.stats import Found, estimate_of
from pytest_ddpscale.judge.values import samples_of
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import INFERENCE_LATENCIES, INFERENCE_THROUGHPUT, Metric
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.suites.suite import MeasuredSuite, why_incomplete
from pytest_ddpscale.util.arrays import FloatArray

# Share of the highest measured throughput at which a larger batch is no longer worth its latency.
SATURATED = 0.95


@dataclass(frozen=True)
class InferredArm:
    """One batch on `ranks` ranks of each node at once.

    Attributes:
        ranks: 1 is one rank of each node at a time.
        samples_per_s: of each GPU, at the pace of the slowest.
        total_samples_per_s: of all GPUs that work at the same time, each at its own pace.
        latencies_ms: by percentile.
        passes: of one rank in one round; a round's percentiles are over `ranks` times as many.
    """

    ranks: int
    samples_per_s: Found
    total_samples_per_s: Found
    latencies_ms: Mapping[int, Found]
    passes: int


@dataclass(frozen=True)
class InferredBatch:
    """One batch.

    Attributes:
        arms: those with rounds, the fewest ranks first.
        kept: throughput of a GPU while its whole node works, relative to the same GPU alone; None with a single GPU.
        problem: why a value is missing; empty if none is.
    """

    batch: int
    arms: Sequence[InferredArm] = field(default_factory=tuple)
    kept: Found | None = None
    problem: str = ""


@dataclass(frozen=True)
class Saturation:
    """The smallest batch that reaches `SATURATED` of the highest throughput.

    Attributes:
        least: the smallest batch that may reach it, as far as its interval shows.
        surely: the smallest batch that certainly does; None if the intervals are too wide.
        is_largest: whether `least` is the largest measured batch, so that throughput still grows.
    """

    least: int
    surely: int | None
    is_largest: bool


def inferred_batches(measured: MeasuredSuite) -> list[InferredBatch]:
    """Results of each study, in the plan's order."""
    return [_batch(measured, study) for study in measured.evidence.plan.studies]


def saturation(batches: Sequence[InferredBatch]) -> Saturation | None:
    """Saturation with the most ranks at once; None with fewer than two batches."""
    limits = [(one.batch, *_limits(one.arms[-1].samples_per_s)) for one in batches if one.arms]
    if len(limits) < 2:
        return None
    _, low, high = max(limits, key=lambda one: one[1] * one[2])
    least = next(batch for batch, _, top in limits if top >= SATURATED * low)
    surely = next((batch for batch, bottom, _ in limits if bottom >= SATURATED * high), None)
    return Saturation(least, surely, least == limits[-1][0])


def _limits(found: Found) -> tuple[float, float]:
    return found.interval if found.interval else (found.value, found.value)


def _batch(measured: MeasuredSuite, study: Study) -> InferredBatch:
    evidence = measured.evidence
    arms = [found for arm in study.arms if (found := _arm(measured, study, arm)) is not None]
    problem = why_incomplete(evidence, study, is_measured=len(arms) == len(study.arms))
    kept = None
    if len(study.arms) > 1:
        alone, together = (merged(evidence.columns, study.id, arm, evidence.plan.layout) for arm in study.arms)
        kept = _found(kept_at_once(alone, together), measured.confidence)
    return InferredBatch(study.workload.batch_size, arms, kept, problem)


def _arm(measured: MeasuredSuite, study: Study, arm: Arm) -> InferredArm | None:
    """Results of one arm; None without rounds."""
    evidence, confidence = measured.evidence, measured.confidence

    def metric(one: Metric) -> Found | None:
        return _found(samples_of(Question(one, study.workload, arm.world_size), evidence), confidence)

    rounds = merged(evidence.columns, study.id, arm, evidence.plan.layout)
    samples_per_s, total = metric(INFERENCE_THROUGHPUT), _found(np.nansum(rounds.per_second, axis=1), confidence)
    latencies = {per_cent: found for per_cent, one in INFERENCE_LATENCIES.items() if (found := metric(one)) is not None}
    if samples_per_s is None or total is None or len(latencies) < len(INFERENCE_LATENCIES):
        return None
    passes = int(np.median(rounds.count[rounds.present]))
    return InferredArm(arm.world_size, samples_per_s, total, latencies, passes)


def _found(values: FloatArray, confidence: float) -> Found | None:
    return estimate_of(values, "factors", confidence) if len(values) else None


def kept_at_once(alone: ArmRounds, together: ArmRounds) -> FloatArray:
    """Throughput of a rank while its whole node works, relative to the same rank alone in the same round.

    Only the rank whose turn it is counts, because a slower neighbour is no loss from sharing. With several nodes, the
    value is the geometric mean over their ranks.
    """
    places = {place: column for column, place in enumerate(together.ranks.places)}
    pairs = [(i, places[place]) for i, place in enumerate(alone.ranks.places) if place in places]
    numbers = np.intersect1d(alone.numbers, together.numbers)
    if not pairs or not len(numbers):
        return np.zeros(0)
    of_one, of_all = (np.array(columns) for columns in zip(*pairs, strict=True))
    one = alone.per_second[np.isin(alone.numbers, numbers)][:, of_one]
    with_all = together.per_second[np.isin(together.numbers, numbers)][:, of_all]
    logs = np.log(with_all / one)
    there = ~np.isnan(logs)
    known = there.any(axis=1)
    means = np.where(there, logs, 0.0).sum(axis=1)[known] / there.sum(axis=1)[known]
    return np.asarray(np.exp(means))
