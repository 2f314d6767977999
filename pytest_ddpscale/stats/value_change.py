"""How far the same value of two runs differs, with an interval.

Each value has an interval of its own from its rounds or launches. The interval of their difference comes from those two
by the method of variance estimates recovery (Zou and Donner, 2008, "Construction of confidence limits about effect
measures: a general approach", Statistics in Medicine 27): with values a and b, limits l and u,

    low = b - a - √((b - l_b)² + (u_a - a)²)        high = b - a + √((u_b - b)² + (a - l_a)²)

of logarithms where values err by factors, so that it is one of the ratio b ÷ a.
"""

from __future__ import annotations

import math
from typing import NamedTuple

# Less is told of no machine: a tenth of a per cent, as of what counts as a drift and of what repeated runs differ by.
NEGLIGIBLE_CHANGE = 0.001


class ComparedValue(NamedTuple):
    """A value with its interval, in the metric's unit."""

    value: float
    low: float
    high: float


class ValueChange(NamedTuple):
    """From one run to another.

    Attributes:
        size: B ÷ A - 1; of shares of time or memory B - A.
        low: lower limit of that.
        high: upper limit.
    """

    size: float
    low: float
    high: float

    @property
    def is_shown(self) -> bool:
        """Whether the whole interval lies on one side of nothing, and not just beside it."""
        return self.low > NEGLIGIBLE_CHANGE or self.high < -NEGLIGIBLE_CHANGE


def change_between(a: ComparedValue, b: ComparedValue, *, by_factors: bool) -> ValueChange:
    """From `a` to `b`; values that err by factors are positive, and so are their limits."""
    if not by_factors:
        return ValueChange(*_difference(a, b))
    return ValueChange(
        *map(math.expm1, _difference(ComparedValue(*map(math.log, a)), ComparedValue(*map(math.log, b))))
    )


def _difference(a: ComparedValue, b: ComparedValue) -> tuple[float, float, float]:
    size = b.value - a.value
    low = size - math.hypot(b.value - b.low, a.high - a.value)
    return size, low, size + math.hypot(b.high - b.value, a.value - a.low)
