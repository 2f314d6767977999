"""The interval holds at all rounds together, for correlated and heavy-tailed noise, and narrows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.judge.sequential import (
    CORRELATIONS,
    EProcesses,
)
from tests.rows import rows

MODERATE = st.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 6))
SERIES = st.lists(MODERATE, min_size=5, max_size=30)


def log_evidence(values: Sequence[float], *means: float) -> list[float]:
    found: list[float] = EProcesses(np.array([values])).log_evidence(np.array(means)).tolist()
    return found


def interval_of(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    low, high = EProcesses(np.array([values])).intervals(confidence)[0].tolist()
    return low, high


class TestLogEvidence:
    def test_of_one_value_is_never_enough_to_rule_out_anything(self) -> None:
        assert np.isnan(interval_of([5.0], 0.9)).all()

    def test_says_nothing_where_every_value_equals_the_mean(self) -> None:
        assert log_evidence([2.0] * 8, 2.0) == [-math.inf]

    def test_is_the_same_in_other_units(self) -> None:
        values = [3.0, 3.2, 2.9, 3.1, 3.05]
        there = [1000 * value for value in values]
        assert log_evidence(values, 3.5) == pytest.approx(log_evidence(there, 3500))

    def test_is_the_ratio_of_two_densities(self) -> None:
        """Of Gaussian vectors with their covariances, σ integrated out: the definition, without any shortcut."""
        values = np.array([0.3, -0.2, 0.8, 0.5, 0.1, 0.9])
        n, lags = len(values), np.abs(np.subtract.outer(np.arange(6), np.arange(6)))

        def density(covariance: np.ndarray) -> float:
            square = values @ np.linalg.solve(covariance, values)
            return float(-0.5 * np.linalg.slogdet(covariance)[1] - n / 2 * math.log(square))

        this_mean = max(density(float(correlation) ** lags) for correlation in CORRELATIONS)
        other_mean = density(np.eye(n) + 9.0 * np.ones((n, n)))
        assert log_evidence(values.tolist(), 0.0) == pytest.approx([other_mean - this_mean])

    @rows("values", [[1.0, math.nan], [1.0, math.inf], []])
    def test_refuses_values_that_are_not_finite_or_none(self, values: list[float]) -> None:
        with pytest.raises(ValueError, match="finite"):
            EProcesses(np.array([values]))


class TestIntervals:
    @given(SERIES)
    def test_hold_the_mean(self, values: list[float]) -> None:
        low, high = interval_of(values)
        mean = sum(values) / len(values)
        slack = 1e-9 * max(1.0, *map(abs, values))
        assert low - slack <= mean <= high + slack

    @given(SERIES)
    def test_are_wider_at_more_confidence(self, values: list[float]) -> None:
        (low, high), (lowest, highest) = interval_of(values, 0.8), interval_of(values)
        assert lowest <= low
        assert high <= highest

    def test_of_equal_values_are_that_value(self) -> None:
        assert interval_of([0.5] * 5) == (0.5, 0.5)
        assert interval_of([0.1] * 12) == (0.1, 0.1)

    def test_of_values_equal_but_for_rounding_are_hardly_wider(self) -> None:
        values = [0.1 + 1e-17 * (number % 3) for number in range(9)]
        assert interval_of(values) == pytest.approx((0.1, 0.1), rel=1e-14)

    def test_need_more_rounds_for_more_confidence(self) -> None:
        assert np.isnan(interval_of([0.5] * 5, 0.9999)).all()
        assert interval_of([0.5] * 12, 0.9999) == (0.5, 0.5)

    @rows("confidence", [0.5, 0.95, 0.9999])
    @rows("correlation", [0.0, 0.9])
    @rows("rounds", [8, 12, 30])
    def test_limits_are_the_nearest_means_that_are_ruled_out(
        self, rounds: int, correlation: float, confidence: float
    ) -> None:
        noise, threshold = np.random.default_rng(0).standard_normal((100, rounds)), -math.log(1 - confidence)
        processes = EProcesses(100 + noise + correlation * np.cumsum(noise, axis=1))
        for limits in processes.intervals(confidence).T:
            assert (processes.log_evidence(limits) >= threshold - 1e-9).all()
            assert (processes.log_evidence(limits - 1e-6 * (limits - processes.centres)) < threshold).all()

    @rows("confidence", [0.0, 1.0, -1.0, math.nan])
    def test_refuse_a_confidence_that_is_none(self, confidence: float) -> None:
        with pytest.raises(ValueError, match="confidence"):
            interval_of([1.0, 2.0], confidence)
