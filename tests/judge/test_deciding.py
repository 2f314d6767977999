"""A study is heard to its end only if something asked of it is still open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as altered

from pytest_ddpscale.judge.deciding import Decider
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import Lost, RoundEnd, SeededSteps, StudyEnd
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import Case
from tests.builders.judged import (
    ALONE_SAMPLES_PER_S,
    CONFIDENCE,
    OTHER_CHECKSUM,
    WORKLOAD,
    evidence_of_plan,
    make_case,
    measure,
    plan_of,
    seeded_steps,
)
from tests.builders.records import blocks_of, gang_of
from tests.rows import rows

ROUNDS = 16
WEAK, STRONG = "weak/r", "strong/r"
EFFICIENCY = make_case("weak_scaling_efficiency", 0.5)
THROUGHPUT = make_case("throughput_per_gpu", 50.0)
SPEEDUP = make_case("strong_scaling_speedup", 1.0)
OTHER_WORKLOAD = Workload("s", ImageFamily("resnet34", image_size=32), "fp32", 4, global_batch_size=8)

Pace = Callable[[Arm, int, int], float]


def steady(arm: Arm, number: int, rank: int) -> float:
    return ALONE_SAMPLES_PER_S


def restless(arm: Arm, number: int, rank: int) -> float:
    """No bound between 50 and 150 img/s is decided by these rounds."""
    return ALONE_SAMPLES_PER_S * (0.5 if (number * 7) % 3 else 1.5)


def records(plan: Plan, study_id: str, rounds: Sequence[int], pace: Pace = steady, **changes: Any) -> list[AnyRecord]:
    """What rank 0 writes of a study's rounds."""
    study = plan.study(study_id)
    assert study is not None
    found = [replace(one, **changes) for one in measure(study, max(rounds) + 1, pace) if one.round in rounds]
    return [gang_of(found), *blocks_of(found)]


def told(decider: Decider, plan: Plan, study_id: str, rounds: int, pace: Pace = steady, **changes: Any) -> list[bool]:
    """After each round in turn, whether the study has told enough."""
    words = []
    for number in range(rounds):
        for record in records(plan, study_id, [number], pace, **changes):
            decider.hear(record)
        study = plan.study(study_id)
        assert study is not None
        names = [arm.name for arm in study.arms]
        decider.hear(RoundEnd(study=study_id, round=number, arms=tuple(names)))
        words.append(not decider.needed_arms(study_id))
    return words


class TestDecidedStudies:
    def test_have_told_enough_after_the_fewest_rounds_and_not_before(self) -> None:
        plan = plan_of([EFFICIENCY])
        decider = Decider(plan, [EFFICIENCY], CONFIDENCE)
        assert told(decider, plan, WEAK, FEWEST_ROUNDS + 1) == [False] * (FEWEST_ROUNDS - 1) + [True, True]

    def test_need_more_rounds_at_more_confidence(self) -> None:
        plan = plan_of([EFFICIENCY])
        words = told(Decider(plan, [EFFICIENCY], 1 - 1e-9), plan, WEAK, ROUNDS)
        assert not words[FEWEST_ROUNDS - 1]
        assert words[-1]

    def test_are_decided_exactly_when_the_judge_would_decide(self) -> None:
        case = make_case("throughput_per_gpu", 90.0)
        plan = plan_of([case])

        def pace(arm: Arm, number: int, rank: int) -> float:
            return ALONE_SAMPLES_PER_S + (6.0 if number % 2 else -6.0)

        words = told(Decider(plan, [case], CONFIDENCE), plan, WEAK, ROUNDS, pace)
        outcomes = []
        for rounds in range(1, ROUNDS + 1):
            measurements = measure(plan.studies[0], rounds, pace)
            outcomes.append(judge(case, evidence_of_plan(plan, measurements), CONFIDENCE).outcome)
        assert words == [outcome == "passed" for outcome in outcomes]
        assert words.count(True) not in (0, ROUNDS - FEWEST_ROUNDS + 1), "some rounds were too few, and the rest enough"


