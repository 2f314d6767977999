"""The pace of the arms of a suite, and the intervals of what no judge decides while it is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from statistics import fmean, stdev

import numpy as np

from pytest_ddpscale.compare.value_change import Estimate
from pytest_ddpscale.judge.metrics import merged
from pytest_ddpscale.judge.stats import Found, estimate_of, t_quantile
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.util.arrays import FloatArray


def paces(evidence: Evidence, study: Study, *arms: Arm) -> FloatArray:
    """Samples per second and GPU of arms in the rounds that all of them have, (arms, rounds)."""
    found = [merged(evidence.columns, study.id, arm, evidence.plan.layout) for arm in arms]
    numbers = reduce(np.intersect1d, (one.numbers for one in found))
    return np.stack([one.samples_per_s_per_gpu[np.isin(one.numbers, numbers)] for one in found])


def throughput(
    evidence: Evidence, study: Study, arm: Arm, confidence: float, baseline: Arm | None = None
) -> Found | None:
    """Samples per second and GPU of an arm, at the slowest rank's pace, or over those of another in the same rounds.

    With an interval, valid for all rounds together, from eight rounds on; None without a round.
    """
    measured, *compared = paces(evidence, study, arm, *([] if baseline is None else [baseline]))
    values = measured / compared[0] if compared else measured
    return estimate_of(values, "factors", confidence) if len(values) else None


def mean_estimate(values: Sequence[float], confidence: float) -> Estimate:
    """Mean and two-sided Student-t interval of independent rounds (Student 1908), at least two, one value per round."""
    mean, error = fmean(values), stdev(values) / math.sqrt(len(values))
    reach = t_quantile(0.5 + confidence / 2, len(values) - 1) * error
    return Estimate(mean, (mean - reach, mean + reach))


def geometric_mean_estimate(values: Sequence[float], confidence: float) -> Estimate:
    """`mean_estimate` of the logarithms: the right mean for ratios and rates."""
    logs = mean_estimate([math.log(value) for value in values], confidence)
    return Estimate(math.exp(logs.value), (math.exp(logs.interval[0]), math.exp(logs.interval[1])))
