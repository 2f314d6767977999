"""Means of independent values."""

from __future__ import annotations

import math

import pytest

from pytest_ddpscale.suites.pace import geometric_mean_estimate, mean_estimate


def test_mean_and_interval_of_independent_values() -> None:
    estimated, reach = mean_estimate([10.0, 11.0, 12.0, 13.0, 14.0], 0.95), 2.7764451 * math.sqrt(2.5 / 5)
    assert estimated.value == pytest.approx(12.0)
    assert estimated.interval == pytest.approx((12 - reach, 12 + reach))
    logs = geometric_mean_estimate([math.exp(value) for value in range(10, 15)], 0.95)
    assert logs.interval == pytest.approx((math.exp(12 - reach), math.exp(12 + reach)))
