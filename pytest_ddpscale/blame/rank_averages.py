"""What ranks take on average over rounds, and how far that can be trusted.

The average is the median, so that hiccups in less than half of the rounds do not move it. Its standard error is that of
a median of normal noise, √(π/2) that of a mean. The noise is the median absolute deviation of the rank's own rounds, or
what is left of that about a line through the medians of their halves (Tukey 1977), so that a rank that gets slower is
not taken for a noisy one. It is the typical rank's where that is larger: of eight rounds one rank's alone is little
known.
Successive rounds may correlate by up to 0.5, which widens it as in `stats/steadiness`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pytest_ddpscale.metrics.peers import MAD_TO_STDEV
from pytest_ddpscale.results.column_record import FloatArray
from pytest_ddpscale.stats.intervals import t_quantile

_ALPHA = 0.05  # of both sides of all ranks together that are compared: Bonferroni
# sqrt((1 + ρ) / (1 - ρ)) for the largest correlation allowed for, 0.5.
_INFLATION = math.sqrt(3)
_MOST_DEGREES = 100  # from there on Student's distribution is the normal one


@dataclass(frozen=True, eq=False)
class RankAverages:
    """Of each of some ranks, (ranks,).

    Attributes:
        value: median over its rounds.
        reach: half-width of the interval that holds for all ranks together with a confidence of 95 %.
    """

    value: FloatArray
    reach: FloatArray


def averages_of(logs: FloatArray, looks: int = 1) -> RankAverages:
    """Averages over rounds.

    Args:
        logs: of each rank in each round, NaN where it took no part, (rounds, ranks); at least one round of each rank.
        looks: how many windows of rounds are looked at: intervals hold for all of them together.
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
    """Less a straight line, rank by rank; as they are where a rank lacks a half of the rounds."""
    half = len(logs) // 2
    change = median_over_rounds(logs[-half:]) - median_over_rounds(logs[:half]) if half else np.zeros(logs.shape[1])
    slope = np.nan_to_num(change) / max(1, len(logs) - half)
    residuals: FloatArray = logs - slope * np.arange(len(logs))[:, np.newaxis]
    return residuals


def relative_logs(times_s: FloatArray) -> FloatArray:
    """Logarithms of times relative to the median rank of the round: what slows all down tells nobody apart."""
    logs = np.log(times_s)
    return logs - median_over_rounds(logs.T)[:, np.newaxis]


def usual_logs(times_s: FloatArray) -> FloatArray:
    """Of each rank the average of its `relative_logs`, (ranks,)."""
    return median_over_rounds(relative_logs(times_s))


def median_over_rounds(values: FloatArray) -> FloatArray:
    """Of each column what is not NaN; NaN of nothing. A few times as quick as numpy's own."""
    ordered, count = np.sort(values, axis=0), (~np.isnan(values)).sum(axis=0)
    columns = np.arange(values.shape[1])
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, len(values) - 1)
    medians: FloatArray = (ordered[low, columns] + ordered[high, columns]) / 2
    return medians
