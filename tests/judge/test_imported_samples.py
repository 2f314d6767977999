"""One long sample of another tool is judged by the spread of its steps; anything else needs rounds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_ddpscale.judge.estimating import SINGLE_SAMPLE_NOTE, SINGLE_VALUE_NOTE
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.verdicts import Verdict
from tests.builders.judged import (
    CONFIDENCE,
    OF_A_PACE,
    READINGS,
    VALUED,
    easy_bound,
    hard_bound,
    least_value,
    make_case,
    make_evidence,
    make_measurements,
)
from tests.builders.measurements import Measurement
from tests.rows import rows

# Of differences between arms, and of the slowest of many, one long sample tells no error.
OF_OWN_ROUNDS = ("rank_uniformity", "exposed_communication", "communication_time", "ddp_overhead")
# Percentiles of steps, in ms, are taken from raw ones, which nobody imports.
WITHOUT_RAW_STEPS = [name for name in VALUED if METRICS[name].unit != "ms" and name not in OF_OWN_ROUNDS]


def judge_single(metric: str, bound: float, stdev: float | None) -> Verdict:
    """The verdict on one imported round of 100 steps, whose value is 0.9."""
    case = make_case(metric, bound)
    found = [as_import(one, stdev) for one in make_measurements(case, [least_value(metric) + 0.9])]
    return judge(case, make_evidence(case, found), CONFIDENCE)


def as_import(one: Measurement, stdev: float | None) -> Measurement:
    """100 steps at the same pace, whose standard deviation is a share of their mean; their times were not kept."""
    stdev_s = None if stdev is None else stdev * one.block_s / one.steps
    times = 100 / one.steps
    longer = replace(one, steps=100, block_s=one.block_s * times, energy_j=(one.energy_j or 0.0) * times)
    return replace(longer, step_s=(), step_stdev_s=stdev_s, single_sample=True)


def test_one_sample_has_the_interval_of_its_steps_and_says_so() -> None:
    verdict = judge_single("throughput_per_gpu", 0.89, stdev=0.05)
    # 5 % of a step over the square root of 100 steps
    reach = 1.959964 * 0.005
    assert verdict.interval == pytest.approx((0.9 * math.exp(-reach), 0.9 * math.exp(reach)))
    assert (verdict.outcome, verdict.rounds, verdict.notes) == ("passed", 1, (SINGLE_SAMPLE_NOTE,))


def test_a_wide_sample_does_not_decide() -> None:
    assert judge_single("throughput_per_gpu", 0.89, stdev=0.5).outcome == "inconclusive"


@rows("metric", [name for name in OF_A_PACE if name not in OF_OWN_ROUNDS])
def test_without_a_standard_deviation_one_sample_never_decides(metric: str) -> None:
    for bound in (0.01, easy_bound(metric), hard_bound(metric)):
        verdict = judge_single(metric, bound, stdev=None)
        assert (verdict.outcome, verdict.interval) == ("inconclusive", None)


@rows("metric", [name for name in READINGS if name != "images_per_joule"])
def test_an_imported_reading_stands_for_itself_and_says_so(metric: str) -> None:
    verdict = judge_single(metric, 0.91 if METRICS[metric].upper_bound else 0.89, stdev=0.05)
    assert verdict.notes == (SINGLE_VALUE_NOTE,)
    assert verdict.interval == pytest.approx((0.9, 0.9))
    assert verdict.outcome == "passed"


@rows("stdev", [None, 0.05])
def test_the_energy_of_one_block_never_decides(stdev: float | None) -> None:
    for bound in (0.01, 0.89, 2.0):
        verdict = judge_single("images_per_joule", bound, stdev)
        assert (verdict.outcome, verdict.interval) == ("inconclusive", None)
        assert verdict.value == pytest.approx(0.9)


@rows("metric", WITHOUT_RAW_STEPS)
def test_several_imported_rounds_are_too_few_like_any_others(metric: str) -> None:
    case = make_case(metric, easy_bound(metric))
    values = [least_value(metric) + value for value in (0.9, 0.91)]
    found = [as_import(one, 0.05) for one in make_measurements(case, values)]
    verdict = judge(case, make_evidence(case, found), CONFIDENCE)
    assert verdict.outcome == "inconclusive"
    assert verdict.reason.startswith(f"2 rounds; expected at least {FEWEST_ROUNDS}")


def test_one_round_of_our_own_is_no_imported_sample() -> None:
    case = make_case("throughput_per_gpu", 0.01)
    found = [replace(one, step_stdev_s=1e-6) for one in make_measurements(case, [0.9])]
    verdict = judge(case, make_evidence(case, found), CONFIDENCE)
    assert (verdict.outcome, verdict.notes) == ("inconclusive", ())