class TestOpenStudies:
    def test_go_on_to_their_limit(self) -> None:
        case = make_case("throughput_per_gpu", 100.0)
        plan = plan_of([case])
        assert told(Decider(plan, [case], CONFIDENCE), plan, WEAK, ROUNDS, restless) == [False] * ROUNDS

    def test_go_on_while_one_of_several_requirements_is_inconclusive(self) -> None:
        undecided = make_case("throughput_per_gpu", 100.0)
        plan = plan_of([EFFICIENCY, undecided])

        def pace(arm: Arm, number: int, rank: int) -> float:
            return restless(arm, number, rank)  # the same in both arms, so that their ratio stands still

        assert told(Decider(plan, [EFFICIENCY], CONFIDENCE), plan, WEAK, FEWEST_ROUNDS, pace)[-1]
        assert not told(Decider(plan, [EFFICIENCY, undecided], CONFIDENCE), plan, WEAK, FEWEST_ROUNDS, pace)[-1]

    def test_go_on_while_what_they_measure_drifts_towards_the_bound(self) -> None:
        """The interval of the mean starts at 89 img/s; where it would go on to is 87."""
        case = make_case("throughput_per_gpu", 88.5)
        plan = plan_of([case])
        decider = Decider(plan, [case], CONFIDENCE)
        for record in records(plan, WEAK, range(8), lambda arm, number, rank: 100.0 - number):
            decider.hear(record)
        assert decider.needed_arms(WEAK)

    def test_go_on_once_a_requirement_that_was_decided_is_open_again(self) -> None:
        slow_to_decide = make_case("weak_scaling_efficiency", 0.9)
        plan = plan_of([THROUGHPUT, slow_to_decide])

        def pace(arm: Arm, number: int, rank: int) -> float:
            level = ALONE_SAMPLES_PER_S * (1.0 if number < FEWEST_ROUNDS else 0.45)
            return level * (1.0 if arm.kind == "alone" else 1.06 if number % 2 else 0.94)

        def words(*cases: Case) -> list[bool]:
            return told(Decider(plan, cases, CONFIDENCE), plan, WEAK, ROUNDS, pace)

        decided = words(slow_to_decide).index(True)
        assert words(THROUGHPUT).index(True) < decided
        assert not words(THROUGHPUT, slow_to_decide)[decided], "the first one's rounds got slower meanwhile"

    def test_keep_the_arms_of_a_requirement_that_is_open_again_before_another_one_drops_them(self) -> None:
        """An arm that was dropped once does not come back."""
        again = make_case("throughput_per_gpu", 70.0, world_size=4)
        first, last = (make_case("weak_scaling_efficiency", 0.9, world_size=size) for size in (4, 2))
        plan = plan_of([again, first, last])
        decider = Decider(plan, [again, first, last], CONFIDENCE)

        def pace(arm: Arm, number: int, rank: int) -> float:
            level = ALONE_SAMPLES_PER_S * (1.0 if number < FEWEST_ROUNDS else 0.45)
            uneasy = {"ddp@4": 0.055, "ddp@2": 0.075}.get(arm.name, 0.0)
            return level * (1.0 + (uneasy if number % 2 else -uneasy))

        needed = []
        for number in range(ROUNDS):
            for record in records(plan, WEAK, [number], pace):
                decider.hear(record)
            decider.hear(RoundEnd(study=WEAK, round=number, arms=tuple(arm.name for arm in plan.studies[0].arms)))
            needed.append(decider.needed_arms(WEAK))
        assert all("ddp@4" in names for names in needed), needed

    def test_go_on_after_an_incomplete_round(self) -> None:
        plan = plan_of([EFFICIENCY])
        decider = Decider(plan, [EFFICIENCY], CONFIDENCE)
        for record in records(plan, WEAK, range(FEWEST_ROUNDS + 1)):
            if isinstance(record, Block) and (record.arm, record.round) == ("ddp@2", 3):
                half = {"step_s": record.each("step_s")[:1].tobytes()}
                decider.hear(altered(record, ranks=(0,), series=half, seconds=1.0, readings={}, began_unix_s=1.0))
            else:
                decider.hear(record)
        assert decider.needed_arms(WEAK)


