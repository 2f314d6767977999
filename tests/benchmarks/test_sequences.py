"""The simulation of wrong verdicts decides as verdicts do, and can tell a sound design from a naive one."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.simulate.machine import Noise
from tests.benchmarks import benchmark
from tests.builders.judged import CONFIDENCE, evidence_of_plan, make_case, measure, plan_of

sequences = benchmark("sequences")
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
    found = sequences.RULES["verdict"](logs, LIMIT).tolist()
    assert found == [verdict(values, LIMIT) for values in logs.tolist()]
    assert {-1.0, 0.0, 1.0} <= set(found)


def test_each_series_ends_at_its_first_decision() -> None:
    logs = mixed_series()
    decided, rounds = sequences.ended(sequences.verdicts, logs, LIMIT)
    for values, end, count in zip(logs, decided, rounds.astype(int), strict=True):
        looks = [float(sequences.verdicts(values[np.newaxis, :n], LIMIT)[0]) for n in range(FEWEST_ROUNDS, count + 1)]
        assert looks == [*[0.0] * (count - FEWEST_ROUNDS), end]


@pytest.mark.parametrize(
    ("pattern", "runs", "limit", "field", "least", "most", "naive"),
    [
        ("on the bound/Gaussian, ρ 0.5", 200, LIMIT, "wrong", 0, 0.05, 0.1),
        ("on the bound/Gaussian, ρ 0.9", 1000, 32, "above", 0, 0.065, 0.2),
        ("on the bound/(hiccups|same)", 400, 32, "wrong", 0, 0.05, 0),
        ("on the bound/hiccups.*20 %", 400, 32, "wrong", 0, 0.05, 0.1),
        ("off the bound/GPU", 40, LIMIT, "above", 0.95, 1, 0.95),
        ("off the bound/GPU.*margin (5|10)", 40, LIMIT, "rounds", FEWEST_ROUNDS, FEWEST_ROUNDS + 0.5, 0),
        ("ramp by -3 %/noise 0.[36]%, ρ 0$", 400, 32, "above", 0, 0.12, 0.9),
        ("ramps/by -.*, noise 0.3%, ρ 0$", 300, 32, "wrong", 0, 0.1, 0),
        ("machine.*/ρ of rounds 0.5, of requirements 0$", 100, 32, "below", 0.4, 1, 0),
        ("machine.*/ρ of rounds 0.5, of requirements 0.9", 100, 32, "below", 0, 0.2, 0),
    ],
)
def test_a_sound_design_is_told_from_a_naive_one(
    pattern: str, runs: int, limit: int, field: str, least: float, most: float, naive: float
) -> None:
    scenarios = [one for one in sequences.scenarios() if re.search(pattern, f"{one.group}/{one.name}")]
    assert scenarios
    for scenario in scenarios:
        ends: dict[str, Any] = sequences.row_of(scenario, runs, limit, 3)
        shares = (getattr(ends[rule], field) if rule in ends else 0.0 for rule in ("verdict", "t-test"))
        verdict, t_test = (getattr(share, "value", share) for share in shares)
        assert least <= verdict <= most, scenario
        assert t_test >= naive, scenario


def test_requirements_of_a_machine_share_noise_and_remember_it() -> None:
    machine = sequences.Scenario("", "", sd=1.0, rho=0.3, requirements=2, shared=0.5)
    values = machine.series(1, 50_000, 1)
    assert values.var(axis=1) == pytest.approx([1.0, 1.0], rel=0.05)
    assert np.corrcoef(values)[0, 1] == pytest.approx(0.5, abs=0.03)
    assert np.corrcoef(values[0, 1:], values[0, :-1])[0, 1] == pytest.approx(0.3, abs=0.03)


def test_intervals_narrow_with_rounds() -> None:
    medians = [median for median, _ in sequences.widths(200, 1).values()]
    assert sorted(medians, reverse=True) == medians
