"""Throughput and its error at each size, from the rounds of a run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pytest_ddpscale.forecast.measured_sizes import (
    MeasuredSize,
    ScalingSeries,
    mean_of_launches,
    round_errors,
    scaling_series,
)
from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.plan.variant import Variant
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


def test_an_arm_with_other_settings_is_no_size() -> None:
    other = replace(TWO, variant=Variant(bucket_cap_mb=1))

    def rate(arm: Arm, number: int, rank: int) -> float:
        return 10.0 if arm == other else 100.0

    assert [one.img_per_s for one in series_of(ALONE, other, TWO, rate=rate).sizes] == pytest.approx([100, 200])


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


def launch(*rates: float, error: float | None = 0.001) -> list[MeasuredSize]:
    """Sizes of 1, 2, 4 … GPUs."""
    return [MeasuredSize(2**i, rate, 2.0, error) for i, rate in enumerate(rates)]


class TestMeanOfLaunches:
    def test_is_the_geometric_mean_of_each_size(self) -> None:
        found = mean_of_launches([launch(100.0, 200.0), launch(110.0, 198.0), launch(90.0, 202.0)])
        rates = [one.img_per_s for one in found]
        assert rates == pytest.approx([(100 * 110 * 90) ** (1 / 3), (200 * 198 * 202) ** (1 / 3)])
        assert [one.energy_j_per_image for one in found] == [2.0, 2.0]

    def test_is_known_better_than_one_launch_where_launches_are_alike(self) -> None:
        (one, *_) = mean_of_launches([launch(100.0, 200.0)] * 4)
        assert one.error == pytest.approx(0.001 / 2)

    def test_is_known_as_launches_differ_where_they_differ_by_more_than_rounds(self) -> None:
        chance = np.random.default_rng(1)
        sizes = [100.0 * 2**power for power in range(20)]
        launches = [launch(*(rate * math.exp(0.02 * chance.standard_normal()) for rate in sizes)) for _ in range(10)]
        found = mean_of_launches(launches)
        assert found[0].error == pytest.approx(0.02 / math.sqrt(10), rel=0.2)  # 171 degrees of freedom: sd 5 %
        assert {one.error for one in found} == {found[0].error}

    def test_leaves_out_what_all_sizes_share_in_a_launch(self) -> None:
        (one, *_) = mean_of_launches([launch(100.0, 200.0), launch(50.0, 100.0), launch(70.0, 140.0)])
        assert one.error == pytest.approx(0.001 / math.sqrt(3))

    def test_leaves_out_a_launch_that_broke(self) -> None:
        found = mean_of_launches([launch(50.0), launch(100.0, 200.0), []])
        assert {one.gpus: one.img_per_s for one in found} == pytest.approx({1: 100.0, 2: 200.0})

    def test_without_errors_of_rounds_has_none(self) -> None:
        assert [one.error for one in mean_of_launches([launch(100.0, 200.0, error=None)] * 2)] == [None, None]


def test_all_launches_of_a_run_count() -> None:
    study = Study("weak", WORKLOAD, (ALONE, TWO), ROUNDS, 1.0, 0.0)
    second = replace(study, launch=2)
    plan = Plan("a100", "cuda", (study, second), launches=2)
    found = measure(study, ROUNDS, lambda *_: 100.0) + measure(second, ROUNDS, lambda *_: 121.0)
    (series,) = scaling_series(evidence_of_plan(plan, found))
    assert series.sizes[0].img_per_s == pytest.approx(110)
