"""Before the limit of rounds a verdict survives a trend that goes on, and one odd round."""

from __future__ import annotations

import numpy as np

from pytest_ddpscale.judge.sequential import EProcesses
from pytest_ddpscale.judge.steadiness import are_final, survive_a_hiccup, survive_a_trend
from tests.rows import rows

CONFIDENCE = 0.95
NOISE = np.array([0.2, -1.0, 0.7, -0.1, 1.1, -0.6, -0.9, 0.6])  # mean 0, hardly a slope


def series_of(*series: np.ndarray) -> np.ndarray:
    return np.array(series)


def falling(by: float, sd: float) -> np.ndarray:
    """From 0 down, evenly, in each of eight rounds."""
    return sd * NOISE - by * np.arange(8)


@rows("side", [1, -1])
def test_a_trend_is_followed_to_the_last_round(side: int) -> None:
    """Down by 0.001 a round from 0: -0.007 now, -0.031 in the last of 32 rounds, give or take the noise."""
    ramp = side * series_of(falling(0.001, 0.00001))
    bounds = {bound: bool(survive_a_trend(ramp, 32, side * bound, side, 1.0)[0]) for bound in (-0.029, -0.030, -0.033)}
    assert bounds == {-0.029: False, -0.030: False, -0.033: True}
    assert survive_a_trend(ramp, 16, -0.029 * side, side, 1.0).all(), "by the sixteenth round it comes to -0.015"


def test_a_trend_away_from_the_bound_does_no_harm() -> None:
    assert survive_a_trend(-series_of(falling(0.001, 0.0003)), 32, -0.001, 1, 1.0).all()


def test_a_trend_that_the_noise_may_hide_counts() -> None:
    quiet, loud = series_of(falling(0, 0.0005)), series_of(falling(0, 0.005))
    assert survive_a_trend(quiet, 32, -0.01, 1, 1.0).all()
    assert not survive_a_trend(loud, 32, -0.01, 1, 1.0).any()


def test_a_trend_of_less_than_two_per_cent_in_all_rounds_is_not_waited_for() -> None:
    found = {by: bool(survive_a_trend(series_of(falling(by, 1e-5)), 32, -0.001, 1, 1.0)[0]) for by in (0.0005, 0.0007)}
    assert found == {0.0005: True, 0.0007: False}
    assert survive_a_trend(series_of(falling(0.05, 1e-5)), 32, -0.1, 1, 100.0).all(), "two per cent of 100"


@rows("side", [1, -1])
def test_one_odd_round_overturns_what_only_just_holds(side: int) -> None:
    low = EProcesses(series_of(NOISE)).intervals(CONFIDENCE)[0, 0]
    series = side * series_of(NOISE - 1.05 * low, NOISE + 20.0)
    assert survive_a_hiccup(series, 0.0, side, CONFIDENCE).tolist() == [False, True]


def test_values_on_the_other_side_of_the_bound_do_not_survive() -> None:
    assert not survive_a_hiccup(series_of(NOISE - 20.0), 0.0, 1, CONFIDENCE).any()


def test_at_the_limit_nothing_is_to_come() -> None:
    shaky = series_of(falling(0.001, 0.005))
    assert not are_final(shaky, 32, -0.01, 1, CONFIDENCE, 1.0).any()
    assert are_final(shaky, 8, -0.01, 1, CONFIDENCE, 1.0).all()
    assert are_final(shaky, 0, -0.01, 1, CONFIDENCE, 1.0).all()


def test_where_nothing_varies_nothing_is_to_come() -> None:
    assert are_final(np.full((1, 8), 0.1), 32, 0.1, 1, CONFIDENCE, 0.1).all()
