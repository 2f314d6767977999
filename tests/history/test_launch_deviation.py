"""A single launch whose places have a past has an interval that holds the deviation between launches, too."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpscale.history.key_values import key_values_of
from pytest_ddpscale.history.prediction import Reference, references
from pytest_ddpscale.history.regression import Baseline, may_be_widened, with_launch_deviation
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.verdicts import THIS_LAUNCH_ONLY, WRONG_DATA, Verdict
from pytest_ddpscale.thresholds.cases import Case
from tests.builders.judged import CONFIDENCE, evidence_of_plan, make_case, measure, plan_of
from tests.builders.nights import GPUS, SKU, at, judged_run, key_value, stable

RESTLESS = (80.0, 120.0, 90.0, 110.0, 100.0, 100.0)
WIDE, NARROW = make_case("throughput_per_gpu", 40.0, GPUS), make_case("throughput_per_gpu", 98.0, GPUS)


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    return read_evidence(judged_run(tmp_path / "run", 9))


def reference(past: Sequence[float]) -> Reference:
    [found] = references([key_value(one)] for one in past).values()
    return found


def widened(evidence: Evidence, case: Case, past: Sequence[float], **changes: object) -> Verdict:
    """The verdict where every value of the run had these before."""
    known = reference(past)
    baseline = Baseline(SKU, at(9), tuple((one.series, known) for one in key_values_of(evidence)))
    verdict = replace(judge(case, evidence, CONFIDENCE), **changes)  # type: ignore[arg-type]
    assert may_be_widened(verdict, case)
    return with_launch_deviation(verdict, case, evidence, baseline)


def test_the_interval_is_wider_and_says_by_what(evidence: Evidence) -> None:
    verdict = widened(evidence, WIDE, RESTLESS, flags=(THIS_LAUNCH_ONLY,))
    assert verdict.passed
    assert verdict.value is not None
    assert verdict.interval is not None
    for end in verdict.interval:
        assert abs(math.log(end / verdict.value)) == pytest.approx(2.5706 * reference(RESTLESS).log_sd, rel=0.01)
    assert verdict.launch_sd == reference(RESTLESS).log_sd
    assert verdict.notes == ("interval with the deviation between 6 earlier launches (14.3 %)",)
    assert verdict.flags == (), "it is about more than this launch"


def test_launches_that_hardly_differ_add_nothing_to_what_all_intervals_have(evidence: Evidence) -> None:
    own = judge(WIDE, evidence, CONFIDENCE).interval
    assert own is not None
    assert widened(evidence, WIDE, (100.0, 100.1) * 3).interval == pytest.approx(own, rel=1e-9)
    imported = widened(evidence, WIDE, (100.0, 100.1) * 3, rounds=1).interval  # has nothing yet
    assert imported is not None
    assert imported[0] < own[0] < own[1] < imported[1]


def test_a_bound_that_another_launch_might_miss_is_open(evidence: Evidence) -> None:
    assert judge(NARROW, evidence, CONFIDENCE).passed
    verdict = widened(evidence, NARROW, RESTLESS)
    assert verdict.outcome == "inconclusive"
    assert verdict.reason.endswith("between 6 earlier launches (14.3 %); measure again on another day")


def test_wrong_data_fail_whatever_the_interval(evidence: Evidence) -> None:
    verdict = widened(evidence, NARROW, RESTLESS, outcome="failed", flags=(WRONG_DATA,))
    assert verdict.outcome == "failed"


@pytest.mark.parametrize("one_gpu", ["alone", "ddp"])
def test_one_gpu_has_the_past_of_how_it_was_trained(one_gpu: str) -> None:
    case = make_case("throughput_per_gpu", 40.0, world_size=1, one_gpu=one_gpu)
    plan = plan_of([case])
    measured = evidence_of_plan(plan, measure(plan.studies[0], FEWEST_ROUNDS))
    assert {one.series.arm for one in key_values_of(measured)} == {one_gpu}
    assert widened(measured, case, RESTLESS).launch_sd is not None


def test_few_earlier_runs_say_nothing(evidence: Evidence) -> None:
    assert widened(evidence, WIDE, RESTLESS[:4]) == judge(WIDE, evidence, CONFIDENCE)


def test_only_throughput_has_a_past(evidence: Evidence) -> None:
    efficiency = make_case("weak_scaling_efficiency", 0.5, GPUS)
    assert not may_be_widened(judge(efficiency, evidence, CONFIDENCE), efficiency)


def test_it_holds_where_launches_stray_as_they_did_before(evidence: Evidence) -> None:
    """Of the mean of all launches, which the one that is judged knows nothing of."""
    chance, sd, held, trials = random.Random(5), 0.1, 0, 400
    for _ in range(trials):
        *past, this = stable(chance, 8, sd)
        verdict = widened(evidence, WIDE, past, value=this, interval=(this, this))
        assert verdict.interval is not None
        held += verdict.interval[0] <= 100.0 <= verdict.interval[1]
    assert held >= 0.93 * trials
