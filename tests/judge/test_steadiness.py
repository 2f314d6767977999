"""Drift is seen beyond the noise, and noise is not drift."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from pytest_ddpscale.judge.sequential import EProcesses, FloatArray
from pytest_ddpscale.judge.steadiness import (
    are_far,
    are_final,
    find_drifts,
    lag_one_correlations,
    survive_a_hiccup,
    survive_a_trend,
    widening,
)
from pytest_ddpscale.simulate.round_noise import RoundNoise
from tests.rows import rows


def noisy(seed: int, rounds: int, correlation: float = 0.0) -> list[float]:
    chance = random.Random(seed)
    values = [chance.gauss(0, 1)]
    while len(values) < rounds:
        values.append(correlation * values[-1] + (1 - correlation**2) ** 0.5 * chance.gauss(0, 1))
    return values


def drifts(*series: Sequence[float] | FloatArray, negligible: float = 0.0) -> list[bool]:
    found: list[bool] = find_drifts(np.array(series), negligible).are_seen.tolist()
    return found


@rows("correlation", [0.0, 0.5])
def test_noise_is_seldom_taken_for_drift(correlation: float) -> None:
    assert sum(drifts(*(noisy(seed, 12, correlation) for seed in range(500)))) <= 20


def test_a_ramp_far_beyond_the_noise_is_found() -> None:
    assert sum(drifts(*(np.array(noisy(seed, 12)) + np.linspace(0, 10, 12) for seed in range(100)))) >= 95


def test_its_size_and_where_it_would_go_on_to() -> None:
    drift = find_drifts(np.arange(9.0)[np.newaxis])
    assert [float(one[0]) for one in (drift.changes, drift.lasts, drift.gone_on)] == pytest.approx([6.0, 7.0, 13.0])


def test_four_rounds_have_no_thirds_to_compare() -> None:
    assert drifts([1.0, 2.0, 3.0, 4.0]) == [False]


def test_equal_values_do_not_drift() -> None:
    assert drifts([0.1] * 9, [0.7] * 7 + [np.nextafter(0.7, 1.0)] * 2) == [False, False]


def test_a_change_that_is_negligible_is_no_drift() -> None:
    ramp = [1.0 + 0.0001 * i for i in range(9)]
    assert drifts(ramp) == [True]
    assert drifts(ramp, negligible=0.001) == [False]


def test_one_hiccup_is_no_drift() -> None:
    assert drifts([1.0, 1.01, 0.99, 1.0, 0.7, 1.0, 0.99, 1.01, 1.0]) == [False]


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
    assert widening(found, 12).tolist() == [1.0, 1.0]


def test_the_less_is_known_of_a_correlation_the_wider_the_interval() -> None:
    """At 0.6 the upper limits are 0.97, 0.91 and 0.85; 0.5 is allowed for."""
    found = [float(widening(np.array([0.6]), rounds)[0]) for rounds in (8, 16, 32)]
    assert found == pytest.approx([4.42, 2.65, 2.02], abs=0.01)
    assert widening(np.array([-0.99, 0.0, 0.49]), 8).tolist() == [1.0, 1.0, 1.0]
    assert (np.diff(widening(np.linspace(-0.99, 0.99, 100), 8)) >= 0).all()


def test_of_many_places_one_is_widened_only_for_what_is_large_among_so_many() -> None:
    one, few = np.array([0.8]), np.array([0.8, *[0.0] * 55])
    assert widening(one, 8)[0] > 4
    assert widening(few, 8, 56).tolist() == [1.0] * 56
    assert widening(np.array([0.98, *[0.0] * 55]), 8, 56)[0] > 4
    assert (widening(np.full(56, 0.7), 8, 56) > 1.2).all()
    assert (widening(np.full(56, 0.7), 8, 56) < 2).all(), "56 places tell more than one"


@rows("rounds", [8, 16, 32])
@rows(("correlation", "most"), [(0.0, 0.08), (0.3, 0.25), (0.5, 0.55)])
def test_what_the_interval_allows_for_seldom_widens_it(rounds: int, correlation: float, most: float) -> None:
    factors = widening(lag_one_correlations(series(correlation, rounds)), rounds)
    assert (factors > 1).mean() <= most
    assert (factors >= 1).all()


CONFIDENCE = 0.95
NOISE = np.array([0.2, -1.0, 0.7, -0.1, 1.1, -0.6, -0.9, 0.6])  # mean 0, hardly a slope


def falling(by: float, sd: float) -> np.ndarray:
    """From 0 down, evenly, in each of eight rounds."""
    return sd * NOISE - by * np.arange(8)


@rows("side", [1, -1])
def test_a_trend_is_followed_to_the_last_round(side: int) -> None:
    """Down by 0.001 a round from 0: -0.007 now, -0.031 in the last of 32 rounds, give or take the noise."""
    ramp = side * np.array([falling(0.001, 0.00001)])
    bounds = {bound: bool(survive_a_trend(ramp, 32, side * bound, side)[0]) for bound in (-0.029, -0.030, -0.033)}
    assert bounds == {-0.029: False, -0.030: False, -0.033: True}
    assert survive_a_trend(ramp, 16, -0.029 * side, side).all(), "by the sixteenth round it comes to -0.015"


def test_a_trend_away_from_the_bound_does_no_harm() -> None:
    assert survive_a_trend(-np.array([falling(0.001, 0.0003)]), 32, -0.001, 1).all()


def test_a_trend_that_the_noise_may_hide_counts() -> None:
    quiet, loud = np.array([falling(0, 0.0005)]), np.array([falling(0, 0.005)])
    assert survive_a_trend(quiet, 32, -0.01, 1).all()
    assert not survive_a_trend(loud, 32, -0.01, 1).any()


@rows("side", [1, -1])
@rows(("by", "limit", "far"), [(0.0, 32, True), (0.02, 8, True), (0.02, 32, False), (-0.02, 32, True)])
def test_far_are_rounds_all_of_which_are_and_would_be_if_they_drifted_on(
    side: int, by: float, limit: int, far: bool
) -> None:
    """From 0 down to -0.14 after 8 rounds and -0.62 after 32; the bound is 0.5 away from -0.15."""
    series = side * np.array([falling(by, 0.0001)])
    assert are_far(series, limit, -0.65 * side, side, 0.5).tolist() == [far]


def test_one_near_round_is_enough_to_be_near() -> None:
    series = np.array([falling(0, 0.01)])
    series[0, 3] = -0.3
    assert not are_far(series, 8, -0.65, 1, 0.5).any()


@rows("side", [1, -1])
def test_one_odd_round_overturns_what_only_just_holds(side: int) -> None:
    low = EProcesses(np.array([NOISE])).intervals(CONFIDENCE)[0, 0]
    series = side * np.array([NOISE - 1.05 * low, NOISE + 20.0])
    assert survive_a_hiccup(series, 0.0, side, CONFIDENCE).tolist() == [False, True]


def test_values_on_the_other_side_of_the_bound_do_not_survive() -> None:
    assert not survive_a_hiccup(np.array([NOISE - 20.0]), 0.0, 1, CONFIDENCE).any()


def test_at_the_limit_nothing_is_to_come() -> None:
    shaky = np.array([falling(0.001, 0.005)])
    assert not are_final(shaky, 32, -0.01, 1, CONFIDENCE).any()
    assert are_final(shaky, 8, -0.01, 1, CONFIDENCE).all()
    assert are_final(shaky, 0, -0.01, 1, CONFIDENCE).all()


def test_where_nothing_varies_nothing_is_to_come() -> None:
    assert are_final(np.full((1, 8), 0.1), 32, 0.1, 1, CONFIDENCE).all()
