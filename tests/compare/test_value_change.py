"""The change of a value has an interval from both values' intervals."""

from __future__ import annotations

import math

import pytest

from pytest_ddpscale.compare.value_change import Estimate, ValueChange, change_between
from tests.rows import rows


def test_a_difference_has_the_root_of_both_squares_on_each_side() -> None:
    a, b = Estimate(10.0, (10.0 - 4.0, 10.0 + 3.0)), Estimate(12.0, (12.0 - 4.0, 12.0 + 3.0))
    assert change_between(a, b, by_factors=False) == pytest.approx((2.0, 2.0 - 5.0, 2.0 + 5.0))


def test_a_ratio_is_the_difference_of_logarithms() -> None:
    a, b = Estimate(100.0, (98.0, 102.0)), Estimate(90.0, (89.0, 91.0))
    change = change_between(a, b, by_factors=True)
    reach = math.hypot(math.log(90 / 89), math.log(102 / 100))
    assert change.size == pytest.approx(-0.1)
    assert change.low == pytest.approx(0.9 * math.exp(-reach) - 1)


@rows(
    ("low", "high", "is_shown"),
    [(-0.1, 0.1, False), (0.0005, 0.01, False), (0.002, 0.01, True), (-0.01, -0.002, True), (-0.01, -0.0005, False)],
)
def test_a_change_is_shown_beyond_a_tenth_of_a_per_cent(low: float, high: float, is_shown: bool) -> None:
    assert ValueChange((low + high) / 2, low, high).is_shown == is_shown
