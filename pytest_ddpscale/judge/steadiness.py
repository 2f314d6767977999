"""Drift of series of rounds, and straight lines through them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pytest_ddpscale.judge.intervals import t_quantile
from pytest_ddpscale.judge.sequential import BoolArray, FloatArray

# One round at either end and three between them. With fewer, a straight line leaves too little noise to compare with.
FEWEST_ROUNDS_TO_SEE_DRIFT = 5
_CONFIDENCE = 0.98
# Factor by which AR(1) noise with the largest allowed correlation, 0.5, widens the spread of means of rounds
# compared with independent noise: sqrt((1 + ρ) / (1 - ρ)).
_INFLATION = math.sqrt(3)


class Drifts(NamedTuple):
    """Trends through series of rounds, each (series,).

    Attributes:
        are_seen: whether the change exceeds the noise.
        changes: mean of the last third minus mean of the first third.
        lasts: mean of the last third.
    """

    are_seen: BoolArray
    changes: FloatArray
    lasts: FloatArray

    @property
    def gone_on(self) -> FloatArray:
        """Extrapolated values if each drift went on for as long again."""
        return self.lasts + self.changes


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


def find_drifts(values: FloatArray, negligible: FloatArray | float = 0.0) -> Drifts:
    """The drift of each series between the first and the last third of its rounds.

    The noise is the residual of a straight line through all rounds. The t statistic of the change is compared with
    Student's distribution at 2 % false alarms, widened for correlated noise.

    Args:
        values: in the order of the rounds, (series, rounds); logarithms for ratios.
        negligible: smaller changes are ignored, however little noise there is; of all or of each series.
    """
    rounds = values.shape[1]
    if rounds < FEWEST_ROUNDS_TO_SEE_DRIFT:
        return Drifts(np.zeros(len(values), np.bool_), *np.zeros((2, len(values))))
    third = rounds // 3
    first, last = values[:, :third].mean(axis=1), values[:, -third:].mean(axis=1)
    limit = t_quantile(0.5 + _CONFIDENCE / 2, rounds - 2) * _INFLATION * fit_lines(values).noise * math.sqrt(2 / third)
    # Rounding makes the differences of equal values not quite zero.
    rounding = 1e-9 * np.abs(values).max(axis=1)
    are_seen = np.abs(last - first) > np.maximum(np.maximum(limit, negligible), rounding)
    return Drifts(np.asarray(are_seen), last - first, last)
