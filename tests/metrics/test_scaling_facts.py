"""Throughput at each size of a run; speed-up, gain, time, cost and sweet spots, as published tables have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_ddpscale.metrics.scaling_facts import (
    MeasuredSize,
    ScalingFact,
    ScalingSeries,
    TrainingJob,
    mean_of_launches,
    scaling_facts,
    scaling_series,
    sweet_spots,
)
from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.plan.variant import Variant
from tests.builders.judged import WORKLOAD, evidence_of_plan, measure

MICRO = {1: 240.0, 2: 464.0, 4: 892.0, 8: 1668.0, 16: 3075.0, 32: 5205.0}


def facts_of(job: TrainingJob) -> list[ScalingFact]:
    return scaling_facts([MeasuredSize(gpus, rate, 3.6) for gpus, rate in MICRO.items()], job)


def test_gains_and_efficiencies_are_those_of_the_published_tables() -> None:
    facts = facts_of(TrainingJob(1e5))
    # The table itself cuts its percentages: 1668/892 is 1.870.
    assert [round(100 * (one.gain or 0)) for one in facts[1:]] == [93, 92, 87, 84, 69]
    assert [round(100 * one.efficiency, 1) for one in facts] == [100, 96.7, 92.9, 86.9, 80.1, 67.8]

    assert [round(one.more_img_per_s or 0) for one in facts[1:]] == [224, 428, 776, 1407, 2130]


def test_fixed_time_saturates_while_throughput_grows() -> None:
    """Times as in table 12.4 of that chapter, "saturation effects beyond 8 GPUs": 556, 439, 380, 347, 330, 328 s."""
    facts = facts_of(TrainingJob(240 * 240, 316))
    assert [round(one.train_s) for one in facts] == pytest.approx([556, 439, 380, 347, 330, 328], abs=5)
    spots = sweet_spots(facts, deadline_s=400)
    assert spots.saturation == 8
    assert spots.deadline == 4
    assert spots.efficiency == 4


def test_amdahl_share_of_a_serial_tenth() -> None:
    sizes = [MeasuredSize(n, 100 / (0.1 + 0.9 / n)) for n in (1, 2, 8)]
    assert [one.serial_share for one in scaling_facts(sizes, TrainingJob(1))[1:]] == pytest.approx([0.1, 0.1])


def test_costs_are_of_gpu_hours_and_kilowatt_hours() -> None:
    (one,) = scaling_facts([MeasuredSize(4, 1000.0, 3.6)], TrainingJob(3.6e6, 0, 2.0, 0.5))
    assert one.gpu_cost == pytest.approx(8.0)
    assert one.energy_cost == pytest.approx(1.8)


def test_a_leap_of_three_doublings_saturates_as_each_of_them_would() -> None:
    sizes = [MeasuredSize(1, 100.0), MeasuredSize(8, 112.0)]
    (_, leap) = scaling_facts(sizes, TrainingJob(1e5))
    assert leap.saved_share == pytest.approx(0.107, abs=0.001)
    assert leap.saved_per_doubling == pytest.approx(0.037, abs=0.001)
    assert sweet_spots(scaling_facts(sizes, TrainingJob(1e5)), None).saturation == 1


ALONE, ONE, TWO, FOUR = Arm("alone", 1, 4), Arm("ddp", 1, 4), Arm("ddp", 2, 4), Arm("ddp", 4, 4)
ROUNDS = 4


def series_of(*arms: Arm, rate: Callable[[Arm, int, int], float] = lambda arm, number, rank: 100.0) -> ScalingSeries:
    """Of one node's run."""
    study = Study("weak", WORKLOAD, arms, ROUNDS, 1.0, 0.0)
    (found,) = scaling_series(evidence_of_plan(Plan("a100", "cuda", (study,)), measure(study, ROUNDS, rate)))
    return found


def test_an_arm_with_other_settings_is_no_size() -> None:
    other = replace(TWO, variant=Variant(bucket_cap_mb=1))

    def rate(arm: Arm, number: int, rank: int) -> float:
        return 10.0 if arm == other else 100.0

    found = series_of(ALONE, other, TWO, FOUR, rate=rate)
    assert [one.gpus for one in found.sizes] == [1, 2, 4]
    assert [one.img_per_s for one in found.sizes] == pytest.approx([100, 200, 400])


def test_without_an_arm_alone_ddp_of_one_rank_counts() -> None:
    assert [one.gpus for one in series_of(ONE, TWO).sizes] == [1, 2]
    assert series_of(ONE, TWO).has_one_gpu
    found = series_of(ONE, ALONE, TWO, rate=lambda arm, number, rank: 90.0 if arm == ONE else 100.0)
    assert found.sizes[0].img_per_s == pytest.approx(100)


def test_without_any_arm_of_one_rank_the_fewest_are_what_it_is_relative_to() -> None:
    found = series_of(TWO, FOUR)
    assert [one.gpus for one in found.sizes] == [2, 4]
    assert not found.has_one_gpu


def launch(*rates: float) -> list[MeasuredSize]:
    """Sizes of 1, 2, 4 … GPUs."""
    return [MeasuredSize(2**i, rate, 2.0) for i, rate in enumerate(rates)]


def test_launches_count_by_their_geometric_mean_without_those_that_broke() -> None:
    found = mean_of_launches([launch(50.0), launch(100.0, 200.0), launch(110.0, 198.0), launch(90.0, 202.0), []])
    rates = [one.img_per_s for one in found]
    assert rates == pytest.approx([(100 * 110 * 90) ** (1 / 3), (200 * 198 * 202) ** (1 / 3)])
    assert [one.energy_j_per_image for one in found] == [2.0, 2.0]


def test_all_launches_of_a_run_count() -> None:
    study = Study("weak", WORKLOAD, (ALONE, TWO), ROUNDS, 1.0, 0.0)
    second = replace(study, launch=2)
    plan = Plan("a100", "cuda", (study, second), launches=2)
    found = measure(study, ROUNDS, lambda *_: 100.0) + measure(second, ROUNDS, lambda *_: 121.0)
    (series,) = scaling_series(evidence_of_plan(plan, found))
    assert series.sizes[0].img_per_s == pytest.approx(110)
