"""The simulation of wrong verdicts decides as verdicts do, and can tell a sound design from a naive one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.simulate.machine import Noise
from tests.benchmarks.scripts import benchmark
from tests.builders.judged import CONFIDENCE, evidence_of_plan, make_case, measure, plan_of

wrong_verdicts = benchmark("wrong_verdicts")
LIMIT, BOUND = 16, 100.0
CASE = make_case("throughput_per_gpu", BOUND, world_size=1)


def verdict(logs: list[float], limit: int) -> int:
    # On GPUs an interval has differences between launches, too, of which the simulation knows nothing.
    values, plan = (BOUND * np.exp(logs)).tolist(), replace(plan_of([CASE], rounds=limit), device_type="cpu")
    measured = measure(plan.studies[0], len(values), lambda _, number, __: values[number])
    outcome = judge(CASE, evidence_of_plan(plan, measured), CONFIDENCE).outcome
    return {"passed": 1, "failed": -1}.get(outcome, 0)


def mixed_series() -> np.ndarray:
    chance = np.random.default_rng(0)
    noises = [Noise(0.01), Noise(0.01, correlation=0.9), Noise(0.003), Noise(0.01, hiccup_share=0.1)]
    ramps = np.log1p([[0.0], [0.0], [0.05], [0.0]]) * np.linspace(0, 1, LIMIT)
    offsets = np.linspace(-0.04, 0.04, 20)[:, np.newaxis]
    return np.concatenate(
        [noise.of_rounds(chance, LIMIT, 20) + ramp + offsets for noise, ramp in zip(noises, ramps, strict=True)]
    )


@pytest.mark.parametrize("rounds", [FEWEST_ROUNDS, 12, LIMIT])
def test_it_decides_as_verdicts_do(rounds: int) -> None:
    logs = mixed_series()[:, :rounds]
    found = wrong_verdicts.RULES["verdict"](logs, LIMIT).tolist()
    assert found == [verdict(values, LIMIT) for values in logs.tolist()]
    assert {-1.0, 0.0, 1.0} <= set(found)


def test_a_naive_design_is_wrong_far_more_often_than_it_says() -> None:
    scenarios = [one for one in wrong_verdicts.on_the_bound() if one.name == "Gaussian, ρ 0.5"]
    ((found,),) = (list(wrong_verdicts.rows_of(scenarios, 200, LIMIT, 3).values()),)
    assert found["t-test"].wrong_interval[0] > 0.05
    assert found["verdict"].wrong_interval[0] <= 0.05
    assert found["verdict"].wrong < found["t-test"].wrong / 3


def test_wide_margins_are_decided_at_once_and_rightly() -> None:
    rows = wrong_verdicts.rows_of(wrong_verdicts.off_the_bound(), 40, LIMIT, 3)
    found = {scenario.name: by_rule["verdict"] for scenario, by_rule in rows.items()}
    assert found["GPU (0.3%), margin 5.0%"].rounds < FEWEST_ROUNDS + 0.5
    assert all(one.above >= 0.95 for name, one in found.items() if name.startswith("GPU"))


@pytest.mark.parametrize("sd", [0.003, 0.006])
def test_a_ramp_towards_a_value_below_the_bound_seldom_passes(sd: float) -> None:
    ramp = next(one for one in wrong_verdicts.moving() if one.name == f"noise {sd:.1%}, ρ 0")
    (found,) = wrong_verdicts.rows_of([ramp], 400, 32, 3).values()
    assert found["interval alone"].above > 0.9
    assert found["verdict"].wrong_interval[1] < 0.15


def test_hiccups_seldom_make_a_verdict_whatever_the_truth_is_taken_to_be() -> None:
    rare = [one for one in wrong_verdicts.on_the_bound() if "hiccups" in one.name or "mean" in one.name]
    rows = wrong_verdicts.rows_of([replace(one, truth=None) for one in rare], 400, 32, 3)
    assert len(rows) == 12
    assert all(by_rule["verdict"].wrong_interval[0] <= 0.05 for by_rule in rows.values())
    assert any(by_rule["interval alone"].wrong_interval[0] > 0.05 for by_rule in rows.values())


def test_rounds_that_correlate_by_nine_tenths_pass_wrongly_in_one_run_of_twenty() -> None:
    strong = [one for one in wrong_verdicts.on_the_bound() if one.name == "Gaussian, ρ 0.9"]
    ((found,),) = (list(wrong_verdicts.rows_of(strong, 1000, 32, 3).values()),)
    assert found["verdict"].above <= 0.065
    assert found["interval alone"].above > 2 * found["verdict"].above


@pytest.mark.parametrize("by", wrong_verdicts.RAMPS)
def test_ramps_seldom_pass(by: float) -> None:
    ramp = next(one for one in wrong_verdicts.moving() if one.name == f"by -{by:.1%}, noise 0.3%, ρ 0")
    (found,) = wrong_verdicts.rows_of([ramp], 300, 32, 3).values()
    assert found["verdict"].wrong < 0.10
