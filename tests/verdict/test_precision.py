"""Who asks for narrow intervals gets them, as far as rounds go, and no other verdict."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, Pace, build_plan
from pytest_ddpscale.plan.study import Arm, Plan
from pytest_ddpscale.results.records import RoundEnd
from pytest_ddpscale.results.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.verdict.deciding import Decider
from pytest_ddpscale.verdict.judge import judge
from tests.builders.judged import ALONE_IMG_PER_S, CONFIDENCE, easy_bound, evidence_of_plan, make_case, measure
from tests.builders.records import blocks_of, gang_of

LIMIT = 32
THROUGHPUT = make_case("throughput_per_gpu", 90.0)
LARGER = make_case("throughput_per_gpu", 90.0, world_size=4)
Speed = Callable[[Arm, int, int], float]


def noisy(relative_sd: float, only: str = "", seed: int = 1) -> Speed:
    """All ranks of an arm alike, each round another."""

    def pace(arm: Arm, number: int, rank: int) -> float:
        sd = relative_sd if only in ("", arm.name) else 1e-4
        return ALONE_IMG_PER_S * (1 + sd * random.Random(f"{seed}/{arm.name}/{number}").gauss(0, 1))

    return pace


def asked(cases: Sequence[Case], precision: float | None) -> Plan:
    questions = [case.question for case in cases]
    return build_plan(Plan("a100", "cuda", (), precision=precision), questions, Pace(LIMIT, 1.0, 1.0))


def timed(plan: Plan, cases: Sequence[Case], pace: Speed) -> list[list[str]]:
    """Names of the arms of each round until the study has told enough or is at its limit."""
    (study,) = plan.studies
    decider, arms, found = Decider(plan, cases, CONFIDENCE), [arm.name for arm in study.arms], []
    for number in range(study.rounds):
        everything = [one for one in measure(study, number + 1, pace) if one.round == number]
        decider.hear(gang_of(everything))
        for block in blocks_of([one for one in everything if one.arm in arms]):
            decider.hear(block)
        decider.hear(RoundEnd(study=study.id, round=number, arms=tuple(arms)))
        found.append(arms)
        needed = decider.needed_arms(study.id)
        arms = [name for name in arms if name in needed]
        if not arms:
            break
    return found


def verdict_after(plan: Plan, case: Case, rounds: int, pace: Speed) -> Verdict:
    return judge(case, evidence_of_plan(plan, measure(plan.studies[0], rounds, pace)), CONFIDENCE)


def test_without_it_a_study_ends_with_the_decision() -> None:
    assert len(timed(asked([THROUGHPUT], None), [THROUGHPUT], noisy(0.01))) == FEWEST_ROUNDS


def test_a_study_goes_on_after_the_decision_until_the_interval_is_narrow() -> None:
    plan, pace = asked([THROUGHPUT], 0.015), noisy(0.01)
    rounds = len(timed(plan, [THROUGHPUT], pace))
    assert FEWEST_ROUNDS < rounds < LIMIT
    before, after = (verdict_after(plan, THROUGHPUT, number, pace) for number in (rounds - 1, rounds))
    assert (before.outcome, before.is_too_wide, before.is_precise) == ("passed", True, False)
    assert (after.outcome, after.is_too_wide, after.is_precise) == ("passed", False, True)


def test_what_fails_is_to_become_precise_too() -> None:
    case = make_case("throughput_per_gpu", 200.0)
    assert len(timed(asked([case], 0.01), [case], noisy(0.01))) > FEWEST_ROUNDS


def test_only_arms_of_what_is_too_wide_are_timed() -> None:
    cases = [LARGER, THROUGHPUT]
    rounds = timed(asked(cases, 0.01), cases, noisy(0.01, only="ddp@2"))
    assert {"ddp@2", "ddp@4"} <= set(rounds[FEWEST_ROUNDS - 1])
    assert all(arms == ["ddp@2"] for arms in rounds[FEWEST_ROUNDS:])
    assert len(rounds) > FEWEST_ROUNDS


def test_what_is_still_wide_is_narrowed_while_another_requirement_is_undecided() -> None:
    """Else the one that is never decided would take all rounds, and none were left."""
    undecided = make_case("throughput_per_gpu", ALONE_IMG_PER_S, world_size=4)
    cases = [THROUGHPUT, undecided]
    rounds = timed(asked(cases, 0.015), cases, noisy(0.01))
    wide = sum("ddp@2" in arms for arms in rounds)
    assert len(rounds) == LIMIT
    assert FEWEST_ROUNDS < wide < LIMIT


def test_the_limit_ends_it_and_the_verdict_says_how_wide_it_is() -> None:
    plan, pace = asked([THROUGHPUT], 0.001), noisy(0.01)
    assert len(timed(plan, [THROUGHPUT], pace)) == LIMIT
    verdict = verdict_after(plan, THROUGHPUT, LIMIT, pace)
    usual = verdict_after(replace(plan, precision=None), THROUGHPUT, LIMIT, pace)
    assert verdict.half_width is not None
    assert verdict.value is not None
    said = f"half-width {100 * verdict.half_width / verdict.value:.3g} % of the value, requested 0.1 %"
    assert verdict == replace(usual, precision=0.001, notes=(said,))
    assert verdict.passed


def test_nothing_is_said_of_an_interval_that_is_narrow_enough() -> None:
    verdict = verdict_after(asked([THROUGHPUT], 0.05), THROUGHPUT, LIMIT, noisy(0.01))
    assert (verdict.precision, verdict.notes) == (0.05, ())


@pytest.mark.parametrize("metric", ["ddp_overhead", "exposed_communication", "step_time_p95", "rank_uniformity"])
def test_costs_and_extremes_are_not_asked(metric: str) -> None:
    case = make_case(metric, easy_bound(metric))
    plan = asked([case], 0.0001)
    assert timed(plan, [case], noisy(0.01))[FEWEST_ROUNDS:] == []
    assert verdict_after(plan, case, FEWEST_ROUNDS, noisy(0.01)).precision is None


def test_a_decision_that_further_rounds_take_back_is_none() -> None:
    """All rounds count: what later ones say is not hidden by what the first eight did."""
    case = make_case("throughput_per_gpu", 90.0)

    def pace(arm: Arm, number: int, rank: int) -> float:
        swing = 0.01 if number < FEWEST_ROUNDS else 0.2
        return ALONE_IMG_PER_S * (1 + (swing if number % 2 else -swing))

    plan = asked([case], 0.005)
    assert verdict_after(plan, case, FEWEST_ROUNDS, pace).outcome == "passed"
    assert len(timed(plan, [case], pace)) == LIMIT
    assert verdict_after(plan, case, LIMIT, pace).outcome == "inconclusive"
