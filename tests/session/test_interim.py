"""A run that still goes on has verdicts and a report already, so that one that is killed has them."""

from __future__ import annotations

import pytest

from pytest_ddpscale.launch.gang_state import Limits
from pytest_ddpscale.run.record_lines import AnyRecord, Idle, Interrupted, Notice
from pytest_ddpscale.run.records import EndReason, StudyEnd, StudyStart
from pytest_ddpscale.run.strict_json import parse_strict_json
from pytest_ddpscale.run.verdicts import Judgement, read_judgement
from pytest_ddpscale.session.interim import Interim
from pytest_ddpscale.session.session import AcceptanceSession
from tests.builders.sessions import SAMPLES_PER_S, InstantGang

CANCELLED = Interrupted("the job was cancelled")


def end(study: str, reason: EndReason = "rounds") -> StudyEnd:
    return StudyEnd(study, reason)


@pytest.fixture
def half(measuring: AcceptanceSession, gangs: list[InstantGang]) -> AcceptanceSession:
    """A session whose study has ended, and whose process is about to be killed."""
    assert measuring.source.plan is not None
    InstantGang(
        None, measuring.source.measured_run, Limits(), None, isolate=False, judge=None, admit=lambda _: ""
    ).measure(measuring.source.plan)
    return measuring


def interim(session: AcceptanceSession) -> Interim:
    return session.interim


def written(session: AcceptanceSession) -> Judgement:
    return read_judgement(session.source.measured_run.verdicts_json)


def test_after_a_study_what_it_says_is_written_and_the_run_is_incomplete(half: AcceptanceSession) -> None:
    assert half.source.plan is not None
    interim(half).hear(end(half.source.plan.studies[0].id))
    judgement, run = written(half), half.source.measured_run
    assert judgement.outcome == "incomplete"
    assert "measuring was still running when this was written at 20" in judgement.reason
    assert f"1 of {len(half.source.plan.study_ids)} studies had ended; --ddp-resume={run.path}" in judgement.reason
    outcomes = {verdict.outcome for verdict in judgement.verdicts}
    assert "passed" in outcomes
    assert "INCOMPLETE" in (half.source.measured_run.path / "report.md").read_text("utf-8")
    assert half.verdicts == {}, "nothing is settled by it"


def test_a_study_that_goes_on_is_not_measured_yet_and_no_error(half: AcceptanceSession) -> None:
    lines = half.source.measured_run.measurements_jsonl.read_text("utf-8").splitlines(keepends=True)
    half.source.measured_run.measurements_jsonl.write_text(
        "".join(line for line in lines if '"study_end"' not in line), "utf-8"
    )
    interim(half).hear(CANCELLED)
    assert {verdict.outcome for verdict in written(half).verdicts} == {"not_measured"}
    assert written(half).verdicts[0].reason.startswith("interrupted at 20")


def test_a_session_that_somebody_ends_has_its_verdicts_at_once_with_when_and_why(half: AcceptanceSession) -> None:
    interim(half).hear(CANCELLED)
    assert written(half).reason.startswith("interrupted at 20")
    assert ": the job was cancelled; 1 of " in written(half).reason
    final = half.conclude(interrupted=True, spoiled=())
    assert final.outcome == "incomplete"
    assert final.reason.startswith("interrupted at 20")


def test_the_page_of_an_interrupted_run_is_there_at_once_and_not_read_again(half: AcceptanceSession) -> None:
    interim(half).hear(CANCELLED)
    interim(half).hear(end("weak/r", "interrupted"))
    page = (half.source.measured_run.path / "report.html").read_text("utf-8")
    assert "the job was cancelled" in page
    assert 'http-equiv="refresh"' not in page


def test_judging_takes_a_twentieth_of_the_time_at_most(
    half: AcceptanceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, judged = 1000.0, []

    def takes_two_seconds(*_: object, **__: object) -> None:
        nonlocal now_s
        now_s += 2.0
        judged.append(now_s)

    listener = interim(half)
    monkeypatch.setattr(listener, "_now", lambda: now_s)
    monkeypatch.setattr(listener, "_write", takes_two_seconds)
    for _ in range(100):
        listener.hear(end("weak/r"))
        now_s += 1.0
    assert judged == [1002.0, 1044.0, 1086.0]
    listener.hear(CANCELLED)
    assert len(judged) == 4, "somebody waits for that one"


def test_other_records_and_ends_by_an_interruption_are_passed_on_only(half: AcceptanceSession) -> None:
    heard: list[object] = []
    records: list[AnyRecord | Notice] = [Idle(), StudyStart(study="weak/r", unix_s=1.0), end("weak/r", "interrupted")]
    for record in records:
        interim(half).listening(heard.append)(record)
    assert heard == records
    assert not half.source.measured_run.verdicts_json.exists()


def test_a_run_that_cannot_be_judged_yet_is_no_error(half: AcceptanceSession) -> None:
    half.source.measured_run.plan_json.write_text("{", "utf-8")
    interim(half).hear(end("weak/r"))
    assert not half.source.measured_run.verdicts_json.exists()


def test_verdicts_name_what_they_were_made_of(half: AcceptanceSession) -> None:
    interim(half).hear(CANCELLED)
    content = parse_strict_json(half.source.measured_run.verdicts_json.read_text("utf-8"))
    assert content["basis"]["measurements_sha256"] == half.source.measured_run.measurements_sha256()
    assert any(one["value"] == pytest.approx(SAMPLES_PER_S) for one in content["verdicts"])
