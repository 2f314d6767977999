"""An anytime-valid confidence interval, which may be looked at after every round.

The method is a confidence sequence: all means that an e-process has not ruled out. For a candidate mean m let
y = values - m. The e-process compares two explanations of y,

* the values have another mean than m: y = μ + σ·noise, independent, with μ/σ ~ Normal(0, EFFECT_SCALE²);
* m is right, and y is correlated noise: a stationary AR(1) process with mean zero and the correlation from
  CORRELATIONS that fits the data best,

each with σ integrated out under its right Haar prior 1/σ, so only ratios between the values count. This is
the scale-invariant mixture of Lai (1976), "On confidence sequences", Ann. Statist. 4(2), in the form of Wang and
Ramdas (2024), "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance",
Sequential Analysis 44(1); dividing by the best-fitting null makes it valid for every correlation of the grid:
Wasserman, Ramdas and Balakrishnan (2020), "Universal inference", PNAS 117(29). By Ville's inequality the chance that
the true mean is ever ruled out, at any of all rounds, is at most 1 - confidence. With Gaussian noise this holds for
any number of rounds; for heavier tails benchmarks/wrong_verdicts.py shows it by simulation.

Correlation is allowed for because slow changes (room temperature, a neighbour's job) make successive rounds alike. The
random order of arms within a round removes only periodic effects.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

# Lag-one correlations between rounds for which the interval is valid.
CORRELATIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
# Expected distance of a mean from a bound, in standard deviations of a round. Any value is valid; 3 decides soonest at
# the margins of benchmarks/wrong_verdicts.py.
EFFECT_SCALE = 3.0


class _Parabolas(NamedTuple):
    """Sums of squares of filtered series shifted by s: squares - 2·s·products + s²·weights, all ≥ 0."""

    squares: FloatArray
    products: FloatArray
    weights: FloatArray

    def at(self, shifts: FloatArray) -> FloatArray:
        """The sums."""
        return np.asarray(self.squares - 2 * shifts * self.products + shifts**2 * self.weights)


class EProcesses:
    """Evidence of series of rounds against candidate means.

    With s = m - mean of the values and σ integrated out, the likelihood of each explanation is a sum of squares, a
    parabola in s, to the power of -n/2. The evidence against m is the ratio of the parabolas to the power of n/2.

    Args:
        values: one row for each series, in the order of the rounds, (series, rounds).

    Attributes:
        centres: means of the series, (series,).

    Raises:
        ValueError: no rounds, or a value that is not finite.
    """

    def __init__(self, values: FloatArray) -> None:
        if not values.shape[1] or not np.isfinite(values).all():
            raise ValueError(f"{values.shape[1]} rounds, not all finite; expected at least one, all finite")
        self._n = values.shape[1]
        # Centred, because sums of squares of nearly equal values would lose precision; the mean of equals is exact.
        self.centres: FloatArray = values[:, 0] + (values - values[:, :1]).mean(axis=1)
        residuals = values - self.centres[:, np.newaxis]
        # m is right: (correlations, series).
        right = zip(*(self._right(residuals, one) for one in CORRELATIONS), strict=True)
        self._this_mean = _Parabolas(*map(np.stack, right))
        # The values have another mean: (series,).
        spread = 1 + EFFECT_SCALE**2 * self._n
        squares = (residuals**2).sum(axis=1)
        self._other_mean = _Parabolas(squares, np.zeros_like(squares), np.array([self._n / spread]))
        self._penalty = 0.5 * math.log(spread)

    def _right(self, residuals: FloatArray, correlation: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The parabola of one correlation, divided by det(filter)^(2/n)."""
        filtered, ones, first = _whitened(residuals, correlation)
        scale = first ** (-2 / self._n)
        return (
            scale * (filtered**2).sum(axis=1),
            scale * (filtered * ones).sum(axis=1),  # not `@`, which adds in another order for other series beside it
            np.array([scale * (ones**2).sum()]),
        )

    def log_evidence(self, means: FloatArray) -> FloatArray:
        """Natural logarithm of the e-value of each series against its own mean; -inf if all values equal it.

        Args:
            means: (series,); of a single series any number of means.
        """
        shifts = means - self.centres
        this_mean, other_mean = self._this_mean.at(shifts).min(axis=0), self._other_mean.at(shifts)
        is_told = (other_mean > 0) & (this_mean > 0)
        ratio = np.where(is_told, this_mean, 1.0) / np.where(is_told, other_mean, 1.0)
        return np.where(is_told, self._n / 2 * np.log(ratio) - self._penalty, -np.inf)

    def intervals(self, confidence: float) -> FloatArray:
        """Smallest and largest mean that is not ruled out.

        The means that one correlation does not rule out lie between the two zeros of a parabola: that of the
        correlation less so many times that of another mean as the evidence needs.

        Returns:
            (series, 2); NaN if there are too few rounds to rule out any mean.

        Raises:
            ValueError: confidence outside 0 … 1.
        """
        if not 0 < confidence < 1:
            raise ValueError(f"confidence {confidence}; expected more than 0 and less than 1")
        needed = math.exp(2 / self._n * (self._penalty - math.log(1 - confidence)))
        a, b, c = (this - needed * other for this, other in zip(self._this_mean, self._other_mean, strict=True))
        if (c <= 0).any():  # the farthest means are not ruled out
            return np.full((len(self.centres), 2), np.nan)
        with np.errstate(invalid="ignore"):  # a correlation without zeros rules out all means
            reach = np.sqrt(b**2 - a * c)
        # The mean of the values, s = 0, is never ruled out.
        low, high = np.fmin.reduce((b - reach) / c, initial=0.0), np.fmax.reduce((b + reach) / c, initial=0.0)
        return np.stack([self.centres + low, self.centres + high], axis=1)


def _whitened(values: FloatArray, correlation: float) -> tuple[FloatArray, FloatArray, float]:
    """Values, and ones, after a filter that whitens AR(1) noise of one correlation; and the filter's determinant."""
    first = math.sqrt(1 - correlation**2)
    filtered, ones = values.copy(), np.full(values.shape[-1], 1 - correlation)
    filtered[..., 1:] -= correlation * values[..., :-1]
    filtered[..., 0] *= first
    ones[0] = first
    return filtered, ones, first
