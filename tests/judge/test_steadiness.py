"""Drift is seen beyond the noise, and noise is not drift."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from pytest_ddpscale.judge.sequential import FloatArray
from pytest_ddpscale.judge.steadiness import find_drifts
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


def test_each_series_is_seen_by_itself() -> None:
    ramp = np.linspace(0, 1, 12)
    assert drifts(noisy(1, 12), ramp, [0.1] * 12, -ramp) == [False, True, False, True]
