"""Throughput at each size of a run; speed-up, gain, time, cost and sweet spots, as published tables have them."""

from __future__ import annotations

import pytest

from pytest_ddpscale.report.scaling_facts import (
    MeasuredSize,
    ScalingFact,
    TrainingJob,
    scaling_facts,
    sweet_spots,
)

MICRO = {1: 240.0, 2: 464.0, 4: 892.0, 8: 1668.0, 16: 3075.0, 32: 5205.0}


def facts_of(job: TrainingJob) -> list[ScalingFact]:
    return scaling_facts([MeasuredSize(gpus, rate, 3.6) for gpus, rate in MICRO.items()], job)


def test_gains_and_efficiencies_are_those_of_the_published_tables() -> None:
    facts = facts_of(TrainingJob(1e5))
    # The table itself cuts its percentages: 1668/892 is 1.870.
    assert [round(100 * (one.gain or 0)) for one in facts[1:]] == [93, 92, 87, 84, 69]
    assert [round(100 * one.efficiency, 1) for one in facts] == [100, 96.7, 92.9, 86.9, 80.1, 67.8]

    assert [round(one.more_samples_per_s or 0) for one in facts[1:]] == [224, 428, 776, 1407, 2130]


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


def test_a_known_efficiency_is_the_one_told_whatever_the_throughputs_are() -> None:
    facts = scaling_facts([MeasuredSize(1, 100.0), MeasuredSize(8, 700.0, efficiency=0.8)], TrainingJob(1))
    assert [(one.speedup, one.efficiency) for one in facts] == [(1.0, 1.0), (6.4, 0.8)]
    assert facts[1].gain == pytest.approx(7 ** (1 / 3) - 1)
