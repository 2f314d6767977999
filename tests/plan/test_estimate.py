"""Estimates are positive and add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.estimate import (
    OVERHEAD_PER_BLOCK_S,
    STARTUP_S,
    TYPICAL_ROUNDS,
    UNKNOWN,
    TimeEstimate,
    estimate,
    study_times,
)
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from tests.builders.plans import PLANS, STUDIES
from tests.rows import rows

WORKLOAD = Workload("r", ImageFamily("resnet18"), "fp32", 8)
STUDY = Study("weak", WORKLOAD, (Arm("alone", 1, 8), Arm("ddp", 4, 8)), rounds=5, block_s=1.5, warmup_s=10.0)


def study_seconds(study: Study, samples_per_s: Mapping[str, float] = UNKNOWN, *, is_most: bool = False) -> float:
    """Of the usual number of rounds, or of all."""
    (found,) = study_times(Plan("a100", "cuda", (study,)), samples_per_s).values()
    return found.seconds(found.most if is_most else found.usual)


def test_a_study_takes_its_warm_up_and_every_block_of_every_round() -> None:
    assert study_seconds(STUDY) == pytest.approx(10 + 5 * 2 * (1.5 + OVERHEAD_PER_BLOCK_S))


def test_steps_longer_than_a_block_make_it_longer() -> None:
    # At 4 img/s a step of 8 images takes 2 s: a block has at least 3 of them, after an untimed one,
    # and either arm warms up by one such block.
    expected_s = 2 * (2 + 6) + 5 * 2 * (2 + 6 + OVERHEAD_PER_BLOCK_S)
    assert study_seconds(STUDY, {"r": 4.0}) == pytest.approx(expected_s)


def test_quick_steps_cost_no_more_than_the_untimed_ones() -> None:
    expected_s = 10 + 5 * 2 * (1.5 + 0.01 + OVERHEAD_PER_BLOCK_S)
    assert study_seconds(STUDY, {"r": 800.0, "another": 0.001}) == pytest.approx(expected_s)


@rows("samples_per_s", [{}, {"another": 0.001}, {"r": 0.0}])
def test_an_unknown_speed_leaves_the_blocks_as_long_as_they_aim_at(samples_per_s: dict[str, float]) -> None:
    assert study_seconds(STUDY, samples_per_s) == study_seconds(STUDY)


def test_a_plan_holds_all_its_devices_all_the_time() -> None:
    found = estimate(Plan("a100", "cuda", (STUDY,)))
    assert found.seconds == pytest.approx(STARTUP_S + study_seconds(STUDY))
    assert found.device_hours == pytest.approx(4 * found.seconds / 3600)


def test_nothing_to_measure_takes_no_time() -> None:
    assert estimate(Plan("a100", "cuda", ())) == TimeEstimate(0.0, 0.0, 0.0)
    assert estimate(Plan("a100", "cuda", ()), isolate=True) == TimeEstimate(0.0, 0.0, 0.0)


@given(STUDIES, st.floats(0.1, 1e5))
def test_a_study_takes_time_and_more_with_every_round(study: Study, speed: float) -> None:
    samples_per_s = {study.workload.name: speed}
    longer = replace(study, rounds=study.rounds + 1)
    assert 0 < study_seconds(study) <= study_seconds(study, samples_per_s)
    assert study_seconds(study, samples_per_s, is_most=True) < study_seconds(longer, samples_per_s, is_most=True)


def test_most_studies_are_decided_before_their_limit() -> None:
    long = replace(STUDY, rounds=100)
    assert study_seconds(long) == study_seconds(replace(STUDY, rounds=TYPICAL_ROUNDS))
    found = estimate(Plan("a100", "cuda", (long,)))
    assert found.seconds == pytest.approx(STARTUP_S + study_seconds(long))
    assert found.most_seconds == pytest.approx(STARTUP_S + study_seconds(long, is_most=True))
    assert found.most_seconds > 5 * found.seconds


@given(PLANS, st.floats(0.1, 1e5))
def test_studies_add_up_and_share_one_start_up(plan: Plan, speed: float) -> None:
    samples_per_s = {study.workload.name: speed for study in plan.studies}
    parts = [estimate(replace(plan, studies=(study,)), samples_per_s=samples_per_s).seconds for study in plan.studies]
    shared = STARTUP_S * max(0, len(parts) - 1)
    assert estimate(plan, samples_per_s=samples_per_s).seconds == pytest.approx(sum(parts) - shared)
    assert estimate(plan, isolate=True, samples_per_s=samples_per_s).seconds == pytest.approx(sum(parts))
