"""Intervals are the published ones, and hold as often as they say."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.judge.intervals import (
    Estimate,
    ValueChange,
    change_between,
    geometric_mean_estimate,
    mean_estimate,
    single_sample_estimate,
    t_quantile,
)
from tests.rows import rows

RATES = st.lists(st.floats(1e-3, 1e5), min_size=2, max_size=12)


@rows(
    ("probability", "degrees", "published"),
    [
        (0.95, 1, 6.314), (0.95, 2, 2.920), (0.95, 5, 2.015), (0.95, 10, 1.812), (0.95, 30, 1.697),
        (0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 3, 3.182), (0.975, 4, 2.776), (0.975, 5, 2.571),
        (0.975, 6, 2.447), (0.975, 7, 2.365), (0.975, 8, 2.306), (0.975, 10, 2.228), (0.975, 11, 2.201),
        (0.975, 20, 2.086), (0.975, 30, 2.042), (0.975, 60, 2.000), (0.975, 120, 1.980),
        (0.995, 1, 63.657), (0.995, 4, 4.604), (0.995, 5, 4.032), (0.995, 10, 3.169), (0.995, 30, 2.750),
        (0.9995, 4, 8.610), (0.9995, 5, 6.869), (0.9995, 30, 3.646),
    ],
)  # fmt: skip
def test_t_quantile_is_that_of_the_tables(probability: float, degrees: int, published: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(published, abs=6e-4)


@rows(("probability", "degrees"), [(0.49, 3), (1.0, 3), (math.nan, 3), (0.9, 0), (0.9, -1)])
def test_a_quantile_that_does_not_exist_is_refused(probability: float, degrees: int) -> None:
    with pytest.raises(ValueError, match=r"expected 0\.5 <= probability < 1, degrees >= 1"):
        t_quantile(probability, degrees)


def test_mean_and_interval_of_five_values() -> None:
    estimate = mean_estimate([10.0, 11.0, 12.0, 13.0, 14.0], 0.95)
    reach = 2.7764451 * math.sqrt(2.5 / 5)
    assert estimate.value == pytest.approx(12.0)
    assert estimate.interval == pytest.approx((12 - reach, 12 + reach))


def test_values_without_spread_leave_an_interval_of_no_width() -> None:
    assert mean_estimate([2.0] * 5, 0.95).interval == (2.0, 2.0)


@rows("values", [[], [1.0], [1.0, math.nan], [1.0, math.inf], [-math.inf, 1.0]])
def test_mean_of_too_little_or_of_no_numbers_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="expected at least 2"):
        mean_estimate(values, 0.95)


@rows("bad", [0.0, -1.0, math.nan])
def test_geometric_mean_of_what_is_not_positive_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="expected positive values"):
        geometric_mean_estimate([1.0, bad, 2.0], 0.95)


def test_geometric_mean_is_the_nth_root_of_the_product() -> None:
    assert geometric_mean_estimate([1.0, 2.0, 4.0], 0.95).value == pytest.approx(2.0)


@given(RATES)
def test_geometric_interval_of_reciprocals_is_the_reciprocal_interval(values: list[float]) -> None:
    estimate = geometric_mean_estimate(values, 0.95)
    mirrored = geometric_mean_estimate([1 / value for value in values], 0.95)
    low, high = estimate.interval
    assert mirrored.value == pytest.approx(1 / estimate.value, rel=1e-9)
    # A huge interval multiplies the rounding of a quantile; its logarithm does not.
    logs = [math.log(end) for end in mirrored.interval]
    assert logs == pytest.approx([-math.log(high), -math.log(low)], rel=1e-9, abs=1e-9)


@given(RATES)
def test_higher_confidence_never_narrows_an_interval(values: list[float]) -> None:
    (low, high), (lower, higher) = (mean_estimate(values, confidence).interval for confidence in (0.9, 0.99))
    assert lower <= low <= high <= higher


def test_single_sample_has_the_normal_interval_of_its_logarithm() -> None:
    estimate = single_sample_estimate(1000.0, 0.01, 0.95)
    assert estimate.value == 1000.0
    assert estimate.interval == pytest.approx((1000 * math.exp(-0.0195996), 1000 * math.exp(0.0195996)), rel=1e-6)


@rows(("rounds", "confidence"), [(5, 0.95), (8, 0.95), (5, 0.8)])
def test_the_interval_holds_the_truth_as_often_as_it_says(rounds: int, confidence: float) -> None:
    noise = random.Random(20260301)
    trials = 2000
    held = 0
    for _ in range(trials):
        low, high = mean_estimate([noise.gauss(3.0, 0.5) for _ in range(rounds)], confidence).interval
        held += low <= 3.0 <= high
    # Four standard errors of the share itself.
    assert held / trials == pytest.approx(confidence, abs=4 * math.sqrt(confidence * (1 - confidence) / trials))


def test_a_difference_has_the_root_of_both_squares_on_each_side() -> None:
    a, b = Estimate(10.0, (10.0 - 4.0, 10.0 + 3.0)), Estimate(12.0, (12.0 - 4.0, 12.0 + 3.0))
    assert change_between(a, b, by_factors=False) == pytest.approx((2.0, 2.0 - 5.0, 2.0 + 5.0))


def test_a_ratio_is_the_difference_of_logarithms() -> None:
    a, b = Estimate(100.0, (98.0, 102.0)), Estimate(90.0, (89.0, 91.0))
    change = change_between(a, b, by_factors=True)
    reach = math.hypot(math.log(90 / 89), math.log(102 / 100))
    assert change.size == pytest.approx(-0.1)
    assert change.low == pytest.approx(0.9 * math.exp(-reach) - 1)


def test_of_two_equal_values_without_an_interval_nothing_changed() -> None:
    one = Estimate(5.0, (5.0, 5.0))
    assert change_between(one, one, by_factors=True) == (0.0, 0.0, 0.0)


@rows(
    ("low", "high", "is_shown"),
    [(-0.1, 0.1, False), (0.0005, 0.01, False), (0.002, 0.01, True), (-0.01, -0.002, True), (-0.01, -0.0005, False)],
)
def test_a_change_is_shown_beyond_a_tenth_of_a_per_cent(low: float, high: float, is_shown: bool) -> None:
    assert ValueChange((low + high) / 2, low, high).is_shown == is_shown
