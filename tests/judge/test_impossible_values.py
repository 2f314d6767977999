"""Readings that no machine can give never pass, and what can be nothing at all may be."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from tests.builders.judged import (
    CONFIDENCE,
    OF_A_PACE,
    judge_changed,
    judge_values,
    make_case,
    make_evidence,
    make_measurements,
)
from tests.rows import rows

# What a difference of two times may be, a reading may not: less than nothing.
SIGNED = ("exposed_communication", "ddp_overhead")


@rows("reading", [math.nan, None])
@rows("rank", [0, 1])
def test_one_rank_without_a_utilization_never_passes(reading: float | None, rank: int) -> None:
    verdict = judge_changed(
        "device_utilization", lambda one: replace(one, utilization=reading) if one.rank == rank else one
    )
    assert verdict.outcome == "not_measured"


@rows("reading", [-0.1, -1e9, math.inf, -math.inf])
def test_an_impossible_utilization_is_an_error(reading: float) -> None:
    verdict = judge_changed("device_utilization", lambda one: replace(one, utilization=reading))
    assert verdict.outcome == "error"
    assert verdict.reason.startswith("an impossible value was measured: [")
    assert verdict.value is None


def test_one_impossible_round_among_good_ones_is_an_error() -> None:
    verdict = judge_changed("device_utilization", lambda one: replace(one, utilization=-0.2) if one.round == 4 else one)
    assert verdict.outcome == "error"


def test_a_device_that_idled_all_the_time_fails() -> None:
    verdict = judge_changed("device_utilization", lambda one: replace(one, utilization=0.0))
    assert (verdict.outcome, verdict.value, verdict.interval) == ("failed", 0.0, (0.0, 0.0))


@rows("metric", [*SIGNED, "communication_time", "memory_spread", "step_time_cv"])
def test_no_difference_at_all_is_as_good_as_can_be(metric: str) -> None:
    verdict = judge_values(metric, 0.01, [0.0] * FEWEST_ROUNDS)
    assert verdict.outcome == "passed"
    assert verdict.interval == pytest.approx((0.0, 0.0), abs=1e-9)


@rows("metric", SIGNED)
def test_noise_may_make_a_difference_of_times_negative(metric: str) -> None:
    verdict = judge_values(metric, 0.01, [-0.001, 0.0012, -0.0004, 0.0007, -0.0011, 0.0002, -0.0006, 0.0009])
    assert verdict.outcome == "passed"
    assert verdict.interval is not None
    assert verdict.interval[0] < 0 < verdict.interval[1]


def test_a_value_too_small_for_a_number_is_an_error() -> None:
    case = replace(make_case("generation_ratio", 0.5), reference_samples_per_s=1e300)
    found = [replace(one, block_s=1e300) for one in make_measurements(case, [0.9] * 5)]
    verdict = judge(case, make_evidence(case, found), CONFIDENCE)
    assert (verdict.outcome, verdict.reason) == ("error", "an impossible value was measured: [0.0, 0.0, 0.0, 0.0, 0.0]")


@rows("metric", ["peak_memory_gib", "memory_spread"])
@rows("reading", [0, -1])
def test_training_in_no_memory_never_passes(metric: str, reading: int) -> None:
    both = judge_changed(metric, lambda one: replace(one, peak_memory_bytes=reading))
    assert both.outcome in ("not_measured", "error")


@rows("metric", ["peak_memory_gib", "memory_spread"])
def test_no_memory_on_one_rank_never_passes(metric: str) -> None:
    one_of_two = judge_changed(metric, lambda one: replace(one, peak_memory_bytes=0) if one.rank == 1 else one)
    assert one_of_two.outcome == "not_measured"


@rows("metric", OF_A_PACE)
@rows("batch_size", [0, -4, 8])
def test_another_batch_than_the_arms_does_not_count(metric: str, batch_size: int) -> None:
    verdict = judge_changed(metric, lambda one: replace(one, batch_size=batch_size))
    assert (verdict.outcome, verdict.value) == ("not_measured", None)
