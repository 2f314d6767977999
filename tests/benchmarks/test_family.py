"""A machine on all its bounds is rejected too often without the correction, and not with it."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ddpscale.results.verdicts import Verdict
from pytest_ddpscale.simulate.measuring import SimulatedRun
from pytest_ddpscale.verdict.family import with_family_confidence
from tests.benchmarks.scripts import benchmark
from tests.builders.clusters import a100, faults

decide = benchmark("simulated_session").decide
family = benchmark("family")
REQUIREMENTS, RUNS = 84, 100


def test_series_share_noise_and_remember_it_as_asked_for() -> None:
    values = family.noise(np.random.default_rng(1), 2, 50_000, 0.5, 0.3)
    assert values.var(axis=1) == pytest.approx([1.0, 1.0], rel=0.05)
    assert np.corrcoef(values)[0, 1] == pytest.approx(0.5, abs=0.03)
    assert np.corrcoef(values[0, 1:], values[0, :-1])[0, 1] == pytest.approx(0.3, abs=0.03)


def test_a_requirement_is_decided_as_the_judge_decides_it_at_its_last_look() -> None:
    missed = np.array([[-4], [-2], [-1], [1], [2], [4]])
    logs = family.NOISE * (family.noise(np.random.default_rng(2), 6, 32, 0.0, 0.0) + missed)
    for row, verdict in enumerate(family.run(logs, 0.95)):
        again = family.judged(logs[row, : verdict.rounds], "", 0.95)
        assert (verdict.outcome, verdict.rounds) == (again.outcome, again.rounds)


@pytest.mark.parametrize("between_requirements", [0.0, 0.5])
def test_a_machine_on_all_its_bounds_is_rejected_in_at_most_5_of_100_runs(between_requirements: float) -> None:
    found = family.together(RUNS, REQUIREMENTS, 32, 0, 0.5, between_requirements)
    assert found.alone > 0.15
    assert found.together <= 0.05


def test_a_bound_that_is_clearly_missed_still_rejects() -> None:
    found = family.together(20, REQUIREMENTS, 32, 0, 0.0, 0.0, missed=3.0)
    assert found.together == 1.0
    assert found.alone_rounds <= found.together_rounds < 20


@pytest.mark.parametrize("seed", range(2))
def test_a_gpu_that_is_6_per_cent_slow_still_rejects(seed: int) -> None:
    cluster = a100()
    plan = cluster.plan(rounds=32, short_blocks=True)
    run = SimulatedRun(plan, cluster.performance, faults(f"slow-gpu:{seed + 1}:1.06"), seed)
    verdicts: list[Verdict] = [one for study in decide(run, cluster.cases, 0.95, 0.95) for one in study.verdicts]
    corrected = with_family_confidence(verdicts, 0.95)
    assert any(one.outcome == "failed" and one.severity == "fail" for one in corrected)
