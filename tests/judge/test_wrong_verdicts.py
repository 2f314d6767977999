"""Where the truth is exactly the bound, every verdict is wrong, and at most one run in twenty comes to one.

A fast version of benchmarks/sequences.py: looks after each of the rounds 5 … 16, an end at the first decision.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.stats import intervals, t_quantile
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES
from pytest_ddpscale.util.arrays import FloatArray
from tests.benchmarks import benchmark
from tests.builders.judged import CONFIDENCE, evidence_of_plan, make_case, measure, plan_of

pytestmark = pytest.mark.lab

ALPHA = 1 - CONFIDENCE
LIMIT = PACES["cuda"].rounds
RUNS = 400
# Of a shared CPU, relative: that of a GPU is a seventh of it, and the designs know no scale.
NOISE_PER_ROUND = 0.02
BOUND = 100.0
# At each look, for 5 % in all, if rounds were independent.
NAIVE_ALPHA_PER_LOOK = 0.008

TAILS: dict[str, Callable[[random.Random], float]] = {
    "Gaussian": lambda chance: chance.gauss(0, 1),
    "Student-t, 3 degrees": lambda chance: _student_3(chance),
}
CORRELATIONS = (0.0, 0.3, 0.5)
NOISES = list(itertools.product(TAILS, CORRELATIONS))
# Of logarithms of values over the bound, (runs, rounds): which are taken to be above 0, below (-1), or undecided (0).
Design = Callable[[FloatArray], FloatArray]


def _student_3(chance: random.Random) -> float:
    """Scaled to variance 1, as its variance is 3."""
    chi_square = math.fsum(chance.gauss(0, 1) ** 2 for _ in range(3))
    return chance.gauss(0, 1) / math.sqrt(chi_square / 3) / math.sqrt(3)


def rounds_of_noise(chance: random.Random, tail: str, correlation: float) -> list[float]:
    """A stationary AR(1) series."""
    draw = TAILS[tail]
    values = [draw(chance)]
    while len(values) < LIMIT:
        values.append(correlation * values[-1] + math.sqrt(1 - correlation**2) * draw(chance))
    return [NOISE_PER_ROUND * value for value in values]


def e_process(logs: FloatArray) -> FloatArray:
    """The bound is outside of the interval just if there is this much evidence against it."""
    _, low, high = intervals(logs, 1 - ALPHA)
    return np.where(low >= 0, 1, np.where(high <= 0, -1, 0))


def value_of_round(values: list[float], _: Arm, number: int, __: int) -> float:
    return values[number]


def verdict(logs: FloatArray) -> FloatArray:
    """From measurements to a verdict, all the way."""
    case, found = make_case("throughput_per_gpu", BOUND, world_size=1), []
    plan = plan_of([case])
    for values in (BOUND * np.exp(logs)).tolist():
        measured = measure(plan.studies[0], len(values), partial(value_of_round, values))
        outcome = judge(case, evidence_of_plan(plan, measured), CONFIDENCE).outcome
        found.append({"passed": 1, "failed": -1}.get(outcome, 0))
    return np.array(found)


def naive(logs: FloatArray) -> FloatArray:
    """What one would write first: a t-test at each look."""
    rounds = logs.shape[1]
    errors = logs.std(axis=1, ddof=1) / math.sqrt(rounds)
    means, limit = logs.mean(axis=1), _NAIVE_LIMITS[rounds]
    return np.where(np.abs(means) > limit * errors, np.sign(means), 0)


_NAIVE_LIMITS = {
    rounds: t_quantile(1 - NAIVE_ALPHA_PER_LOOK / 2, rounds - 1) for rounds in range(FEWEST_ROUNDS, LIMIT + 1)
}


def share_of(hits: int, runs: int) -> tuple[float, float]:
    """How often something would happen that happened so often (Wilson 1927, 95 %)."""
    low, high = benchmark("reporting").Share(hits, runs).interval
    return low, high


def decisions(design: Design, tail: str, correlation: float, truth: float, runs: int) -> list[float]:
    """The first of each of many runs, 0 without any; `truth` is a logarithm of the true value over the bound."""
    chance = random.Random(f"20260301/{tail}/{correlation}")
    logs = truth + np.array([rounds_of_noise(chance, tail, correlation) for _ in range(runs)])
    found = np.zeros(runs)
    for rounds in range(FEWEST_ROUNDS, LIMIT + 1):
        is_open = found == 0
        found[is_open] = design(logs[is_open, :rounds])
    decided: list[float] = found.tolist()
    return decided


def wrong_on_the_bound(design: Design, tail: str, correlation: float, runs: int) -> tuple[float, float]:
    found = decisions(design, tail, correlation, 0.0, runs)
    return share_of(runs - found.count(0), runs)


@pytest.mark.parametrize(("tail", "correlation"), NOISES)
def test_runs_on_the_bound_seldom_come_to_a_verdict(tail: str, correlation: float) -> None:
    assert wrong_on_the_bound(e_process, tail, correlation, RUNS)[1] <= ALPHA


@pytest.mark.parametrize("tail", TAILS)
def test_a_naive_design_fails_the_same_proof(tail: str) -> None:
    """So the proof can tell, and the noise is as correlated as it says."""
    assert wrong_on_the_bound(naive, tail, 0.5, RUNS)[0] > 2 * ALPHA


def test_a_naive_design_is_right_about_the_noise_it_was_made_for() -> None:
    assert wrong_on_the_bound(naive, "Gaussian", 0.0, RUNS)[0] <= ALPHA


@pytest.mark.parametrize("tail", TAILS)
def test_runs_just_below_the_bound_seldom_pass(tail: str) -> None:
    found = decisions(e_process, tail, 0.3, math.log(0.999), RUNS)
    assert share_of(found.count(1), RUNS)[1] <= ALPHA / 2


@pytest.mark.parametrize("margin", [0.05, -0.05])
def test_runs_off_the_bound_are_decided_rightly(margin: float) -> None:
    """Or a design that never decides would pass this proof."""
    found = decisions(verdict, "Gaussian", 0.0, math.log1p(margin), 100)
    right = 1 if margin > 0 else -1
    assert found.count(-right) == 0
    assert share_of(found.count(right), 100)[0] > 0.9


@pytest.mark.parametrize("tail", TAILS)
def test_no_verdict_comes_without_the_evidence(tail: str) -> None:
    """From measurements all the way, so that what is proven of the evidence holds for verdicts."""
    chance = random.Random(f"20260302/{tail}")
    both, neither, evidence_only = 0, 0, 0
    for _ in range(25):
        truth = chance.choice([-0.06, -0.03, 0.0, 0.03, 0.06])
        logs = truth + np.array([rounds_of_noise(chance, tail, 0.5)])
        for rounds in range(FEWEST_ROUNDS, LIMIT + 1):
            judged, evident = verdict(logs[:, :rounds])[0], e_process(logs[:, :rounds])[0]
            assert judged in (0, evident)
            both += judged != 0
            neither += evident == 0
            evidence_only += judged != evident
    assert both > 50, "verdicts do come"
    assert neither > 50, "and not at once"
    assert evidence_only < both / 2, "only drift, and rounds that seem to correlate more than these, hold them back"
