"""Drift is seen beyond the noise, and noise is not drift."""

from __future__ import annotations

import random

import pytest

from pytest_ddpscale.stats.steadiness import find_drift
from tests.rows import rows


def noisy(seed: int, rounds: int, correlation: float = 0.0) -> list[float]:
    chance = random.Random(seed)
    values = [chance.gauss(0, 1)]
    while len(values) < rounds:
        values.append(correlation * values[-1] + (1 - correlation**2) ** 0.5 * chance.gauss(0, 1))
    return values


@rows("correlation", [0.0, 0.5])
def test_noise_is_seldom_taken_for_drift(correlation: float) -> None:
    found = sum(find_drift(noisy(seed, 12, correlation)) is not None for seed in range(500))
    assert found <= 20


def test_a_ramp_far_beyond_the_noise_is_found() -> None:
    found = sum(
        find_drift([value + 10 * i / 11 for i, value in enumerate(noisy(seed, 12))]) is not None for seed in range(100)
    )
    assert found >= 95


def test_its_size_and_where_it_would_go_on_to() -> None:
    drift = find_drift([float(i) for i in range(9)])
    assert drift is not None
    assert drift.change == pytest.approx(6.0)
    assert drift.last == pytest.approx(7.0)
    assert drift.gone_on == pytest.approx(13.0)


def test_four_rounds_have_no_thirds_to_compare() -> None:
    assert find_drift([1.0, 2.0, 3.0, 4.0]) is None


def test_equal_values_do_not_drift() -> None:
    assert find_drift([0.1] * 12) is None


def test_a_change_that_is_negligible_is_no_drift() -> None:
    ramp = [1.0 + 0.0001 * i for i in range(9)]
    assert find_drift(ramp) is not None
    assert find_drift(ramp, negligible=0.001) is None


def test_one_hiccup_is_no_drift() -> None:
    assert find_drift([1.0, 1.01, 0.99, 1.0, 0.7, 1.0, 0.99, 1.01, 1.0]) is None
