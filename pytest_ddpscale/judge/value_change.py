"""Difference of a value between two runs, with an interval.

Each value has its own interval from its rounds or launches. The interval of the difference combines the two by the
method of variance estimates recovery (Zou and Donner, 2008, "Construction of confidence limits about effect
measures: a general approach", Statistics in Medicine 27): with values a and b, limits l and u,

    low = b - a - √((b - l_b)² + (u_a - a)²)        high = b - a + √((u_b - b)² + (a - l_a)²)

If values err by factors, a and b are logarithms, and the result is an interval of the ratio b ÷ a.
"""

from __future__ import annotations

import math
from typing import NamedTuple

# 0.1 %: the same limit as for drifts and for differences between repeated runs; smaller changes are not reported.
NEGLIGIBLE_CHANGE = 0.001


class ComparedValue(NamedTuple):
    """A value with its interval, in the metric's unit."""

    value: float
    low: float
    high: float


class ValueChange(NamedTuple):
    """Change of a value from run A to run B.

    Attributes:
        size: B ÷ A - 1; for shares of time or memory B - A.
        low: its lower limit.
        high: its upper limit.
    """

    size: float
    low: float
    high: float

    @property
    def is_shown(self) -> bool:
        """Whether the whole interval lies beyond `NEGLIGIBLE_CHANGE` on one side of 0."""
        return self.low > NEGLIGIBLE_CHANGE or self.high < -NEGLIGIBLE_CHANGE


def change_between(a: ComparedValue, b: ComparedValue, *, by_factors: bool) -> ValueChange:
    """The change from `a` to `b`; with `by_factors`, values and limits must be positive."""
    if not by_factors:
        return ValueChange(*_difference(a, b))
    return ValueChange(
        *map(math.expm1, _difference(ComparedValue(*map(math.log, a)), ComparedValue(*map(math.log, b))))
    )


def _difference(a: ComparedValue, b: ComparedValue) -> tuple[float, float, float]:
    size = b.value - a.value
    low = size - math.hypot(b.value - b.low, a.high - a.value)
    return size, low, size + math.hypot(b.high - b.value, a.value - a.low)
