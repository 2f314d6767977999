"""Throughput and its error at each size, from the rounds of a run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest

from pytest_ddpscale.forecast.measured_sizes import ScalingSeries, round_errors, scaling_series
from pytest_ddpscale.plan.study import Arm, Plan, Study
from tests.builders.judged import WORKLOAD, evidence_of_plan, measure

ALONE, ONE, TWO, FOUR = Arm("alone", 1, 4), Arm("ddp", 1, 4), Arm("ddp", 2, 4), Arm("ddp", 4, 4)
ROUNDS = 16


def noise(sd: float, seed: int) -> dict[int, float]:
    """Deviations of the rounds of one size."""
    return dict(enumerate((sd * np.random.default_rng(seed).standard_normal(ROUNDS)).tolist()))


def series_of(
    *arms: Arm, rounds: int = ROUNDS, rate: Callable[[Arm, int, int], float] = lambda arm, number, rank: 100.0
) -> ScalingSeries:
    """Of one node's run."""
    study = Study("weak", WORKLOAD, arms, rounds, 1.0, 0.0)
    (found,) = scaling_series(evidence_of_plan(Plan("a100", "cuda", (study,)), measure(study, rounds, rate)))
    return found


class TestRoundErrors:
    def test_are_the_standard_errors_of_independent_rounds(self) -> None:
        found = round_errors({gpus: noise(0.01, gpus) for gpus in (1, 2, 4, 8, 16, 32)})
        mean = statistics.fmean(error for error in found.values() if error is not None)
        assert mean == pytest.approx(0.01 / math.sqrt(ROUNDS), rel=0.3)

    def test_of_two_sizes_are_the_error_of_their_ratio(self) -> None:
        one, two = noise(0.01, 1), noise(0.01, 2)
        errors = round_errors({1: one, 2: two})
        ratio = statistics.stdev(two[number] - one[number] for number in one) / math.sqrt(ROUNDS)
        assert math.hypot(errors[1] or 0, errors[2] or 0) >= ratio * 0.999
        assert math.hypot(errors[1] or 0, errors[2] or 0) < 1.7 * ratio  # with what successive rounds share

    def test_leave_out_what_all_sizes_share_in_a_round(self) -> None:
        shared = noise(0.1, 9)
        own = {gpus: noise(0.001, gpus) for gpus in (1, 2, 4)}
        both = {gpus: {n: shared[n] + value for n, value in of_size.items()} for gpus, of_size in own.items()}
        assert round_errors(both) == pytest.approx(round_errors(own))

    def test_are_larger_where_successive_rounds_are_alike(self) -> None:
        slow = {gpus: {n: 0.01 * math.sin(n / 2 + gpus) for n in range(ROUNDS)} for gpus in (1, 2, 4)}
        found = round_errors(slow)
        for gpus, of_size in slow.items():
            assert (found[gpus] or 0) > 1.5 * statistics.stdev(of_size.values()) / math.sqrt(ROUNDS)

    def test_take_four_rounds_that_all_sizes_have(self) -> None:
        few = {1: {0: 0.0, 1: 0.1, 2: 0.0, 3: 0.1}, 2: {1: 0.0, 2: 0.1, 3: 0.0}}
        assert round_errors(few) == {1: None, 2: None}

    def test_of_one_size_alone_are_unknown(self) -> None:
        assert round_errors({8: noise(0.01, 1)}) == {8: None}
        assert round_errors({}) == {}


def test_a_series_has_the_error_of_its_rounds() -> None:
    def rate(arm: Arm, number: int, rank: int) -> float:
        return 100.0 * (1 + (0.02 if (number + arm.world_size) % 2 else -0.02) * (arm.world_size == 4))

    found = series_of(ALONE, TWO, FOUR, rate=rate)
    assert [one.gpus for one in found.sizes] == [1, 2, 4]
    assert found.sizes[2].img_per_s == pytest.approx(400, rel=1e-3)
    assert found.sizes[2].error == pytest.approx(0.0043, rel=0.1)
    assert (found.sizes[0].error or 0) < 0.6 * (found.sizes[2].error or 0)


def test_without_an_arm_alone_ddp_of_one_rank_counts() -> None:
    assert [one.gpus for one in series_of(ONE, TWO).sizes] == [1, 2]
    assert series_of(ONE, TWO).has_one_gpu


def test_without_any_arm_of_one_rank_the_fewest_are_what_it_is_relative_to() -> None:
    found = series_of(TWO, FOUR)
    assert [one.gpus for one in found.sizes] == [2, 4]
    assert not found.has_one_gpu


def test_a_single_round_has_no_error() -> None:
    assert [one.error for one in series_of(ALONE, TWO, rounds=1).sizes] == [None, None]


def test_one_gpu_is_the_arm_alone_before_ddp_of_one_rank() -> None:
    found = series_of(ONE, ALONE, TWO, rate=lambda arm, number, rank: 90.0 if arm == ONE else 100.0)
    assert found.sizes[0].img_per_s == pytest.approx(100)
