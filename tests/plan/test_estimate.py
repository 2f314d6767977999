"""Estimates are positive and add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.estimate import (
    OVERHEAD_PER_BLOCK_S,
    PROBE_SETUP_S,
    STARTUP_S,
    SURVEY_S,
    TYPICAL_ROUNDS,
    UNKNOWN,
    TimeEstimate,
    estimate,
    study_times,
)
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
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


PROBES = ProbeStudy((Arm("matmul-fp16"), Arm("all-reduce-32mib", 4)), 16, 0.5)
PROBED = Plan("a100", "cuda", (), ranks_per_node=8, probes=PROBES)


def probes_seconds(study: ProbeStudy, rounds: int) -> float:
    (found,) = study_times(Plan("a100", "cuda", (), ranks_per_node=8, probes=study)).values()
    assert (found.usual, found.most) == (min(study.rounds, TYPICAL_ROUNDS), study.rounds)
    return found.seconds(rounds)


def test_every_probe_takes_its_setup_and_every_round_its_block() -> None:
    assert probes_seconds(PROBES, 16) == pytest.approx(2 * (PROBE_SETUP_S + 16 * (0.5 + OVERHEAD_PER_BLOCK_S)))
    assert probes_seconds(replace(PROBES, rounds=5), 5) < probes_seconds(PROBES, TYPICAL_ROUNDS)


def test_probes_and_the_survey_add_up_with_what_is_trained() -> None:
    trains = Plan("a100", "cuda", (STUDY,), ranks_per_node=8)
    without = estimate(trains)
    with_both = estimate(replace(trains, probes=PROBES, survey=True))
    assert with_both.seconds == pytest.approx(without.seconds + probes_seconds(PROBES, TYPICAL_ROUNDS) + SURVEY_S)
    most = probes_seconds(PROBES, PROBES.rounds)
    assert with_both.most_seconds == pytest.approx(without.most_seconds + most + SURVEY_S)


def test_probes_alone_take_a_gang_and_its_gpus() -> None:
    found = estimate(PROBED)
    assert found.seconds == pytest.approx(STARTUP_S + probes_seconds(PROBES, TYPICAL_ROUNDS))
    assert found.device_hours == pytest.approx(8 * found.seconds / 3600)


def test_a_survey_alone_takes_neither() -> None:
    found = estimate(Plan("a100", "cuda", (), survey=True))
    assert (found.seconds, found.device_hours) == (SURVEY_S, 0.0)


def test_in_isolation_probes_have_a_gang_of_their_own() -> None:
    plan = replace(PROBED, studies=(STUDY,))
    assert estimate(plan, isolate=True).seconds == pytest.approx(estimate(plan).seconds + STARTUP_S)
