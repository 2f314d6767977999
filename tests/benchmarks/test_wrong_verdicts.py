"""The simulation that shows how often verdicts are wrong can tell a sound design from a naive one."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from tests.benchmarks.scripts import benchmark

wrong_verdicts = benchmark("wrong_verdicts")


@pytest.mark.parametrize("tail", ["Gaussian", "Student-t, 3 degrees"])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_noise_has_variance_one_and_the_correlation_asked_for(tail: str, correlation: float) -> None:
    values = wrong_verdicts.noise(random.Random(1), tail, correlation, 20_000)
    mean = statistics.fmean(values)
    lag_one = statistics.fmean((a - mean) * (b - mean) for a, b in itertools.pairwise(values))
    assert statistics.variance(values) == pytest.approx(1.0, rel=0.25)
    assert lag_one / statistics.variance(values) == pytest.approx(correlation, abs=0.05)


def test_a_naive_design_is_wrong_far_more_often_than_it_says() -> None:
    found = {
        (row.design, row.tail, row.correlation): row for row in wrong_verdicts.on_the_bound(runs=100, limit=16, seed=3)
    }
    naive = found["naive t-test", "Gaussian", 0.5]
    ours = found["e-process", "Gaussian", 0.5]
    assert naive.interval[0] > 0.05
    assert ours.interval[0] <= 0.05
    assert ours.wrong < naive.wrong / 3


def test_wide_margins_are_decided_at_once_and_rightly() -> None:
    rows = {(row.noise, row.margin): row for row in wrong_verdicts.off_the_bound(runs=40, limit=16, seed=3)}
    assert rows["GPU", 0.05].mean_rounds < FEWEST_ROUNDS + 0.5
    assert all(row.right == 1.0 for (noise, _), row in rows.items() if noise == "GPU")
    assert statistics.fmean(row.mean_rounds for row in rows.values()) < wrong_verdicts.FIXED_ROUNDS / 1.5
