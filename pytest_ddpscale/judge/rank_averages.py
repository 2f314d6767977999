"""Average step times of ranks over rounds, with intervals.

The average is the median: hiccups in less than half of the rounds do not move it. Its standard error is that of a
median of normal noise, √(π/2) times that of a mean. The noise is the median absolute deviation of the rank's own
rounds, or that about a line through the medians of their halves (Tukey 1977) if it is smaller, because a rank that gets
slower is not noisy. The typical rank's noise is used instead if it is larger: eight rounds of one rank are too few to
estimate its noise well.
Successive rounds may correlate by up to 0.5, which widens the interval as in `steadiness`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pytest_ddpscale.judge.intervals import t_quantile
from pytest_ddpscale.judge.peers import MAD_TO_STDEV
from pytest_ddpscale.run.column_record import FloatArray

_ALPHA = 0.05  # two-sided, over all compared ranks together (Bonferroni)
# sqrt((1 + ρ) / (1 - ρ)) for the largest correlation allowed for, 0.5.
_INFLATION = math.sqrt(3)
_MOST_DEGREES = 100  # beyond this Student's distribution is close to normal


@dataclass(frozen=True, eq=False)
class RankAverages:
    """Averages of ranks, (ranks,).

    Attributes:
        value: median over the rounds of a rank.
        reach: half-width of the joint interval of all ranks at 95 % confidence.
    """

    value: FloatArray
    reach: FloatArray


def averages_of(logs: FloatArray, looks: int = 1) -> RankAverages:
    """Averages over rounds.

    Args:
        logs: (rounds, ranks), NaN where a rank was absent; at least one round of each rank.
        looks: number of windows of rounds that are looked at; intervals hold for all of them together.
    """
    rounds, ranks = (~np.isnan(logs)).sum(axis=0), logs.shape[1]
    value = median_over_rounds(logs)
    stdev = _robust_stdev(logs)
    own = np.minimum(stdev, _robust_stdev(_without_trend(logs)))
    error = np.maximum(own, np.median(stdev)) * math.sqrt(math.pi / 2) * _INFLATION / np.sqrt(rounds)
    degrees = max(1, int(rounds.min()) - 1) * max(1, ranks - 1)
    return RankAverages(value, t_quantile(1 - _ALPHA / (2 * looks * ranks), min(degrees, _MOST_DEGREES)) * error)


def _robust_stdev(logs: FloatArray) -> FloatArray:
    """From the median absolute deviation over rounds, (ranks,)."""
    return MAD_TO_STDEV * median_over_rounds(np.abs(logs - median_over_rounds(logs)))


def _without_trend(logs: FloatArray) -> FloatArray:
    """Residuals of a straight line, rank by rank; unchanged if a rank lacks either half of the rounds."""
    half = len(logs) // 2
    change = median_over_rounds(logs[-half:]) - median_over_rounds(logs[:half]) if half else np.zeros(logs.shape[1])
    slope = np.nan_to_num(change) / max(1, len(logs) - half)
    residuals: FloatArray = logs - slope * np.arange(len(logs))[:, np.newaxis]
    return residuals


def relative_logs(times_s: FloatArray) -> FloatArray:
    """Logarithms of times relative to the median rank of the round, which cancels what slows down all ranks."""
    logs = np.log(times_s)
    return logs - median_over_rounds(logs.T)[:, np.newaxis]


def usual_logs(times_s: FloatArray) -> FloatArray:
    """Average of the `relative_logs` of each rank, (ranks,)."""
    return median_over_rounds(relative_logs(times_s))


def median_over_rounds(values: FloatArray) -> FloatArray:
    """Median of each column without NaN; NaN for empty columns. A few times faster than `numpy.nanmedian`."""
    ordered, count = np.sort(values, axis=0), (~np.isnan(values)).sum(axis=0)
    columns = np.arange(values.shape[1])
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, len(values) - 1)
    medians: FloatArray = (ordered[low, columns] + ordered[high, columns]) / 2
    return medians
