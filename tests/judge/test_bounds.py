"""Intervals end where values stop being possible, and decide as they were found."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.judge.bounds import against_bound, blank_verdict, p_value_of
from pytest_ddpscale.judge.estimating import Found
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.metric_catalogue import METRICS, TRAINING_METRICS
from tests.builders.judged import judge_values, make_case
from tests.judge.nodes import measure_nodes, nodes_evidence, plan_of_nodes, slow_node
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


@rows(
    ("bound", "outcome", "reason"),
    [
        (1000.0, "inconclusive", "8 rounds vary too much for an interval"),
        (0.001, "passed", "the whole interval keeps the bound"),
    ],
)
def test_an_interval_of_many_powers_of_ten_is_none(bound: float, outcome: str, reason: str) -> None:
    verdict = judge_values("throughput_per_gpu", bound, [1e3, 1.5e3, 2e3, 2.5e3, 3e3, 3.5e3, 4e3, 4.5e3])
    assert (verdict.outcome, verdict.interval, verdict.reason) == (outcome, None, reason)


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
    found = Found(value, (low, high))
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


BELOW = np.array([0.90, 0.92, 0.89, 0.91, 0.90, 0.93, 0.91, 0.90])
THROUGHPUT = make_case("throughput_per_gpu", 1.0).requirement


def test_rates_are_judged_by_factors() -> None:
    as_ratio = p_value_of(BELOW, THROUGHPUT)
    assert as_ratio is not None
    assert as_ratio < 0.001
    assert p_value_of(100 * BELOW, make_case("throughput_per_gpu", 100.0).requirement) == pytest.approx(as_ratio)
    assert p_value_of(1 / BELOW, make_case("step_time_p95", 1.0).requirement) == pytest.approx(as_ratio)


def test_shares_are_judged_by_differences() -> None:
    found = p_value_of(BELOW, make_case("device_utilization", 0.99).requirement)
    assert found == pytest.approx(p_value_of(BELOW - 0.1, make_case("device_utilization", 0.89).requirement))


def test_values_that_keep_the_bound_give_1() -> None:
    assert p_value_of(1 / BELOW, THROUGHPUT) == 1.0


def test_too_few_rounds_and_ranks_that_have_to_agree_have_none() -> None:
    assert p_value_of(BELOW[:7], THROUGHPUT) is None
    assert p_value_of(BELOW, make_case("replica_agreement", 1.0).requirement) is None


def test_only_a_failure_has_one() -> None:
    assert judge_values("throughput_per_gpu", 100.0, (100 * BELOW).tolist()).p_value == pytest.approx(
        p_value_of(BELOW, THROUGHPUT)
    )
    assert judge_values("throughput_per_gpu", 80.0, (100 * BELOW).tolist()).p_value is None


def test_of_several_nodes_it_is_the_smallest_times_their_number() -> None:
    case = make_case("throughput_per_gpu", 90.0, world_size=2)

    def p_value(nodes: int) -> float:
        plan = plan_of_nodes([case], nodes, 2)
        found = judge(case, nodes_evidence(plan, measure_nodes(plan, slow_node(0))), 0.95).p_value
        assert found is not None
        return found

    assert p_value(4) == pytest.approx(4 * p_value(1))


def test_of_several_launches_it_is_that_of_students_t_over_their_values() -> None:
    launches = [0.90, 0.92, 0.88]  # of the logarithms t is -8.2 with 2 degrees of freedom
    assert p_value_of(BELOW, THROUGHPUT, launches) == pytest.approx(0.0072, abs=0.0001)
    assert p_value_of(BELOW, make_case("throughput_per_gpu", 0.5).requirement, launches) == pytest.approx(1, abs=0.001)
    slower = [1 / value for value in launches]
    assert p_value_of(BELOW, make_case("step_time_p95", 1.0).requirement, slower) == pytest.approx(0.0072, abs=0.0001)
