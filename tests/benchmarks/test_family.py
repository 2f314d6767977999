"""The simulation that shows how often a machine on all its bounds is rejected judges as a run does."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ddpscale.judge.answer import OUTCOMES
from pytest_ddpscale.judge.stats import estimate
from tests.benchmarks.scripts import benchmark

family = benchmark("family")


def test_series_share_noise_and_remember_it_as_asked_for() -> None:
    values = family.noise(np.random.default_rng(1), 2, 50_000, 0.5, 0.3)
    assert values.var(axis=1) == pytest.approx([1.0, 1.0], rel=0.05)
    assert np.corrcoef(values)[0, 1] == pytest.approx(0.5, abs=0.03)
    assert np.corrcoef(values[0, 1:], values[0, :-1])[0, 1] == pytest.approx(0.3, abs=0.03)


def test_a_requirement_is_decided_as_the_judge_decides_it_at_its_last_look() -> None:
    missed = np.array([[-4], [-2], [-1], [1], [2], [4]])
    logs = family.NOISE * (family.noise(np.random.default_rng(2), 6, 32, 0.0, 0.0) + missed)
    for row, verdict in enumerate(family.run(logs, 0.95)):
        for rounds in range(8, verdict.rounds + 1):
            (code,), _ = estimate(np.exp(logs[row : row + 1, :rounds]), "factors", 0.95).against(1.0, 1)
            assert OUTCOMES[code] == (verdict.outcome if rounds == verdict.rounds else "inconclusive")


def test_a_machine_on_all_its_bounds_is_rejected_more_often_the_less_its_requirements_err_together() -> None:
    apart, together = (family.on_all_bounds(100, 84, 32, 0, 0.5, shared).rejected for shared in (0.0, 0.9))
    assert together < 0.2 < 0.4 < apart
