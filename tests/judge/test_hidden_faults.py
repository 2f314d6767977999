"""Faults that make a number look good, and readings that no machine can give, do not pass."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.columns import Columns
from tests.builders.judged import (
    CONFIDENCE,
    judge_changed,
    judge_values,
    make_case,
    make_evidence,
    make_measurements,
    make_study,
)
from tests.judge.test_agreement import ROUNDS, run_of_four, verdict_on
from tests.judge.test_culprits import judge_slowed, slow
from tests.rows import rows


@rows("place", [0, 3, 7])
@rows("metric", ["weak_scaling_efficiency", "strong_scaling_speedup", "strong_scaling_efficiency"])
def test_a_rank_that_is_a_little_slow_fails_an_efficiency_wherever_it_is(metric: str, place: int) -> None:
    bound = 0.98 * (8 if metric == "strong_scaling_speedup" else 1)
    case = make_case(metric, bound, world_size=8)
    weak = make_case("throughput_per_gpu", 1.0, world_size=8)
    assert judge_slowed(slow(1.0), case, [weak]).passed
    verdict = judge_slowed(slow(1.03, place), case, [weak])
    assert verdict.outcome == "failed"
    assert verdict.value == pytest.approx(bound / 0.98 / 1.03, rel=1e-6)


@rows("place", range(2))
def test_of_two_ranks_the_faster_one_is_the_yardstick(place: int) -> None:
    verdict = judge_slowed(slow(1.2, place), make_case("weak_scaling_efficiency", 0.9))
    assert verdict.outcome == "failed"
    assert verdict.value == pytest.approx(1 / 1.2)


@rows(
    ("metric", "value", "bound"),
    [
        ("exposed_communication", -2.0, 0.2),
        ("communication_time", -20.0, 5.0),
        ("ddp_overhead", -0.6, 0.2),
        ("strong_scaling_speedup", 9.0, 1.5),
        ("strong_scaling_efficiency", 4.5, 0.5),
        ("weak_scaling_efficiency", 1.2, 0.9),
        ("model_flops_utilization", 1.3, 0.2),
    ],
)
def test_what_cannot_be_is_inconclusive_on_gpus(metric: str, value: float, bound: float) -> None:
    verdict = judge_values(metric, bound, [value] * 6)
    assert verdict.outcome == "inconclusive"
    assert verdict.reason.startswith("implausible: ")


@rows(("skipped", "outcome"), [(0, "passed"), (1, "passed"), (8, "inconclusive")])
def test_training_that_skips_its_steps_does_not_pass(skipped: int, outcome: str) -> None:
    verdict = judge_changed(
        "throughput_per_gpu", lambda one: replace(one, skipped_steps=skipped if one.round == 0 else 0)
    )
    assert verdict.outcome == outcome
    assert bool(verdict.notes) == (skipped > 0)


def test_rounds_that_only_another_arm_has_count_as_missing() -> None:
    case = make_case("throughput_per_gpu", 0.5)
    study = make_study(case)
    found = make_measurements(case, [0.9] * FEWEST_ROUNDS)
    later = [replace(one, arm="alone", round=one.round + FEWEST_ROUNDS) for one in found if one.rank == 0]
    assert judge(case, make_evidence(case, found), CONFIDENCE).passed
    verdict = judge(case, make_evidence(case, found + later), CONFIDENCE)
    assert verdict.outcome == "inconclusive"
    assert verdict.reason.startswith(f"only {FEWEST_ROUNDS} of {2 * FEWEST_ROUNDS} rounds are complete"), study.id


def test_of_repeated_measurements_the_earliest_counts_in_any_order() -> None:
    case = make_case("throughput_per_gpu", 0.5)
    good = make_measurements(case, [0.9] * FEWEST_ROUNDS)
    bad = [replace(one, block_s=10 * one.block_s, started_unix_s=one.started_unix_s + 100) for one in good]
    outcomes = set()
    for seed in range(5):
        shuffled = random.Random(seed).sample([*good, *bad], 2 * len(good))
        outcomes.add(judge(case, make_evidence(case, shuffled), CONFIDENCE).outcome)
    assert outcomes == {"passed"}


class TestReplicas:
    def test_parameters_are_compared_although_a_seeded_step_is_missing(self) -> None:
        evidence = run_of_four({2: range(ROUNDS)})
        lost = {study: [s for s in steps if s.rank != 0] for study, steps in evidence.seeded_steps.items()}
        verdict = verdict_on("throughput_per_gpu", replace(evidence, seeded_steps=lost))
        assert verdict.outcome == "error"
        assert verdict.culprits[0].gpu_index == 0
        assert verdict.culprits[0].host.endswith("1")

    def test_a_rank_outside_every_ddp_arm_is_compared_by_its_seeded_step(self) -> None:
        evidence = run_of_four(odd_seeded=[3])
        (study,) = evidence.plan.studies
        smaller = replace(study, arms=tuple(arm for arm in study.arms if arm.kind != "ddp" or arm.world_size < 4))
        found = Columns({key: arm for key, arm in evidence.columns.arms.items() if arm.arm != "ddp@4"})
        plan = replace(evidence.plan, studies=(smaller,))
        case = make_case("computation_time", 1e5, world_size=4)
        verdict = judge(case, replace(evidence, plan=plan, columns=found), CONFIDENCE)
        assert verdict.outcome == "error"
        assert "replica_agreement" in verdict.reason


# What a difference of two times may be, a reading may not: less than nothing.
SIGNED = ("exposed_communication", "ddp_overhead")


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
