"""Confidence intervals of means, and of the difference of a value between two runs.

In a difference each value has its own interval from its rounds. They are combined by the method of variance
estimates recovery (Zou and Donner, 2008, "Construction of confidence limits about effect measures: a general approach",
Statistics in Medicine 27): with values a and b, limits l and u,

    low = b - a - √((b - l_b)² + (u_a - a)²)        high = b - a + √((u_b - b)² + (a - l_a)²)

If values err by factors, a and b are logarithms, and the result is an interval of the ratio b ÷ a.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

# 0.1 %: the same limit as for drifts and for differences between repeated runs; smaller changes are not reported.
NEGLIGIBLE_CHANGE = 0.001


class Estimate(NamedTuple):
    """A value with the lower and upper limit of its interval."""

    value: float
    interval: tuple[float, float]


def mean_estimate(values: Sequence[float], confidence: float) -> Estimate:
    """Mean and two-sided Student-t interval of independent rounds (Student 1908), one value per round.

    Raises:
        ValueError: fewer than two values, or one that is not finite.
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        raise ValueError(
            f"{len(values)} values, {sum(map(math.isfinite, values))} of them finite; expected at least 2, all finite"
        )
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / math.sqrt(len(values))
    reach = t_quantile(0.5 + confidence / 2, len(values) - 1) * error
    return Estimate(mean, (mean - reach, mean + reach))


def geometric_mean_estimate(values: Sequence[float], confidence: float) -> Estimate:
    """`mean_estimate` of the logarithms: the right mean for ratios and rates.

    Raises:
        ValueError: raised by `mean_estimate`, or a value is not positive.
    """
    if any(not value > 0 for value in values):
        raise ValueError(f"{min(values)} among the values; expected positive values")
    logs = mean_estimate([math.log(value) for value in values], confidence)
    return Estimate(math.exp(logs.value), (math.exp(logs.interval[0]), math.exp(logs.interval[1])))


def single_sample_estimate(value: float, relative_error: float, confidence: float) -> Estimate:
    """Normal interval, in logarithms, of one long sample with a known relative standard error."""
    reach = statistics.NormalDist().inv_cdf(0.5 + confidence / 2) * relative_error
    return Estimate(value, (value * math.exp(-reach), value * math.exp(reach)))


@cache
def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t distribution, for probabilities from 0.5 up.

    Raises:
        ValueError: probability outside 0.5 … 1, or fewer than one degree of freedom.
    """
    if not 0.5 <= probability < 1 or degrees < 1:
        raise ValueError(f"probability {probability}, degrees {degrees}; expected 0.5 <= probability < 1, degrees >= 1")
    low, high = 0.0, 1.0
    while _t_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def _t_cdf(t: float, degrees: int) -> float:
    """P(T ≤ t) for t ≥ 0 and integer degrees of freedom: Abramowitz & Stegun 26.7.3 and 26.7.4."""
    theta = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(theta), math.cos(theta)
    if degrees % 2:
        total, term = 0.0, cosine
        for k in range(1, (degrees - 1) // 2 + 1):
            total += term
            term *= cosine * cosine * (2 * k) / (2 * k + 1)
        central = 2 / math.pi * (theta + sine * total)
    else:
        total, term = 0.0, 1.0
        for k in range(1, degrees // 2 + 1):
            total += term
            term *= cosine * cosine * (2 * k - 1) / (2 * k)
        central = sine * total
    return 0.5 + central / 2


class ValueChange(NamedTuple):
    """Change of a value from run A to run B, with its limits: B ÷ A - 1, or B - A for shares of time or memory."""

    size: float
    low: float
    high: float

    @property
    def is_shown(self) -> bool:
        """Whether the whole interval lies beyond `NEGLIGIBLE_CHANGE` on one side of 0."""
        return self.low > NEGLIGIBLE_CHANGE or self.high < -NEGLIGIBLE_CHANGE


def change_between(a: Estimate, b: Estimate, *, by_factors: bool) -> ValueChange:
    """The change from `a` to `b`; with `by_factors`, values and limits must be positive."""
    (one, (one_low, one_high)), (other, (low, high)) = a, b
    if by_factors:
        one, one_low, one_high, other, low, high = map(math.log, (one, one_low, one_high, other, low, high))
    size = other - one
    change = size, size - math.hypot(other - low, one_high - one), size + math.hypot(high - other, one - one_low)
    return ValueChange(*map(math.expm1, change)) if by_factors else ValueChange(*change)
