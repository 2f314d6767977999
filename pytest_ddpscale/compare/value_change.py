"""Change of a value between two runs.

Each value has its own interval from its rounds. They are combined by the method of variance estimates recovery (Zou and
Donner, 2008, "Construction of confidence limits about effect measures: a general approach", Statistics in Medicine 27):
with values a and b, limits l and u,

    low = b - a - √((b - l_b)² + (u_a - a)²)        high = b - a + √((u_b - b)² + (a - l_a)²)

If values err by factors, a and b are logarithms, and the result is an interval of the ratio b ÷ a.
"""

from __future__ import annotations

import math
from typing import NamedTuple

# 0.1 %: the same limit as for drifts and for differences between repeated runs; smaller changes are not reported.
NEGLIGIBLE_CHANGE = 0.001


class ValueInterval(NamedTuple):
    """A value with the lower and upper limit of its interval."""

    value: float
    interval: tuple[float, float]


class ValueChange(NamedTuple):
    """Change of a value from run A to run B, with its limits: B ÷ A - 1, or B - A for shares of time or memory."""

    size: float
    low: float
    high: float

    @property
    def is_shown(self) -> bool:
        """Whether the whole interval lies beyond `NEGLIGIBLE_CHANGE` on one side of 0."""
        return self.low > NEGLIGIBLE_CHANGE or self.high < -NEGLIGIBLE_CHANGE


def change_between(a: ValueInterval, b: ValueInterval, *, by_factors: bool) -> ValueChange:
    """The change from `a` to `b`; with `by_factors`, values and limits must be positive."""
    (one, (one_low, one_high)), (other, (low, high)) = a, b
    if by_factors:
        one, one_low, one_high, other, low, high = map(math.log, (one, one_low, one_high, other, low, high))
    size = other - one
    change = size, size - math.hypot(other - low, one_high - one), size + math.hypot(high - other, one - one_low)
    return ValueChange(*map(math.expm1, change)) if by_factors else ValueChange(*change)
