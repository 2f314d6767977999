"""Estimates are positive and add up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.estimate import (
    HALF_WIDTHS_SD,
    OVERHEAD_PER_BLOCK_S,
    ROUND_SD,
    STARTUP_S,
    TYPICAL_ROUNDS,
    TimeEstimate,
    estimate,
    precise_rounds,
    round_seconds,
    study_seconds,
    usual_seconds,
)
from pytest_ddpscale.plan.study import Arm, Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.stats.sequential import EProcesses
from tests.builders.plans import PLANS, STUDIES
from tests.rows import rows

WORKLOAD = Workload("r", "resnet18", "fp32", 8)
STUDY = Study("weak", WORKLOAD, (Arm("alone", 1, 8), Arm("ddp", 4, 8)), rounds=5, block_s=1.5, warmup_s=10.0)


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


@rows("img_per_s", [{}, {"another": 0.001}, {"r": 0.0}])
def test_an_unknown_speed_leaves_the_blocks_as_long_as_they_aim_at(img_per_s: dict[str, float]) -> None:
    assert study_seconds(STUDY, img_per_s) == study_seconds(STUDY)


def test_a_plan_holds_all_its_devices_all_the_time() -> None:
    found = estimate(Plan("a100", "cuda", (STUDY,)))
    assert found.seconds == pytest.approx(STARTUP_S + study_seconds(STUDY))
    assert found.device_hours == pytest.approx(4 * found.seconds / 3600)


def test_nothing_to_measure_takes_no_time() -> None:
    assert estimate(Plan("a100", "cuda", ())) == TimeEstimate(0.0, 0.0, 0.0)
    assert estimate(Plan("a100", "cuda", ()), isolate=True) == TimeEstimate(0.0, 0.0, 0.0)


@given(STUDIES, st.floats(0.1, 1e5))
def test_a_study_takes_time_and_more_with_every_round(study: Study, speed: float) -> None:
    img_per_s = {study.workload.name: speed}
    longer = replace(study, rounds=study.rounds + 1)
    assert 0 < study_seconds(study) <= study_seconds(study, img_per_s)
    assert study_seconds(study, img_per_s, rounds=None) < study_seconds(longer, img_per_s, rounds=None)


def test_most_studies_are_decided_before_their_limit() -> None:
    long = replace(STUDY, rounds=100)
    assert study_seconds(long) == study_seconds(replace(STUDY, rounds=TYPICAL_ROUNDS))
    found = estimate(Plan("a100", "cuda", (long,)))
    assert found.seconds == pytest.approx(STARTUP_S + study_seconds(long))
    assert found.most_seconds == pytest.approx(STARTUP_S + study_seconds(long, rounds=None))
    assert found.most_seconds > 5 * found.seconds


@given(PLANS, st.floats(0.1, 1e5))
def test_studies_add_up_and_share_one_start_up(plan: Plan, speed: float) -> None:
    img_per_s = {study.workload.name: speed for study in plan.studies}
    parts = [estimate(replace(plan, studies=(study,)), img_per_s=img_per_s).seconds for study in plan.studies]
    shared = STARTUP_S * max(0, len(parts) - 1)
    assert estimate(plan, img_per_s=img_per_s).seconds == pytest.approx(sum(parts) - shared)
    assert estimate(plan, isolate=True, img_per_s=img_per_s).seconds == pytest.approx(sum(parts))


class TestPrecision:
    """What a narrow interval costs."""

    LONG = replace(STUDY, rounds=32)

    def test_half_widths_are_those_of_the_judges_intervals(self) -> None:
        series = np.random.default_rng(3).standard_normal((1500, 32))
        for rounds, half_width in HALF_WIDTHS_SD.items():
            low, high = EProcesses(series[:, :rounds]).intervals(0.95).T
            assert np.quantile((high - low) / 2, 0.8) == pytest.approx(half_width, rel=0.06)

    def test_takes_more_rounds_the_narrower_it_is(self) -> None:
        asked = [precise_rounds(self.LONG, "cuda", precision) for precision in (0.02, 0.01, 0.005, 0.002)]
        assert asked[0] == min(HALF_WIDTHS_SD)
        assert asked == sorted(set(asked))
        assert asked[-1] > max(HALF_WIDTHS_SD)

    def test_takes_more_rounds_of_a_ratio_and_on_a_noisier_device(self) -> None:
        one_arm = replace(self.LONG, arms=self.LONG.arms[1:])
        precision = 2 * ROUND_SD["cuda"]
        assert precise_rounds(one_arm, "cuda", precision) < precise_rounds(self.LONG, "cuda", precision)
        assert precise_rounds(self.LONG, "cuda", precision) < precise_rounds(self.LONG, "cpu", precision)

    def test_takes_as_many_of_a_ratio_to_one_gpu_under_ddp_as_to_one_alone(self) -> None:
        under_ddp = replace(self.LONG, arms=(Arm("ddp", 1, 8), *self.LONG.arms[1:]))
        assert precise_rounds(under_ddp, "cuda", 0.005) == precise_rounds(self.LONG, "cuda", 0.005)

    def test_adds_rounds_of_the_arms_that_tell_speed(self) -> None:
        study = replace(self.LONG, arms=(*self.LONG.arms, Arm("each", 4, 8)))
        plan = Plan("a100", "cuda", (study,), precision=0.007)
        more = precise_rounds(study, "cuda", 0.007) - TYPICAL_ROUNDS
        assert 0 < more < 32 - TYPICAL_ROUNDS
        expected_s = study_seconds(study) + more * round_seconds(study, study.arms[:2])
        assert usual_seconds(plan, study) == pytest.approx(expected_s)
        assert estimate(plan).seconds == pytest.approx(STARTUP_S + expected_s)

    def test_costs_no_more_than_all_rounds_and_nothing_where_nobody_asks(self) -> None:
        plan = Plan("a100", "cuda", (self.LONG,), precision=0.0001)
        assert usual_seconds(plan, self.LONG) == pytest.approx(study_seconds(self.LONG, rounds=None))
        assert usual_seconds(replace(plan, precision=None), self.LONG) == study_seconds(self.LONG)
        assert estimate(plan).most_seconds == estimate(replace(plan, precision=None)).most_seconds
