"""Noise of rounds: as large, as correlated and as one-sided as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_ddpscale.simulate.round_noise import RoundNoise, Tail


def logs(noise: RoundNoise, rounds: int = 32, count: int = 4000) -> np.ndarray:
    return noise.series(np.random.default_rng(1), rounds, count)


@pytest.mark.parametrize("tail", ["Gaussian", "Student-t, 3 degrees"])
@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_noise_has_its_deviation_and_correlation_from_the_first_round_on(tail: Tail, correlation: float) -> None:
    found = logs(RoundNoise(0.01, correlation, tail)).clip(-0.2, 0.2)
    assert found[:, 0].std() == pytest.approx(0.01, rel=0.15)
    assert found[:, -1].std() == pytest.approx(0.01, rel=0.15)
    assert np.corrcoef(found[:, 9], found[:, 10])[0, 1] == pytest.approx(correlation, abs=0.1)


def test_a_hiccup_only_makes_slower() -> None:
    quiet, disturbed = logs(RoundNoise(0.01)), logs(RoundNoise(0.01, hiccup_share=0.05))
    added = disturbed - quiet
    assert added.min() == 0
    assert (added > 0).mean() == pytest.approx(0.05, abs=0.005)
    assert added.max() == pytest.approx(0.1, rel=0.01)


def test_a_ramp_ends_where_it_says_and_a_step_stays() -> None:
    assert logs(RoundNoise(0.0, ramp=0.03))[0, [0, -1]].tolist() == pytest.approx([0, math.log(1.03)])
    assert logs(RoundNoise(0.0, step=0.03), 4)[0].tolist() == pytest.approx([0, 0, math.log(1.03), math.log(1.03)])
