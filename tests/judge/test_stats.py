"""Values of rounds become values with intervals that hold at all rounds together and say what is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.judge.stats import (
    CORRELATIONS,
    estimate,
    estimate_of,
    find_drifts,
    intervals,
    is_stable,
    lag_one_correlations,
    t_quantile,
    widening,
)
from pytest_ddpscale.plan.metric_catalogue import Scale
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.simulate.machine import Noise
from pytest_ddpscale.util.arrays import FloatArray
from tests.builders.judged import CONFIDENCE
from tests.rows import rows

FALLING = [1.0 - 0.01 * i for i in range(9)]
WAVES = [1 + 0.03 * math.sin(2 * math.pi * i / 16) for i in range(32)]
VALUES = [0.95, 0.96, 0.955, 0.949, 0.958, 0.951, 0.957, 0.952, 0.954]
SERIES = st.lists(st.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 6)), min_size=5, max_size=30)


def noise(correlation: float, rounds: int, count: int = 4000) -> FloatArray:
    return Noise(0.01, correlation=correlation).of_rounds(np.random.default_rng(5), rounds, count)


def interval_of(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    _, low, high = intervals(np.array([values]), confidence)[:, 0].tolist()
    return low, high


@rows("confidence", [0.5, 0.95, 0.9999])
@rows("correlation", [0.0, 0.9])
@rows("rounds", [8, 12, 30])
def test_limits_are_the_means_where_the_ratio_of_two_densities_is_enough(
    rounds: int, correlation: float, confidence: float
) -> None:
    """Of Gaussian vectors with their covariances, σ integrated out: the definition, without any shortcut."""
    drawn, lags = np.random.default_rng(0).standard_normal((20, rounds)), np.arange(rounds)
    series = 100 + drawn + correlation * np.cumsum(drawn, axis=1)

    def density(values: FloatArray, covariance: FloatArray) -> float:
        square = values @ np.linalg.solve(covariance, values)
        return float(-0.5 * np.linalg.slogdet(covariance)[1] - rounds / 2 * math.log(square))

    def evidence(values: FloatArray) -> float:
        this_mean = max(density(values, rho ** np.abs(np.subtract.outer(lags, lags))) for rho in CORRELATIONS)
        return density(values, np.eye(rounds) + 9.0 * np.ones((rounds, rounds))) - this_mean

    for values, centre, *limits in zip(series, *intervals(series, confidence), strict=True):
        for limit in limits:
            assert evidence(values - limit) == pytest.approx(-math.log(1 - confidence))
            assert evidence(values - limit + 1e-3 * (limit - centre)) < -math.log(1 - confidence)


@given(SERIES)
def test_intervals_hold_the_mean_and_are_wider_at_more_confidence(values: list[float]) -> None:
    (low, high), (lowest, highest) = interval_of(values, 0.8), interval_of(values)
    slack = 1e-9 * max(1.0, *map(abs, values))
    assert low - slack <= sum(values) / len(values) <= high + slack
    assert lowest <= low
    assert high <= highest


def test_intervals_of_equal_values_and_of_too_few() -> None:
    assert interval_of([0.1] * 12) == (0.1, 0.1)
    assert interval_of([0.1 + 1e-17 * (number % 3) for number in range(9)]) == pytest.approx((0.1, 0.1), rel=1e-14)
    assert np.isnan([interval_of([5.0], 0.9), interval_of([0.5] * 5, 0.9999)]).all()
    assert interval_of([0.5] * 12, 0.9999) == (0.5, 0.5)


def drifts(*series: Sequence[float] | FloatArray, negligible: float = 0.0) -> list[bool]:
    found: list[bool] = (~np.isnan(find_drifts(np.array(series), negligible)[0])).tolist()
    return found


@rows("correlation", [0.0, 0.5])
def test_noise_is_seldom_taken_for_drift_and_a_ramp_seldom_for_noise(correlation: float) -> None:
    assert sum(drifts(*noise(correlation, 12, 500))) <= 20
    assert sum(drifts(*(noise(correlation, 12, 100) + np.linspace(0, 0.1, 12)))) >= 95


@rows(
    ("values", "negligible", "drift"),
    [
        (np.arange(9.0), 0.0, True),
        (np.full(9, 0.1), 0.0, False),
        ([0.7] * 7 + [np.nextafter(0.7, 1.0)] * 2, 0.0, False),
        (1.0 + 0.0001 * np.arange(9), 0.0, True),
        (1.0 + 0.0001 * np.arange(9), 0.001, False),
        ([1.0, 1.01, 0.99, 1.0, 0.7, 1.0, 0.99, 1.01, 1.0], 0.0, False),  # a hiccup
    ],
)
def test_a_drift_is_more_than_noise_and_rounding(values: Sequence[float], negligible: float, drift: bool) -> None:
    assert drifts(values, negligible=negligible) == [drift]


@rows("correlation", [0.0, 0.3, 0.5])
def test_the_estimated_correlation_is_hardly_biased(correlation: float) -> None:
    found = lag_one_correlations(noise(correlation, 32))
    assert found.mean() == pytest.approx(correlation, abs=0.05)
    assert lag_one_correlations(100 - 1000 * noise(correlation, 32)) == pytest.approx(found), "whatever the unit"
    assert lag_one_correlations(noise(correlation, 32) + np.linspace(0, 0.1, 32)) == pytest.approx(found), "nor drift"


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
    assert widening(np.array([0.8]), 8)[0] > 4
    assert widening(np.array([0.8, *[0.0] * 55]), 8, 56).tolist() == [1.0] * 56
    assert widening(np.array([0.98, *[0.0] * 55]), 8, 56)[0] > 4
    assert (widening(np.full(56, 0.7), 8, 56) > 1.2).all()
    assert (widening(np.full(56, 0.7), 8, 56) < 2).all(), "56 places tell more than one"


@rows("rounds", [8, 16, 32])
@rows(("correlation", "most"), [(0.0, 0.08), (0.3, 0.25), (0.5, 0.55)])
def test_what_the_interval_allows_for_seldom_widens_it(rounds: int, correlation: float, most: float) -> None:
    factors = widening(lag_one_correlations(noise(correlation, rounds)), rounds)
    assert (factors > 1).mean() <= most
    assert (factors >= 1).all()


NOISE = np.array([0.2, -1.0, 0.7, -0.1, 1.1, -0.6, -0.9, 0.6])  # mean 0, hardly a slope
LOW = interval_of(NOISE.tolist(), CONFIDENCE)[0]
NEAR = NOISE.copy()
NEAR[3] = -30


@rows("side", [1, -1])
@rows(
    ("values", "limit", "bound", "holds", "far"),
    [
        # From 0 down by 0.001 a round: -0.007 now, -0.015 in the 16th, -0.031 in the 32nd, give or take the noise.
        (1e-5 * NOISE - 0.001 * np.arange(8), 32, -0.030, False, False),
        (1e-5 * NOISE - 0.001 * np.arange(8), 32, -0.033, True, False),
        (1e-5 * NOISE - 0.001 * np.arange(8), 16, -0.029, True, False),
        (3e-4 * NOISE + 0.001 * np.arange(8), 32, -0.01, True, False),  # away from the bound
        (0.0005 * NOISE, 32, -0.01, True, False),
        (0.005 * NOISE, 32, -0.01, False, False),  # the noise may hide a trend
        (0.005 * NOISE - 0.001 * np.arange(8), 32, -0.01, False, False),
        (0.005 * NOISE - 0.001 * np.arange(8), 8, -0.01, True, False),  # nothing is to come
        (0.005 * NOISE - 0.001 * np.arange(8), 0, -0.01, True, False),
        (np.full(8, 0.1), 32, 0.1, True, False),  # nothing varies
        (NOISE - 1.05 * LOW, 9, 0.0, False, True),  # which only just holds: one odd round overturns it
        (NOISE + 20.0, 9, 0.0, True, True),
        (NOISE - 20.0, 9, 0.0, False, False),  # beyond on the other side
        # The bound is 0.5 away from -0.15; from 0 down to -0.14 after 8 rounds and -0.62 after 32.
        (1e-4 * NOISE - 0.02 * np.arange(8), 8, -0.65, True, True),
        (1e-4 * NOISE - 0.02 * np.arange(8), 32, -0.65, True, False),
        (1e-4 * NOISE + 0.02 * np.arange(8), 32, -0.65, True, True),
        (0.01 * NEAR, 8, -0.65, True, False),  # one round is near
    ],
)
def test_a_verdict_lasts_and_is_far(
    side: int, values: FloatArray, limit: int, bound: float, holds: bool, far: bool
) -> None:
    series, sides, line = side * values[np.newaxis], np.array([side]), np.array([side * (bound + 0.5)])
    found = is_stable(series, limit, side * bound, line, sides, np.array([CONFIDENCE]))
    assert [bool(one[0]) for one in found] == [holds, far]


@rows("scale", ["factors", "differences"])
def test_the_interval_is_that_of_logarithms_or_of_values(scale: Scale) -> None:
    to, back = (np.log, np.exp) if scale == "factors" else (np.array, np.asarray)
    found = estimate_of(VALUES, scale, 0.95)
    assert found.value == pytest.approx(back(to(VALUES).mean()))
    assert found.interval == pytest.approx(tuple(back(np.array(interval_of(to(VALUES).tolist())))))


def test_the_fewest_rounds_may_be_too_few_for_the_confidence_asked_for() -> None:
    found = estimate(np.array([[1.0] * FEWEST_ROUNDS]), "factors", 1 - 1e-9)
    assert found.estimate_at(0).interval is None
    assert found.why(0, str(found.against(0.5, 1)[1][0])) == because("unsure", FEWEST_ROUNDS, 1 - 1e-9)


@rows("scale", ["factors", "differences"])
def test_of_many_places_each_has_its_own(scale: Scale) -> None:
    """Whatever the others are, and however many rounds they have."""
    series = [[2.5] * 9, VALUES, FALLING, WAVES[:12], VALUES[:3], [0.0, *VALUES[1:]], [math.inf, *VALUES[1:]], []]
    table = np.full((len(series), 12), math.nan)
    for row, values in enumerate(series):
        table[row, 12 - len(values) :] = values
    places = estimate(table, scale, 0.95, 32)
    assert [str(places.estimate_at(row)) for row in range(8)] == [str(estimate_of(one, scale, 0.95)) for one in series]
    impossible = [5, 6] if scale == "factors" else [6]
    codes, why = places.against(0.01, 1)
    assert codes[:3].tolist() == [1, 1, 1]
    assert [row for row in range(8) if why[row] == "impossible"] == impossible
    assert [row for row in range(8) if why[row] == "few"] == [4, 7]


RAMP = [100.0 * 0.999**number for number in range(8)]
# Of eight rounds: 31 with an interval of 16 … 63, correlation 0.95. So a busy CPU looks.
BIG_WAVES = [29.0 * math.exp(0.3 * math.sin(2 * math.pi * (number + 0.5) / 6)) for number in range(8)]
SLOW_WAVES = [100.0 * (1 + 0.03 * math.sin(2 * math.pi * number / 16)) for number in range(32)]


@rows(
    ("values", "bound", "limit", "outcome", "reason"),
    [
        (RAMP, 98.5, 32, "inconclusive", "not final after 8 of 32 rounds: a trend within the noise or one odd round"),
        (RAMP, 98.5, 8, "passed", "the whole interval keeps the bound"),
        (RAMP, 95.0, 32, "passed", "the whole interval keeps the bound"),
        ([200.0 - value for value in RAMP], 102.0, 32, "inconclusive", "not final after 8 of 32 rounds"),
        ([200.0 - value for value in RAMP], 105.0, 32, "failed", "the whole interval misses the bound"),
        (SLOW_WAVES, 93.0, 32, "inconclusive", "the bound lies inside the interval"),
        (SLOW_WAVES, 100.0, 32, "inconclusive", "the bound lies inside the interval"),
        (SLOW_WAVES, 107.0, 32, "inconclusive", "the bound lies inside the interval"),
        # They lie between 21 and 39.
        (BIG_WAVES, 5.0, 8, "passed", "no round comes within a factor of 2 of the bound"),
        (BIG_WAVES, 12.0, 8, "inconclusive", "the bound lies inside the interval"),
        (BIG_WAVES, 60.0, 8, "inconclusive", "the bound lies inside the interval"),
        (BIG_WAVES, 80.0, 8, "failed", "no round comes within a factor of 2 of the bound"),
        ([100.0 * 0.9**number for number in range(8)], 20.0, 8, "passed", ""),
        ([100.0 * 0.9**number for number in range(8)], 20.0, 32, "inconclusive", ""),
        ([100.0, 0.01] * 4, 20.0, 8, "inconclusive", "8 rounds vary too much for an interval"),
    ],
)  # fmt: skip
def test_the_bound_decides(values: list[float], bound: float, limit: int, outcome: str, reason: str) -> None:
    found = estimate(np.array([values]), "factors", CONFIDENCE, limit)
    codes, why = found.against(bound, 1)
    assert codes.tolist() == [{"passed": 1, "failed": -1, "inconclusive": 0}[outcome]]
    assert say(found.why(0, str(why[0]))).startswith(reason)


def test_a_ratio_and_its_inverse_have_inverse_intervals() -> None:
    found, inverse = (estimate_of([value**sign for value in BIG_WAVES], "factors", CONFIDENCE) for sign in (1, -1))
    assert found.interval is not None
    low, high = found.interval
    assert inverse.interval == pytest.approx((1 / high, 1 / low))


@rows(("rho", "most"), [(0.7, 0.05), (0.9, 0.10)])
def test_factors_that_vary_much_are_covered_as_those_that_vary_little(rho: float, most: float) -> None:
    """Of 300 runs of 32 rounds; that 0.9 is beyond what the interval allows for costs the same at any noise."""
    missed = []
    for sd in (0.003, 0.3):
        logs = Noise(sd, correlation=rho).of_rounds(np.random.default_rng(20261123), 32, 300)
        found = estimate(np.exp(logs), "factors", CONFIDENCE, alike=1)
        missed.append(int((~((found.low <= 1) & (found.high >= 1)) & ~np.isnan(found.low)).sum()))
    assert missed[0] == missed[1]
    assert missed[0] <= most * 300


@rows(
    ("probability", "degrees", "published"),
    [
        (0.95, 1, 6.314), (0.95, 2, 2.920), (0.95, 5, 2.015), (0.95, 10, 1.812), (0.95, 30, 1.697),
        (0.975, 1, 12.706), (0.975, 3, 3.182), (0.975, 4, 2.776), (0.975, 7, 2.365), (0.975, 120, 1.980),
        (0.995, 1, 63.657), (0.995, 4, 4.604), (0.995, 30, 2.750), (0.9995, 4, 8.610), (0.9995, 30, 3.646),
    ],
)  # fmt: skip
def test_t_quantile_is_that_of_the_tables(probability: float, degrees: int, published: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(published, abs=6e-4)
