"""The page of a run that goes on says how far it is."""

from __future__ import annotations

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.report.live_progress import LiveProgress
from pytest_ddpscale.run.records import RoundEnd, StudyEnd, StudyStart
from tests.builders.judgements import HOSTILE, PLAN
from tests.builders.records import steady_block

FIRST, SECOND, *OTHERS = PLAN.study_ids
WHEN = "2026-03-01T10:00:00+00:00"


def heard(*records: object) -> LiveProgress:
    progress = LiveProgress()
    for record in records:
        progress.hear(record)  # type: ignore[arg-type]
    return progress


def test_studies_done_the_round_and_the_latest_block_of_each_arm_are_shown() -> None:
    blocks = [steady_block(SECOND, Arm("ddp", 2, 4), number, (0, 1), 100.0 + number) for number in range(2)]
    section = heard(
        StudyStart(study=FIRST, unix_s=1.0), steady_block(FIRST, Arm("alone", 1, 4), 0, (0,), 7.0),
        StudyEnd(FIRST, "decided"),
        StudyStart(study=SECOND, unix_s=2.0), *blocks, RoundEnd(study=SECOND, round=1, arms=("ddp@2",)),
    ).section(PLAN, PLAN.study_ids, WHEN)  # fmt: skip
    assert "1 of 4 studies done" in section
    assert f"Last written at {WHEN}" in section
    assert f"{SECOND}: round 2 of at most 6" in section
    assert '<th scope="row">ddp@2</th><td class="n">2</td><td class="n">101.0</td>' in section
    assert "alone" not in section, "its study is over"


def test_studies_that_an_earlier_session_measured_are_done() -> None:
    assert "3 of 4 studies done" in heard().section(PLAN, [SECOND], WHEN)


def test_names_from_records_stay_text() -> None:
    section = heard(StudyStart(study=HOSTILE, unix_s=1.0)).section(PLAN, PLAN.study_ids, WHEN)
    assert "<script" not in section
    assert "&lt;script&gt;" in section
