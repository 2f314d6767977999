"""Drift of series of rounds, and straight lines through them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pytest_ddpscale.stats.intervals import t_quantile
from pytest_ddpscale.stats.sequential import FloatArray

# One round at either end and three between them. With fewer, a straight line leaves too little noise to compare with.
FEWEST_ROUNDS_TO_SEE_DRIFT = 5
_CONFIDENCE = 0.98
# Factor by which AR(1) noise with the largest allowed correlation, 0.5, widens the spread of means of rounds
# compared with independent noise: sqrt((1 + ρ) / (1 - ρ)).
_INFLATION = math.sqrt(3)


@dataclass(frozen=True)
class RoundDrift:
    """A trend through the rounds.

    Attributes:
        change: mean of the last third minus mean of the first third.
        last: mean of the last third.
    """

    change: float
    last: float

    @property
    def gone_on(self) -> float:
        """Extrapolated value if the drift went on for as long again."""
        return self.last + self.change


def find_drift(values: Sequence[float], negligible: float = 0.0) -> RoundDrift | None:
    """The drift between the first and the last third of the rounds; None if it is within the noise.

    The noise is the residual of a straight line through all rounds. The t statistic of the change is compared with
    Student's distribution at 2 % false alarms, widened for correlated noise.

    Args:
        values: one per round, in the order of the rounds; logarithms for ratios.
        negligible: smaller changes are ignored, however little noise there is.
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
    """Least-squares lines through series.

    Attributes:
        means: value in the middle of the rounds, (series,).
        slopes: change per round, (series,).
        residuals: deviations from the lines, (series, rounds).
        noise: standard deviation of the residuals, (series,).
    """

    means: FloatArray
    slopes: FloatArray
    residuals: FloatArray
    noise: FloatArray


def fit_lines(values: FloatArray) -> FittedLines:
    """Fit a line to each of many series, (series, rounds), of at least three rounds."""
    rounds = values.shape[1]
    numbers = np.arange(rounds) - (rounds - 1) / 2
    means = values.mean(axis=1)
    about_mean = values - means[:, np.newaxis]
    slopes = about_mean @ numbers / (numbers @ numbers)
    residuals = about_mean - slopes[:, np.newaxis] * numbers
    return FittedLines(means, slopes, residuals, np.sqrt((residuals**2).sum(axis=1) / (rounds - 2)))


def find_drifts(values: FloatArray, negligible: FloatArray) -> list[RoundDrift | None]:
    """`find_drift` of each of many series, (series, rounds)."""
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
