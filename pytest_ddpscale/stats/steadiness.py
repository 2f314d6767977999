"""Straight lines through series of rounds, and whether they stand still or drift."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pytest_ddpscale.stats.intervals import t_quantile
from pytest_ddpscale.stats.sequential import FloatArray

# One round at either end and three between them. With fewer a straight line leaves no noise over to compare with.
FEWEST_ROUNDS_TO_SEE_DRIFT = 5
_CONFIDENCE = 0.98
# By how much AR(1) noise with the largest correlation allowed for, 0.5, makes means of rounds vary more
# than independent noise would: sqrt((1 + ρ) / (1 - ρ)).
_INFLATION = math.sqrt(3)


@dataclass(frozen=True)
class RoundDrift:
    """A change that goes on through the rounds.

    Attributes:
        change: mean of the last third less mean of the first third.
        last: mean of the last third.
    """

    change: float
    last: float

    @property
    def gone_on(self) -> float:
        """Where it would be if it went on for as long again."""
        return self.last + self.change


def find_drift(values: Sequence[float], negligible: float = 0.0) -> RoundDrift | None:
    """The drift between the first and the last third of the rounds; None if it is within the noise.

    The noise is what a straight line through all rounds leaves over. Its t statistic is held against
    Student's distribution at 2 % of false alarms, widened for correlated noise.

    Args:
        values: one per round, in the order of the rounds; logarithms where ratios are meant.
        negligible: a change up to this is none, however little noise there is.
    """
    if len(values) < FEWEST_ROUNDS_TO_SEE_DRIFT:
        return None
    third = len(values) // 3
    first, last = statistics.fmean(values[:third]), statistics.fmean(values[-third:])
    noise = _spread_about_line(values)
    degrees = len(values) - 2
    limit = t_quantile(0.5 + _CONFIDENCE / 2, degrees) * _INFLATION * noise * math.sqrt(2 / third)
    # Rounding makes the differences of equal values not quite zero.
    rounding = 1e-9 * max(map(abs, values))
    return RoundDrift(last - first, last) if abs(last - first) > max(limit, negligible, rounding) else None


def _spread_about_line(values: Sequence[float]) -> float:
    numbers = range(len(values))
    slope, intercept = statistics.linear_regression(numbers, values)
    residuals = [value - (intercept + slope * number) for number, value in zip(numbers, values, strict=True)]
    return math.sqrt(math.fsum(r * r for r in residuals) / (len(values) - 2))


class FittedLines(NamedTuple):
    """Lines of least squares through series.

    Attributes:
        means: in the middle of the rounds, (series,).
        slopes: a round, (series,).
        residuals: what the lines leave over, (series, rounds).
        noise: standard deviation of that, (series,).
    """

    means: FloatArray
    slopes: FloatArray
    residuals: FloatArray
    noise: FloatArray


def fit_lines(values: FloatArray) -> FittedLines:
    """Through each of many series, (series, rounds), of at least three rounds."""
    rounds = values.shape[1]
    numbers = np.arange(rounds) - (rounds - 1) / 2
    means = values.mean(axis=1)
    about_mean = values - means[:, np.newaxis]
    slopes = about_mean @ numbers / (numbers @ numbers)
    residuals = about_mean - slopes[:, np.newaxis] * numbers
    return FittedLines(means, slopes, residuals, np.sqrt((residuals**2).sum(axis=1) / (rounds - 2)))


def find_drifts(values: FloatArray, negligible: FloatArray) -> list[RoundDrift | None]:
    """As `find_drift`, of each of many series, (series, rounds)."""
    rounds = values.shape[1]
    if rounds < FEWEST_ROUNDS_TO_SEE_DRIFT:
        return [None] * len(values)
    third = rounds // 3
    first, last = values[:, :third].mean(axis=1), values[:, -third:].mean(axis=1)
    limit = t_quantile(0.5 + _CONFIDENCE / 2, rounds - 2) * _INFLATION * fit_lines(values).noise * math.sqrt(2 / third)
    rounding = 1e-9 * np.abs(values).max(axis=1)
    drifts = np.abs(last - first) > np.maximum(np.maximum(limit, negligible), rounding)
    found = zip(drifts.tolist(), (last - first).tolist(), last.tolist(), strict=True)
    return [RoundDrift(change, end) if is_drift else None for is_drift, change, end in found]
