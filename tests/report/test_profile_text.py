"""Reports say what profiled steps show, and why an arm has none."""

from __future__ import annotations

from dataclasses import replace

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.html_page import render_html
from pytest_ddpscale.report.markdown import render_markdown
from pytest_ddpscale.report.profile_text import part_rows, problem_lines
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.records import ArmProfile
from tests.builders.judgements import ACCEPTED, EVIDENCE, RUN
from tests.builders.profiles import profile
from tests.report.page_text import page_text

ARMS = (Arm("alone", 1, 4), Arm("no_sync", 2, 4), Arm("ddp", 2, 4), Arm("each", 2, 4))
STUDY = Study("weak", Workload("r", ImageFamily("resnet18"), "fp32", 4), ARMS, 8, 1.0, 1.0)
PLAN = Plan("cpu", "cpu", (STUDY,))
NO_SYNC = profile(STUDY.id, "no_sync@2", [(60, 55, 0), (64, 58, 0), (62, 57, 0)])
DDP = profile(STUDY.id, "ddp@2", [(100, 60, 30), (100, 62, 30), (100, 64, 30)], [(40, 10)] * 3)
LOST = ArmProfile(study=STUDY.id, arm="each@2", gang=0, rank=0, problem="this build of torch has no Kineto")


def evidence(*profiles: ArmProfile) -> Evidence:
    return replace(EVIDENCE, profiles=profiles)


def page(*profiles: ArmProfile) -> str:
    return page_text(render_html(ACCEPTED, RUN, evidence(*profiles)))


def test_a_row_for_each_arm_says_where_its_step_goes() -> None:
    assert part_rows([NO_SYNC, DDP, LOST]) == [
        ("weak/r", "no_sync@2", "62 ms", "91.4 %", "0.0 %", "8.6 %", "–", "–"),
        ("weak/r", "ddp@2", "100 ms", "62.0 %", "30.0 %", "8.0 %", "40 ms", "25.0 %"),
    ]


def test_both_reports_have_what_was_profiled_and_why_an_arm_was_not() -> None:
    for report in (render_markdown(ACCEPTED, RUN, evidence=evidence(NO_SYNC, DDP, LOST)), page(NO_SYNC, DDP, LOST)):
        assert "Rank 0 profiled 3 steps of each arm with torch.profiler" in report
        assert "o profile of weak/r, each@2: this build of torch has no Kineto" in report
    assert "profiles/ddp@2.json.gz" in render_html(ACCEPTED, RUN, evidence(DDP))


def test_traces_are_linked_only_if_there_are_any() -> None:
    assert "[ddp@2.json.gz](profiles/ddp%402.json.gz)." in render_markdown(ACCEPTED, RUN, evidence=evidence(DDP))
    without = render_markdown(ACCEPTED, RUN, evidence=evidence(_with(DDP, trace="")))
    assert "No trace was kept." in without
    lost = render_markdown(ACCEPTED, RUN, evidence=evidence(LOST))
    assert "## Profile" in lost
    assert "race" not in lost.partition("## Profile")[2].partition("## ")[0]


def test_many_arms_without_a_profile_are_counted() -> None:
    lost = [_with(LOST, arm=f"ddp@{2**number}") for number in range(1, 8)]
    assert problem_lines(lost) == [
        "no profile of weak/r, ddp@2; weak/r, ddp@4; weak/r, ddp@8 and 4 more: this build of torch has no Kineto"
    ]


def test_without_a_profile_the_ticket_has_no_section() -> None:
    assert "## Profile" not in render_markdown(ACCEPTED, RUN, evidence=evidence())


def _with(one: ArmProfile, **changes: object) -> ArmProfile:
    return ArmProfile(**{name: getattr(one, name) for name in one.__struct_fields__} | changes)
