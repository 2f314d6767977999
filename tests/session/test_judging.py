"""A session that judges an earlier run measures nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from pytest_ddpscale.errors import RunDirectoryError, ThresholdsError
from pytest_ddpscale.report.files import write_reports
from pytest_ddpscale.run.records import ArmProfile
from pytest_ddpscale.run.run_directory import RunDirectory, RunLock
from pytest_ddpscale.run.run_json import Resumed, ThresholdsUsed
from pytest_ddpscale.session.session import AcceptanceSession
from tests.builders.records import gang_on
from tests.builders.sessions import THRESHOLDS, InstantGang, Open, gpu, nothing


@pytest.fixture
def old(measuring: AcceptanceSession) -> RunDirectory:
    """A run that was measured in full."""
    measuring.judge(measuring.source.cases[0], nothing)
    measuring.source.close("finished")
    measuring.source.release()
    return measuring.source.measured_run


def begun(session: AcceptanceSession) -> AcceptanceSession:
    session.source.select(session.source.cases)
    session.source.open_run()
    return session


def judged(opened: Open, old: RunDirectory, **options: Any) -> AcceptanceSession:
    return begun(opened(gpu_sku="auto", ddp_judge=str(old.path), ddp_run_dir=None, **options))


def test_verdicts_come_from_what_is_there_and_nothing_is_launched(
    opened: Open, old: RunDirectory, gangs: list[InstantGang]
) -> None:
    session = judged(opened, old)
    verdicts = [session.judge(case, nothing) for case in session.source.cases]
    assert [verdict.outcome for verdict in verdicts] == ["passed", "passed", "not_measured"]
    assert verdicts[2].reason == "strong scaling of r was not measured in this run"
    assert len(gangs) == 1, "the one that measured it"


@pytest.mark.parametrize("place", ["", "gone.yaml"])
def test_bounds_are_those_of_the_thresholds_that_it_began_with_wherever_they_are_and_not_of_the_plan(
    opened: Open, old: RunDirectory, place: str
) -> None:
    plan, record = old.read_plan(), old.read_run()
    plan.requirements[0]["requirement"]["bound"] = 150.0
    old.write_json(old.plan_json, plan)
    assert record.thresholds is not None
    used = with_fields(record.thresholds, path=place or record.thresholds.path)
    old.write_json(old.run_json, with_fields(record, thresholds=used))
    session = judged(opened, old)
    verdict = session.judge(session.source.cases[0], nothing)
    assert (verdict.outcome, verdict.bound_value) == ("passed", 50)


def test_thresholds_of_its_latest_session_that_changed_or_are_refused_now_are_told(
    opened: Open, old: RunDirectory, tmp_path: Path
) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(f"{THRESHOLDS}peers:\n", encoding="utf-8")
    unchanged = ThresholdsUsed(str(path), hashlib.sha256(path.read_bytes()).hexdigest())
    at = old.read_run().started_at
    for latest, said in (
        (unchanged, r"old\.yaml:24: peers is None"),
        (ThresholdsUsed("stricter.yaml", "cd" * 32), r"stricter\.yaml: is gone or has changed"),
    ):
        sessions = [
            Resumed(at=at, argv=(), status_before="", measured_anew={}, thresholds=one) for one in (latest, None)
        ]
        old.note(resumed=sessions)
        with pytest.raises(ThresholdsError, match=said):
            judged(opened, old)


def test_a_run_goes_on_though_a_waiver_of_its_own_file_has_ended_since(
    opened: Open, old: RunDirectory, tmp_path: Path
) -> None:
    waiver = "{throughput_per_gpu: any, of: r, severity: warn, until: 2026-01-31, who: A. Name, why: a fan}"
    text = THRESHOLDS.replace("    requirements: []", f"    change: [{waiver}]")
    (tmp_path / "thresholds.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ThresholdsError, match="is over"):
        opened()
    assert opened(ddp_resume=str(old.path), ddp_run_dir=None).source.cases[0].requirement.waiver is not None


@pytest.mark.parametrize("status", ["running", "interrupted"])
def test_what_the_run_lacks_is_told(opened: Open, old: RunDirectory, status: str) -> None:
    """Ranks that could not be bound once for each reason."""
    refused, absent = "not bound: Operation not permitted", "not bound: no cores"
    before = judged(opened, old).conclude(interrupted=False, spoiled=()).notes
    old.note(status=status, notes=["imported"], left_out={"n9": "too old"})
    old.append_record(ArmProfile(study="weak/r", arm="alone", gang=0, rank=0, problem="saw no GPU kernel"))
    for number, notes in enumerate(([refused] * 2, [refused] * 2, ["", absent]), 1):
        old.append_record(gang_on(["n1"], 2, number=number, numa_note=notes))
    found = judged(opened, old).conclude(interrupted=False, spoiled=()).notes
    assert {*found} - {*before} == {
        "--ddp-profile: no profile of weak/r, alone: saw no GPU kernel", f"rank 0 on n1 and 1 more: {refused}",
        f"rank 1 on n1: {absent}", "imported", "n9 was left out: too old",
        f"run.json says {status}: its session did not end regularly, or still runs",
    }  # fmt: skip
    assert found[0] == f"judged from {old.path} without a new measurement"


def test_who_judges_is_in_the_basis_and_the_measured_run_keeps_its_own(opened: Open, old: RunDirectory) -> None:
    record = old.run_json.read_bytes()
    session = judged(opened, old, ddp_note=["operator=Eve", "ticket=T-2", "thresholds_path=none"])
    judgement = session.conclude(interrupted=False, spoiled=())
    noted = {"note_operator": "Eve", "note_ticket": "T-2", "note_thresholds_path": "none"}
    assert noted.items() <= judgement.basis.items()
    assert Path(judgement.basis["thresholds_path"]).is_file(), "no note hides what it was judged by"
    run, evidence = session.source.run, session.source.measured_so_far()
    assert run is not None
    assert evidence is not None
    measured = with_fields(old.read_run(), noted={"site": "Hall 1", "ticket": "T-1"})
    assert write_reports(run, judgement, measured, evidence) == []
    page = (run.path / "report.html").read_text("utf-8")
    for shown in ("Checked by Eve, date, signature", "<dt>Ticket</dt><dd>T-2", "<dt>Site</dt><dd>Hall 1"):
        assert shown in page
    session.history_file = run.path / "history.sqlite"
    session.source.close("finished")
    assert session.remember(judgement) == ""
    assert not session.history_file.exists(), "which has it from its own session"
    assert old.run_json.read_bytes() == record


def test_who_measures_or_resumes_is_in_run_json_and_not_twice(opened: Open, old: RunDirectory, tmp_path: Path) -> None:
    begun(opened(ddp_resume=str(old.path), ddp_run_dir=None, ddp_note=["operator=Bob"]))
    assert old.read_run().operators == ("Bob",)
    session = begun(opened(ddp_run_dir=str(tmp_path / "new"), ddp_note=["operator=Eve"]))
    assert session.source.measured_run.read_run().operators == ("Eve",)
    assert not any(key.startswith("note_") for key in session.conclude(interrupted=False, spoiled=()).basis)


@pytest.mark.parametrize("option", ["ddp_judge", "ddp_resume"])
def test_a_broken_baseline_is_refused_before_anything_is_judged_or_measured(
    opened: Open, old: RunDirectory, option: str
) -> None:
    old.baseline_json.write_text("{}")
    session = opened(**{option: str(old.path), "ddp_run_dir": None})
    with pytest.raises(RunDirectoryError, match=r"baseline\.json.*is not a baseline.json: it has no schema"):
        begun(session)
    RunLock.acquire(old.path).release()  # which nobody holds


def test_gpus_that_took_no_part_are_not_accepted(
    opened: Open, gangs: list[InstantGang], machine: Callable[..., None]
) -> None:
    """Sixteen GPUs, requirements for eight: nothing is known of the other eight."""
    machine(*map(gpu, range(16)))
    session = begun(opened(gpu_sku="gpu"))
    assert all(session.judge(case, nothing).passed for case in session.source.cases)
    judgement = session.conclude(interrupted=False, spoiled=())
    assert judgement.outcome == "partial"
    assert "none of them tested 8 of 16 GPUs: GPU of local rank 8 on here" in judgement.reason
