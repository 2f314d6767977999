"""Reports say what profiled steps show, beside what timed rounds say, and why there is no profile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.report.html_page import render_html
from pytest_ddpscale.report.markdown import render_markdown
from pytest_ddpscale.report.profile_text import exposed_rows, part_rows, problem_lines, profiled_exposures
from pytest_ddpscale.run.columns import Columns
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.profile_record import ArmProfile
from tests.builders.judgements import ACCEPTED, RUN
from tests.builders.measurements import Measurement
from tests.builders.profiles import profile
from tests.builders.rounds import columns_of
from tests.report.page_text import page_text

ARMS = (Arm("alone", 1, 4), Arm("no_sync", 2, 4), Arm("ddp", 2, 4), Arm("each", 2, 4))
STUDY = Study("weak", Workload("r", ImageFamily("resnet18"), "fp32", 4), ARMS, 8, 1.0, 1.0)
PLAN = Plan("cpu", "cpu", (STUDY,))
NO_SYNC = profile(STUDY.id, "no_sync@2", [(60, 55, 0), (64, 58, 0), (62, 57, 0)])
DDP = profile(STUDY.id, "ddp@2", [(100, 60, 30), (100, 62, 30), (100, 64, 30)], [(40, 10)] * 3)
LOST = ArmProfile(study=STUDY.id, arm="each@2", gang=0, rank=0, problem="this build of torch has no Kineto")


def block(arm: str, number: int, rank: int, step_s: float) -> Measurement:
    return Measurement(STUDY.id, arm, number, rank, rank, "n", "cpu", 4, 10, 10 * step_s, 1.7e9)


def timed(no_sync_s: float) -> Columns:
    found = [
        block(arm, number, rank, step_s + 0.01 * number)
        for arm, step_s in (("no_sync@2", no_sync_s), ("ddp@2", 1.0))
        for number in range(4)
        for rank in range(2)
    ]
    return columns_of(found)


def evidence(*profiles: ArmProfile, no_sync_s: float = 0.62) -> Evidence:
    return replace(Evidence(PLAN, timed(no_sync_s), {}), profiles=profiles)


def page(*profiles: ArmProfile) -> str:
    return page_text(render_html(ACCEPTED, RUN, evidence(*profiles)))


def test_a_row_for_each_arm_says_where_its_step_goes() -> None:
    assert part_rows([NO_SYNC, DDP, LOST]) == [
        ("weak/r", "no_sync@2", "62 ms", "91.4 %", "0.0 %", "8.6 %", "–", "–"),
        ("weak/r", "ddp@2", "100 ms", "62.0 %", "30.0 %", "8.0 %", "40 ms", "25.0 %"),
    ]


def test_both_methods_stand_side_by_side_and_whether_their_intervals_meet() -> None:
    [row] = exposed_rows(evidence(NO_SYNC, DDP))
    assert row[:2] == ("weak/r", "ddp@2")
    assert [cell.partition(" ")[0] for cell in row[2:6]] == ["37.4", "38.0", "30.0", "8.0"]
    assert row[3] == "38.0 % (33.0 to 43.0)"  # 40, 36 and 38: mean ± 4.303 standard errors
    assert row[6] == "agree"
    [apart] = exposed_rows(evidence(NO_SYNC, DDP, no_sync_s=0.9))
    assert apart[6].startswith("disagree")


def test_steps_of_one_pass_are_held_against_each_other() -> None:
    two = profile(STUDY.id, "no_sync@2", [(60, 55, 0), (80, 70, 0)])
    [found] = profiled_exposures(evidence(two, DDP))
    assert (found.study, found.arm) == ("weak/r", "ddp@2")
    assert found.by_profile.tolist() == pytest.approx([0.4, 0.2])
    assert found.waiting.tolist() == pytest.approx([0.3, 0.3])
    assert len(next(profiled_exposures(replace(evidence(two, DDP), columns=Columns()))).by_rounds) == 0


def test_rounds_count_where_both_arms_were_timed_at_the_pace_of_the_profiled_rank() -> None:
    found = [
        block(arm, number, rank, seconds * ((1, 3) if arm == "ddp@2" else (1, 2))[rank])
        for arm, number, seconds in (("ddp@2", 0, 1.0), ("no_sync@2", 0, 0.8), ("ddp@2", 1, 1.0), ("ddp@2", 2, 1.0),
                                     ("no_sync@2", 2, 0.7))
        for rank in range(2)
    ]  # fmt: skip
    [exposure] = profiled_exposures(replace(evidence(NO_SYNC, DDP), columns=columns_of(found)))
    assert exposure.by_rounds.tolist() == pytest.approx([0.2, 0.3])


def test_an_arm_without_its_partner_or_without_numbers_tells_nothing() -> None:
    failed = ArmProfile(study=STUDY.id, arm="no_sync@2", gang=0, rank=0, problem="no Kineto")
    for others in ([], [failed], [profile(STUDY.id, "alone", [(60, 50, 0)])]):
        assert list(profiled_exposures(evidence(DDP, *others))) == []


def test_both_reports_have_what_was_profiled_and_why_an_arm_was_not() -> None:
    for report in (render_markdown(ACCEPTED, RUN, evidence=evidence(NO_SYNC, DDP, LOST)), page(NO_SYNC, DDP, LOST)):
        assert "Rank 0 profiled 3 steps of each arm with torch.profiler" in report
        assert "o profile of weak/r, each@2: this build of torch has no Kineto" in report
        assert "38.0 % (33.0 to 43.0)" in report
    text = page(NO_SYNC, DDP, LOST)
    assert "profiles/ddp@2.json.gz" in render_html(ACCEPTED, RUN, evidence(DDP))
    assert "No profile" not in text.replace("No profile of", "")


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


def test_without_a_profile_the_page_says_so_and_the_ticket_has_no_section() -> None:
    assert "No profile: no steps were taken under torch.profiler (--ddp-profile)." in page()
    assert "## Profile" not in render_markdown(ACCEPTED, RUN, evidence=evidence())
    simulated = render_html(replace(ACCEPTED, simulated=True), RUN, evidence())
    assert "No profile: a simulated run has none." in page_text(simulated)


def _with(one: ArmProfile, **changes: object) -> ArmProfile:
    return ArmProfile(**{name: getattr(one, name) for name in one.__struct_fields__} | changes)
