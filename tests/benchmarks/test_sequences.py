"""The simulation of wrong verdicts decides as verdicts do, and can tell a sound design from a naive one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.simulate.machine import Noise
from tests.benchmarks.scripts import benchmark
from tests.builders.judged import CONFIDENCE, evidence_of_plan, make_case, measure, plan_of

sequences = benchmark("sequences")
LIMIT, BOUND = 16, 100.0
CASE = make_case("throughput_per_gpu", BOUND, world_size=1)
BY_NAME = {(one.group, one.name): one for one in sequences.scenarios()}


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


def row(group: str, name: str, runs: int, limit: int = 32) -> dict[str, Any]:
    return dict(sequences.row_of(BY_NAME[group, name], runs, limit, 3))


@pytest.mark.parametrize("rounds", [FEWEST_ROUNDS, 12, LIMIT])
def test_it_decides_as_verdicts_do(rounds: int) -> None:
    logs = mixed_series()[:, :rounds]
    found = sequences.RULES["verdict"](logs, LIMIT).tolist()
    assert found == [verdict(values, LIMIT) for values in logs.tolist()]
    assert {-1.0, 0.0, 1.0} <= set(found)


def test_each_series_ends_at_its_first_decision() -> None:
    logs = mixed_series()
    decided, rounds = sequences.ended(sequences.verdicts, logs, LIMIT)
    for values, end, count in zip(logs, decided, rounds.astype(int), strict=True):
        looks = [float(sequences.verdicts(values[np.newaxis, :n], LIMIT)[0]) for n in range(FEWEST_ROUNDS, count + 1)]
        assert looks == [*[0.0] * (count - FEWEST_ROUNDS), end]


def test_a_naive_design_is_wrong_far_more_often_than_it_says() -> None:
    found = row("on the bound", "Gaussian, ρ 0.5", 200, LIMIT)
    assert found["t-test"].wrong_interval[0] > 0.05
    assert found["verdict"].wrong_interval[0] <= 0.05
    assert found["verdict"].wrong < found["t-test"].wrong / 3


def test_wide_margins_are_decided_at_once_and_rightly() -> None:
    found = {name: row(group, name, 40, LIMIT)["verdict"] for group, name in BY_NAME if group == "off the bound"}
    assert found["GPU (0.3%), margin 5.0%"].rounds < FEWEST_ROUNDS + 0.5
    assert all(one.above >= 0.95 for name, one in found.items() if name.startswith("GPU"))


@pytest.mark.parametrize("sd", [0.003, 0.006])
def test_a_ramp_towards_a_value_below_the_bound_seldom_passes(sd: float) -> None:
    found = row("ramp by -3 %", f"noise {sd:.1%}, ρ 0", 400)
    assert found["t-test"].above > 0.9
    assert found["verdict"].wrong_interval[1] < 0.15


def test_hiccups_seldom_make_a_verdict_whatever_the_truth_is_taken_to_be() -> None:
    rows = [row(group, name, 400) for group, name in BY_NAME if "hiccups" in name or "mean" in name]
    assert len(rows) == 12
    assert all(by_rule["verdict"].wrong_interval[0] <= 0.05 for by_rule in rows)
    assert any(by_rule["t-test"].wrong_interval[0] > 0.05 for by_rule in rows)


def test_rounds_that_correlate_by_nine_tenths_pass_wrongly_in_one_run_of_twenty() -> None:
    found = row("on the bound", "Gaussian, ρ 0.9", 1000)
    assert found["verdict"].above <= 0.065
    assert found["t-test"].above > 2 * found["verdict"].above


@pytest.mark.parametrize("by", [0.01, 0.015, 0.02, 0.03, 0.05])
def test_ramps_seldom_pass(by: float) -> None:
    assert row("ramps", f"by -{by:.1%}, noise 0.3%, ρ 0", 300)["verdict"].wrong < 0.10


def test_requirements_of_a_machine_share_noise_and_remember_it() -> None:
    machine = sequences.Scenario("", "", sd=1.0, rho=0.3, requirements=2, shared=0.5)
    values = machine.series(1, 50_000, 1)
    assert values.var(axis=1) == pytest.approx([1.0, 1.0], rel=0.05)
    assert np.corrcoef(values)[0, 1] == pytest.approx(0.5, abs=0.03)
    assert np.corrcoef(values[0, 1:], values[0, :-1])[0, 1] == pytest.approx(0.3, abs=0.03)


def test_a_machine_on_all_its_bounds_is_rejected_more_often_the_less_its_requirements_err_together() -> None:
    apart, together = (
        row("a machine exactly on all of 84 bounds", f"ρ of rounds 0.5, of requirements {shared}", 100)["verdict"].below
        for shared in ("0", "0.9")
    )
    assert together < 0.2 < 0.4 < apart


def test_intervals_narrow_with_rounds() -> None:
    medians = [median for median, _ in sequences.widths(200, 1).values()]
    assert sorted(medians, reverse=True) == medians