class TestMoreRoundsWouldNotHelp:
    def test_studies_that_wait_for_their_host(self) -> None:
        case = make_case("strong_scaling_speedup", 1.9)
        plan = plan_of([case])
        decider = Decider(plan, [case], CONFIDENCE)
        assert told(decider, plan, STRONG, FEWEST_ROUNDS, restless, utilization=0.5)[-1]

    def test_studies_whose_ranks_disagree(self) -> None:
        """The speed is undecided, which no longer matters: nothing of the study can pass."""
        plan = plan_of([make_case("replica_agreement", 1.0)])
        (study,) = plan.studies
        decider = Decider(plan, [make_case("replica_agreement", 1.0)], CONFIDENCE)
        steps = tuple(seeded_steps(study, {1: OTHER_CHECKSUM}).values())
        decider.hear(SeededSteps(study=study.id, gang=0, ranks=steps))
        words = told(decider, plan, WEAK, FEWEST_ROUNDS)
        assert words == [False] * (FEWEST_ROUNDS - 1) + [True], "an arm left out before is a contradiction"

    def test_studies_that_broke(self) -> None:
        plan = plan_of([EFFICIENCY])
        decider = Decider(plan, [EFFICIENCY], CONFIDENCE)
        told(decider, plan, WEAK, FEWEST_ROUNDS, restless)
        decider.hear(StudyEnd(WEAK, "error", "rank 1 died"))
        assert not decider.needed_arms(WEAK)

    @rows(
        ("outcome", "flags", "may"),
        [
            ("inconclusive", (), True),
            ("inconclusive", ("host-bound",), False),
            ("inconclusive", ("implausible",), False),
            ("failed", ("undecided",), True),
            ("not_measured", ("undecided",), True),
            ("passed", (), False),
            ("failed", (), False),
            ("not_measured", (), False),
            ("error", (), False),
        ],
    )
    def test_is_so_unless_a_verdict_is_open_for_want_of_rounds(
        self, outcome: Any, flags: tuple[Any, ...], may: bool
    ) -> None:
        verdict = Verdict("m[a]", "throughput_per_gpu", "a", 1, "fail", {"at_least": 1.0}, outcome, flags=flags)
        assert verdict.is_open is may


class TestStudiesWithoutRequirements:
    """Made for a test of the site's own, which wants samples and no verdict."""

    @rows("pace", [steady, restless])
    def test_stop_at_a_fixed_number_of_rounds(self, pace: Pace) -> None:
        plan = plan_of([THROUGHPUT])
        words = told(Decider(plan, [], CONFIDENCE), plan, WEAK, FEWEST_ROUNDS + 1, pace)
        assert words == [False] * (FEWEST_ROUNDS - 1) + [True, True]

    def test_are_those_that_no_requirement_matches(self) -> None:
        plan = plan_of([THROUGHPUT])
        other = make_case("throughput_per_gpu", 50.0, workload=OTHER_WORKLOAD)
        words = told(Decider(plan, [other, SPEEDUP], CONFIDENCE), plan, WEAK, FEWEST_ROUNDS)
        assert words == [False] * (FEWEST_ROUNDS - 1) + [True]

    def test_that_are_unknown_have_no_arms(self) -> None:
        assert Decider(plan_of([THROUGHPUT]), [THROUGHPUT], CONFIDENCE).needed_arms("weak/unheard-of") == []


class TestHearing:
    def cases(self) -> list[Case]:
        return [EFFICIENCY, SPEEDUP, make_case("throughput_per_gpu", 50.0, workload=OTHER_WORKLOAD)]

    def test_keeps_studies_apart(self) -> None:
        plan = plan_of(self.cases())
        decider = Decider(plan, self.cases(), CONFIDENCE)
        for number in range(FEWEST_ROUNDS):
            for record in records(plan, WEAK, [number]):
                decider.hear(record)
            for record in records(plan, STRONG, [number], restless):
                decider.hear(record)
        assert [study.id for study in plan.studies] == [WEAK, STRONG, "weak/s"]
        assert [not decider.needed_arms(study.id) for study in plan.studies] == [True, True, False]

    def test_takes_no_note_of_records_of_no_study(self) -> None:
        plan = plan_of([EFFICIENCY])
        decider = Decider(plan, [EFFICIENCY], CONFIDENCE)
        decider.hear(Survey("n1", 1.0))
        decider.hear(Lost(hosts=("n2",), message="silent"))
        assert told(decider, plan, WEAK, FEWEST_ROUNDS)[-1]

    def test_counts_what_was_flushed_of_a_study_by_another_workloads_name(self) -> None:
        """As a further launch for a test of the site's own names it."""
        case = make_case("throughput_per_gpu", 50.0)
        (study,) = plan_of([case]).studies
        renamed = replace(study, workload=replace(WORKLOAD, name="r-extra1"))
        plan = Plan("a100", "cuda", (renamed,))
        assert told(Decider(plan, [case], CONFIDENCE), plan, "weak/r-extra1", FEWEST_ROUNDS)[-1]

    def test_is_in_any_order(self) -> None:
        plan = plan_of([EFFICIENCY])
        decider = Decider(plan, [EFFICIENCY], CONFIDENCE)
        who, *blocks = records(plan, WEAK, range(FEWEST_ROUNDS))
        for record in (who, *reversed(blocks)):
            decider.hear(record)
        assert not decider.needed_arms(WEAK)


