"""The correlation between rounds is found without bias, apart from drifts, and said where it is too large."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ddpscale.judge.steadiness import are_beyond_the_method, lag_one_correlations
from pytest_ddpscale.simulate.round_noise import RoundNoise
from tests.rows import rows


def series(correlation: float, rounds: int, count: int = 4000) -> np.ndarray:
    return RoundNoise(0.01, correlation).series(np.random.default_rng(5), rounds, count)


@rows("correlation", [0.0, 0.3, 0.5])
def test_the_estimate_is_hardly_biased(correlation: float) -> None:
    assert lag_one_correlations(series(correlation, 32)).mean() == pytest.approx(correlation, abs=0.05)


def test_a_drift_is_no_correlation() -> None:
    ramps = series(0.0, 32) + np.linspace(0, 0.1, 32)
    assert lag_one_correlations(ramps) == pytest.approx(lag_one_correlations(series(0.0, 32)))


def test_it_is_the_same_in_other_units() -> None:
    values = series(0.3, 16, 5)
    assert lag_one_correlations(100 - 1000 * values) == pytest.approx(lag_one_correlations(values))


def test_equal_values_and_straight_lines_have_none() -> None:
    found = lag_one_correlations(np.array([[0.1] * 12, [0.1 * i for i in range(12)]]))
    assert np.isnan(found).all()
    assert not are_beyond_the_method(found, 12).any()


@rows("rounds", [8, 16, 32])
@rows(("correlation", "most"), [(0.0, 0.005), (0.3, 0.02), (0.5, 0.08)])
def test_what_the_interval_allows_for_is_seldom_taken_for_more(rounds: int, correlation: float, most: float) -> None:
    assert are_beyond_the_method(lag_one_correlations(series(correlation, rounds)), rounds).mean() <= most


def test_what_is_far_beyond_is_found_in_most_series_of_32_rounds() -> None:
    assert are_beyond_the_method(lag_one_correlations(series(0.9, 32)), 32).mean() > 0.6
