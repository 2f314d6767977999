"""Studies of one line each, as they stand in deciding.txt: which arms are needed at the start and after each round.

Words are those of `runs`; what is asked is decided while measuring, and what has a `+` only planned. An arm that is not
needed is not timed any more.

    confidence=0.95
    probed            all nodes were to be probed together, too
    backwards         rounds are heard from the last one on, and then it is told what is needed
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.judge.judge import Decider, judge
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, ProbeStudy, Study
from pytest_ddpscale.run.records import Lost, RoundEnd, SeededSteps, StudyEnd
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.verdicts import Verdict
from tests.builders.judged import CONFIDENCE, evidence_of_plan, make_case, measure, plan_of
from tests.builders.records import blocks_of, gang_on
from tests.judge import runs
from tests.rows import rows
from tests.tables import assert_approved, each_block

DECIDING = Path(__file__).with_name("deciding.txt")
WEAK = "weak/r"
EFFICIENCY = make_case("weak_scaling_efficiency", 0.5)


class Run(runs.Run):
    """A line."""

    FLAGS = runs.Run.FLAGS | {"backwards", "probed"}

    def _take(self, word: str) -> None:
        key, _, value = word.partition("=")
        if key == "confidence":
            self.option[key] = float(value)
        else:
            super()._take(word)

    def told(self) -> Iterator[str]:
        """Of each study."""
        plan = self.judged()[1].plan
        if "probed" in self.flags:
            plan = replace(plan, probes=ProbeStudy((Arm("all-reduce-1gib", self.nodes * self.per_node),), 16, 0.5))
        decider = Decider(plan, [self._case(one) for one in self.asked], self.option.get("confidence", CONFIDENCE))
        decider.hear(gang_on([f"n{node}" for node in range(self.nodes)], self.per_node, "GPU-{}"))
        decider.hear(Survey("n1", 1.0))
        decider.hear(Lost(hosts=("n9",), message="silent"))
        for study in plan.studies:
            needed = itertools.groupby(self._needed(plan, study, decider))
            names = {" ".join(arm.name for arm in study.arms): "all", "": "none"}
            told = (f"{len([*alike])} {names.get(arms, arms)}" for arms, alike in needed)
            yield f"{study.id}: {', '.join(told)}"

    def _needed(self, plan: Plan, study: Study, decider: Decider) -> Iterator[str]:
        """Names of the arms that are needed, until none is."""
        found = [*self._measured(plan, study)]
        steps = self._seeded_steps(plan, study).values()
        decider.hear(SeededSteps(study=study.id, gang=0, ranks=tuple(steps)))
        if "backwards" in self.flags:
            for block in reversed(blocks_of(found)):
                decider.hear(block)
            found = []
        for number in range(self.option["rounds"]):
            names = decider.needed_arms(study.id)
            yield " ".join(names)
            if not names:
                return
            for block in blocks_of(one for one in found if one.round == number and one.arm in names):
                decider.hear(block)
            decider.hear(RoundEnd(study=study.id, round=number, arms=tuple(names)))
        if "error" in self.flags:
            decider.hear(StudyEnd(study.id, "error", "rank 1 died"))
        yield " ".join(decider.needed_arms(study.id))


@each_block(DECIDING)
def test_arms_are_needed(block: str) -> None:
    assert_approved(DECIDING, block, lambda line: Run(line).told())


def test_a_study_has_told_enough_exactly_when_the_judge_would_decide() -> None:
    """Some rounds are too few, and the rest enough."""
    line = "throughput_per_gpu:90@2 net=*1.05,0.95 rounds="
    is_open = [runs.Run(f"{line}{rounds}").verdict().is_open for rounds in range(1, 17)]
    decided = is_open.index(False)
    assert decided > FEWEST_ROUNDS
    assert [*Run(f"{line}16").told()] == [f"{WEAK}: 8 all, {decided - 7} ddp@2, 1 none"]


def test_a_study_that_is_unknown_has_no_arms() -> None:
    assert Decider(plan_of([EFFICIENCY]), [EFFICIENCY], CONFIDENCE).needed_arms("weak/unheard-of") == []


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
def test_more_rounds_would_not_help_unless_a_verdict_is_open_for_want_of_them(
    outcome: Any, flags: tuple[Any, ...], may: bool
) -> None:
    verdict = Verdict("m[a]", "throughput_per_gpu", "a", 1, "fail", {"at_least": 1.0}, outcome, flags=flags)
    assert verdict.is_open is may


def test_dropped_arms_leave_the_decided_verdicts_as_they_are() -> None:
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


@pytest.mark.parametrize("later", [["alone"], []])
def test_dropped_arms_are_missed_in_rounds_that_should_have_timed_them(later: list[str]) -> None:
    plan = plan_of([EFFICIENCY])
    (study,) = plan.studies
    found = [one for one in measure(study, FEWEST_ROUNDS + 4) if one.round < FEWEST_ROUNDS or one.arm in later]
    rounds = {number: [arm.name for arm in study.arms] for number in range(FEWEST_ROUNDS + 4)}
    evidence = replace(evidence_of_plan(plan, found), timed_arms={study.id: rounds})
    assert judge(EFFICIENCY, evidence, CONFIDENCE).outcome == "inconclusive"
