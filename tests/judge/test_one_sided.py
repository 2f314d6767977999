"""Evidence against a bound being kept is the least that any mean on its good side leaves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_ddpscale.judge.sequential import EFFECT_SCALE, EProcesses, FloatArray, _least_ratios, largest_log_evidence
from tests.rows import rows

FEWEST = 8


def noise(chance: np.random.Generator, series: int, rounds: int, correlation: float) -> FloatArray:
    fresh = chance.standard_normal((series, rounds))
    values: FloatArray = fresh.copy()
    for number in range(1, rounds):
        values[:, number] = correlation * values[:, number - 1] + math.sqrt(1 - correlation**2) * fresh[:, number]
    return values


def after_all_rounds(values: FloatArray, direction: float = 1.0) -> float:
    return largest_log_evidence(values, 0.0, direction, len(values))


# Their mean is just below 0; less what correlates it is above, so that evidence falls before it grows.
WITH_A_DIP = np.array([1.4, 0.0, 0.2, -1.5, -1.8, -0.4, -0.1, 0.8, 1.3])


def least_evidence(values: FloatArray) -> float:
    """After all rounds, of all means from 0 up, also where it is no evidence at all."""
    rounds = len(values)
    return rounds / 2 * math.log(_least_ratios(values)[-1]) - 0.5 * math.log1p(rounds * EFFECT_SCALE**2)


@rows(
    "values",
    [
        *(noise(np.random.default_rng(1), 3, 9, 0.5) - 1.0),
        *(1e-3 * noise(np.random.default_rng(2), 3, 9, 0.5) - 1.0),  # far, where evidence tends to a limit
        WITH_A_DIP,
    ],
)
def test_it_is_the_least_over_all_means_on_the_good_side(values: FloatArray) -> None:
    process = EProcesses(values[np.newaxis])
    least = float(process.log_evidence(np.append(0.0, np.geomspace(1e-3, 1e7, 2000))).min())
    assert process.centres[0] < 0
    assert least_evidence(values) == pytest.approx(least, abs=2e-4)
    assert after_all_rounds(values) == pytest.approx(max(0.0, least_evidence(values)), rel=1e-12)


def test_it_is_that_against_the_bound_itself_where_the_values_are_near_and_below() -> None:
    values = noise(np.random.default_rng(2), 1, 24, 0.0)[0] - 2.0
    against_the_bound = EProcesses(values[np.newaxis]).log_evidence(np.zeros(1))
    assert after_all_rounds(values) == pytest.approx(against_the_bound[0], rel=1e-9)


@rows("value", [0.0, 1.0])
def test_values_that_keep_the_bound_are_no_evidence_though_they_are_all_alike(value: float) -> None:
    assert largest_log_evidence(np.full(32, value), 0.0, 1.0, FEWEST) == 0.0


def test_equal_values_that_miss_the_bound_are_evidence() -> None:
    assert largest_log_evidence(np.full(8, 0.99), 1.0, 1.0, FEWEST) > math.log(1000)


def test_above_an_upper_bound_is_below_a_lower_one() -> None:
    values = noise(np.random.default_rng(3), 1, 16, 0.3)[0] - 1.5
    assert largest_log_evidence(-values, 0.0, -1.0, FEWEST) == largest_log_evidence(values, 0.0, 1.0, FEWEST)


def test_the_largest_counts_though_later_rounds_take_it_back() -> None:
    values = np.append(noise(np.random.default_rng(4), 1, 16, 0.0)[0] - 3.0, np.full(16, 3.0))
    assert after_all_rounds(values) < largest_log_evidence(values[:16], 0.0, 1.0, 16)
    assert largest_log_evidence(values, 0.0, 1.0, FEWEST) >= largest_log_evidence(values[:16], 0.0, 1.0, 16)


def test_before_the_first_look_there_is_none() -> None:
    assert largest_log_evidence(np.full(7, -9.0), 0.0, 1.0, FEWEST) == 0.0


@rows("correlation", [0.0, 0.5])
def test_on_the_bound_it_ever_reaches_20_in_at_most_5_of_100_runs(correlation: float) -> None:
    series = noise(np.random.default_rng(5), 400, 32, correlation)
    reached = sum(largest_log_evidence(values, 0.0, 1.0, FEWEST) >= math.log(20) for values in series)
    assert reached <= 20
