"""Intervals end where values stop being possible, and decide as they were found."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.judge.bounds import against_bound, blank_verdict
from pytest_ddpscale.judge.estimating import Found
from pytest_ddpscale.judge.intervals import Estimate
from pytest_ddpscale.plan.metric_catalogue import METRICS, TRAINING_METRICS
from tests.builders.judged import judge_values, make_case
from tests.rows import rows


def noisy(mean: float, sd: float, rounds: int = 8) -> list[float]:
    chance = random.Random(1)
    return [mean + sd * chance.gauss(0, 1) for _ in range(rounds)]


@rows(
    ("metric", "bound", "values", "possible"),
    [
        ("weak_scaling_efficiency", 0.6, noisy(0.7, 0.2), (0.0, 1.1)),
        ("device_utilization", 0.5, noisy(0.9, 0.06), (0.0, 1.0)),
        ("exposed_communication", 0.5, noisy(0.05, 0.04), (0.0, 1.0)),
        ("step_time_cv", 0.5, [abs(one) for one in noisy(0.05, 0.05)], (0.0, 1.0)),
        ("memory_spread", 0.5, [abs(one) for one in noisy(0.05, 0.04)], (0.0, 1.0)),
        ("rank_uniformity", 1.5, [1 + abs(one) for one in noisy(0.05, 0.05)], (1.0, 100.0)),
    ],
)
def test_no_interval_reaches_what_is_impossible(
    metric: str, bound: float, values: list[float], possible: tuple[float, float]
) -> None:
    verdict = judge_values(metric, bound, values, "cpu")
    assert verdict.interval is not None
    assert verdict.value is not None
    low, high = verdict.interval
    assert possible[0] <= low < verdict.value < high <= possible[1]
    assert low == possible[0] or high == possible[1], "noise reaches beyond"


def test_a_value_that_noise_put_beyond_stays_inside_its_interval() -> None:
    verdict = judge_values("exposed_communication", 0.5, noisy(-0.004, 0.002))
    assert verdict.interval is not None
    assert verdict.value is not None
    assert verdict.value < 0
    assert verdict.interval[0] == verdict.value


@given(
    name=st.sampled_from(sorted(TRAINING_METRICS)),
    place=st.floats(0, 1),
    value=st.floats(-0.2, 1.3),
    below=st.floats(0, 2),
    above=st.floats(0, 2),
)
def test_the_interval_that_is_told_decides_as_the_one_that_was_found(
    name: str, place: float, value: float, below: float, above: float
) -> None:
    metric = METRICS[name]
    least, most = metric.range_at(2)
    case = make_case(name, metric.only_bound or max(least, 1e-3) + place * (min(0.99 * most, 100.0) - max(least, 1e-3)))
    asked = case.requirement.bound
    low, high = value - below, value + above
    found = Found(value, Estimate(value, (low, high)))
    verdict = against_bound(blank_verdict(case, 0.95), case.requirement, np.array([1.0]), lambda: found)
    good, bad = (high <= asked, low > asked) if metric.upper_bound else (low >= asked, high < asked)
    assert verdict.outcome == ("passed" if good else "failed" if bad else "inconclusive")
    assert verdict.interval is not None
    told_low, told_high = verdict.interval
    assert low <= told_low <= value <= told_high <= high
    if verdict.outcome == "passed":
        assert told_high <= asked if metric.upper_bound else told_low >= asked
    if verdict.outcome == "failed":
        assert told_low > asked if metric.upper_bound else told_high < asked