@rows(
    ("is_open", "severity", "needed"),
    [
        (make_case("throughput_per_gpu", 100.0, world_size=8), "fail", []),
        (make_case("throughput_per_gpu", 100.0, world_size=8), "warn", ["ddp@8"]),  # the slow rank rejects nothing
        (make_case("ddp_overhead", 0.5), "fail", ["alone", "ddp@1"]),  # which no slow rank explains
    ],
)
def test_what_a_named_slow_rank_may_explain_needs_no_more_rounds(
    is_open: Case, severity: str, needed: list[str]
) -> None:
    cases = make_case("rank_uniformity", 1.05, world_size=8, severity=severity), is_open
    plan = plan_of(cases)
    decider = Decider(plan, cases, CONFIDENCE)

    def pace(arm: Arm, number: int, rank: int) -> float:
        level = ALONE_SAMPLES_PER_S if arm.kind == "alone" else restless(arm, number, rank)
        return level * (0.7 if rank == 3 else 1.0)

    for record in records(plan, WEAK, range(FEWEST_ROUNDS), pace):
        decider.hear(record)
    assert decider.needed_arms(WEAK) == needed


class TestArmsThatAreNoLongerNeeded:
    def test_all_arms_are_needed_until_something_can_be_decided(self) -> None:
        plan = plan_of([EFFICIENCY])
        decider = Decider(plan, [EFFICIENCY], CONFIDENCE)
        assert decider.needed_arms(WEAK) == [arm.name for arm in plan.studies[0].arms]

    def test_are_those_that_only_decided_requirements_ask_for(self) -> None:
        undecided = make_case("throughput_per_gpu", 100.0, world_size=1)
        plan = plan_of([EFFICIENCY, undecided])
        decider = Decider(plan, [EFFICIENCY, undecided], CONFIDENCE)
        for record in records(plan, WEAK, range(FEWEST_ROUNDS), restless):
            decider.hear(record)
        assert [arm.name for arm in plan.studies[0].arms] == ["alone", "ddp@2", "each@2"]
        assert decider.needed_arms(WEAK) == ["alone"]

    def test_leave_the_decided_verdicts_as_they_are(self) -> None:
        plan = plan_of([EFFICIENCY])
        (study,) = plan.studies
        decided = measure(study, FEWEST_ROUNDS)
        later = [one for one in measure(study, FEWEST_ROUNDS + 4) if one.round >= FEWEST_ROUNDS and one.arm == "alone"]
        rounds = {
            number: ["alone"] if number >= FEWEST_ROUNDS else [arm.name for arm in study.arms]
            for number in range(FEWEST_ROUNDS + 4)
        }
        evidence = replace(evidence_of_plan(plan, decided + later), timed_arms={study.id: rounds})
        before = judge(EFFICIENCY, evidence_of_plan(plan, decided), CONFIDENCE)
        assert judge(EFFICIENCY, evidence, CONFIDENCE) == before
        assert before.passed

    def test_are_missed_in_rounds_that_should_have_timed_them(self) -> None:
        plan = plan_of([EFFICIENCY])
        (study,) = plan.studies
        found = [one for one in measure(study, FEWEST_ROUNDS + 4) if one.round < FEWEST_ROUNDS or one.arm == "alone"]
        rounds = {number: [arm.name for arm in study.arms] for number in range(FEWEST_ROUNDS + 4)}
        evidence = replace(evidence_of_plan(plan, found), timed_arms={study.id: rounds})
        assert judge(EFFICIENCY, evidence, CONFIDENCE).outcome == "inconclusive"
