"""How unlikely a failure is on a machine that keeps the bound."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ddpscale.judge.bounds import p_value_of
from pytest_ddpscale.judge.judge import judge
from tests.builders.judged import judge_values, make_case
from tests.judge.nodes import measure_nodes, nodes_evidence, plan_of_nodes, slow_node

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
