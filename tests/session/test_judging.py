"""A session that judges an earlier run measures nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from pytest_ddpscale.errors import RunDirectoryError, ThresholdsError
from pytest_ddpscale.report.files import write_reports
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import ArmProfile
from pytest_ddpscale.run.run_directory import RunDirectory, RunLock
from pytest_ddpscale.run.run_json import Resumed, ThresholdsUsed
from pytest_ddpscale.session.session import AcceptanceSession
from tests.builders.records import gang_on
from tests.builders.sessions import THRESHOLDS, InstantGang, Open, gpu, nothing

REFUSED, ABSENT = "not bound: Operation not permitted", "not bound: no cores"
UNBOUND = [REFUSED, REFUSED], [REFUSED, REFUSED], ["", ABSENT]


class TestJudging:
    @pytest.fixture
    def old(self, measuring: AcceptanceSession) -> RunDirectory:
        """A run that was measured in full."""
        measuring.judge(measuring.source.cases[0], nothing)
        measuring.source.close("finished")
        measuring.source.release()
        return measuring.source.measured_run

    def judged(self, opened: Open, old: RunDirectory, **options: Any) -> AcceptanceSession:
        session = opened(gpu_sku="auto", ddp_judge=str(old.path), ddp_run_dir=None, **options)
        session.source.select(session.source.cases)
        session.source.open_run()
        return session

    def test_verdicts_come_from_what_is_there_and_nothing_is_launched(
        self, opened: Open, old: RunDirectory, gangs: list[InstantGang]
    ) -> None:
        session = self.judged(opened, old)
        verdicts = [session.judge(case, nothing) for case in session.source.cases]
        assert [verdict.outcome for verdict in verdicts] == ["passed", "passed", "not_measured"]
        assert verdicts[2].reason == "strong scaling of r was not measured in this run"
        assert len(gangs) == 1, "the one that measured it"

    @pytest.mark.parametrize("place", ["", "gone.yaml"])
    def test_bounds_are_those_of_the_thresholds_that_it_began_with_wherever_they_are_and_not_of_the_plan(
        self, opened: Open, old: RunDirectory, place: str
    ) -> None:
        plan, record = old.read_plan(), old.read_run()
        plan.requirements[0]["requirement"]["bound"] = 150.0
        old.write_json(old.plan_json, plan)
        assert record.thresholds is not None
        used = with_fields(record.thresholds, path=place or record.thresholds.path)
        old.write_json(old.run_json, with_fields(record, thresholds=used))
        session = self.judged(opened, old)
        verdict = session.judge(session.source.cases[0], nothing)
        assert (verdict.outcome, verdict.bound_value) == ("passed", 50)

    def test_a_resumed_run_is_judged_by_the_thresholds_of_its_latest_session(
        self, opened: Open, old: RunDirectory
    ) -> None:
        used: list[ThresholdsUsed | None] = [ThresholdsUsed("stricter.yaml", "cd" * 32), None]
        at = old.read_run().started_at
        old.note(resumed=[Resumed(at=at, argv=(), status_before="", measured_anew={}, thresholds=one) for one in used])
        with pytest.raises(ThresholdsError, match=r"stricter\.yaml: is gone or has changed"):
            self.judged(opened, old)

    def test_an_unchanged_file_that_is_refused_now_is_told_as_that(
        self, opened: Open, old: RunDirectory, tmp_path: Path
    ) -> None:
        path = tmp_path / "old.yaml"
        path.write_text(f"{THRESHOLDS}peers:\n", encoding="utf-8")
        used = ThresholdsUsed(str(path), hashlib.sha256(path.read_bytes()).hexdigest())
        old.write_json(old.run_json, with_fields(old.read_run(), thresholds=used))
        with pytest.raises(ThresholdsError, match=r"old\.yaml:24: the file is as it was .* refused now: peers is None"):
            self.judged(opened, old)

    def test_a_run_goes_on_though_a_waiver_of_its_own_file_has_ended_since(
        self, opened: Open, old: RunDirectory, tmp_path: Path
    ) -> None:
        waiver = "{throughput_per_gpu: any, of: r, severity: warn, until: 2026-01-31, who: A. Name, why: a fan}"
        text = THRESHOLDS.replace("    requirements: []", f"    change: [{waiver}]")
        (tmp_path / "thresholds.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(ThresholdsError, match="is over"):
            opened()
        assert opened(ddp_resume=str(old.path), ddp_run_dir=None).source.cases[0].requirement.waiver is not None

    @pytest.mark.parametrize(
        ("changes", "records", "told"),
        [
            (
                {}, [ArmProfile(study="weak/r", arm="alone", gang=0, rank=0, problem="saw no GPU kernel")],
                {"--ddp-profile: no profile of weak/r, alone: saw no GPU kernel"},
            ),
            # Ranks that could not be bound, once for each reason.
            (
                {}, [gang_on(["n1"], 2, number=1 + at, numa_note=notes) for at, notes in enumerate(UNBOUND)],
                {f"rank 0 on n1 and 1 more: {REFUSED}", f"rank 1 on n1: {ABSENT}"},
            ),
            *(
                ({"status": status}, [], {f"run.json says {status}: its session did not end regularly, or still runs"})
                for status in ("running", "interrupted")
            ),
            ({"notes": ["imported"], "left_out": {"n9": "too old"}}, [], {"imported", "n9 was left out: too old"}),
        ],
        ids=["profile", "unbound", "running", "interrupted", "notes"],
    )  # fmt: skip
    def test_what_the_run_lacks_is_told(
        self, opened: Open, old: RunDirectory, changes: dict[str, Any], records: Sequence[AnyRecord], told: set[str]
    ) -> None:
        before = self.judged(opened, old).conclude(interrupted=False, spoiled=()).notes
        old.verdicts_json.unlink(missing_ok=True)
        old.note(**changes)
        old.append_records(records)
        notes = self.judged(opened, old).conclude(interrupted=False, spoiled=()).notes
        assert {*notes} - {*before} == told
        assert notes[0] == f"judged from {old.path} without a new measurement"

    def test_who_judges_is_in_the_basis_and_the_measured_run_keeps_its_own(
        self, opened: Open, old: RunDirectory
    ) -> None:
        record = old.run_json.read_bytes()
        session = self.judged(opened, old, ddp_note=["operator=Eve", "ticket=T-2", "thresholds_path=none"])
        judgement = session.conclude(interrupted=False, spoiled=())
        noted = {"note_operator": "Eve", "note_ticket": "T-2", "note_thresholds_path": "none"}
        assert noted.items() <= judgement.basis.items()
        assert Path(judgement.basis["thresholds_path"]).is_file(), "no note hides what it was judged by"
        assert session.source.run is not None
        measured = with_fields(old.read_run(), noted={"site": "Hall 1", "ticket": "T-1"})
        evidence = session.source.measured_so_far()
        assert evidence is not None
        assert write_reports(session.source.run, judgement, measured, evidence) == []
        page = (session.source.run.path / "report.html").read_text("utf-8")
        for shown in ("Checked by Eve, date, signature", "<dt>Ticket</dt><dd>T-2", "<dt>Site</dt><dd>Hall 1"):
            assert shown in page
        session.history_file = session.source.run.path / "history.sqlite"
        session.source.close("finished")
        assert session.remember(judgement) == ""
        assert not session.history_file.exists(), "which has it from its own session"
        assert old.run_json.read_bytes() == record

    def test_who_resumes_is_added_to_the_run(self, opened: Open, old: RunDirectory) -> None:
        source = opened(ddp_resume=str(old.path), ddp_run_dir=None, ddp_note=["operator=Bob"]).source
        source.select(source.cases)
        source.open_run()
        assert old.read_run().operators == ("Bob",)

    def test_what_is_measured_has_that_in_run_json_and_not_twice(self, opened: Open) -> None:
        session = opened(ddp_note=["operator=Eve"])
        session.source.select(session.source.cases)
        session.source.open_run()
        assert session.source.measured_run.read_run().operators == ("Eve",)
        assert not any(key.startswith("note_") for key in session.conclude(interrupted=False, spoiled=()).basis)

    @pytest.mark.parametrize("goes_on", [False, True])
    def test_a_broken_baseline_is_refused_before_anything_is_judged_or_measured(
        self, opened: Open, old: RunDirectory, goes_on: bool
    ) -> None:
        old.baseline_json.write_text("{}")
        source = opened(**{"ddp_resume" if goes_on else "ddp_judge": str(old.path), "ddp_run_dir": None}).source
        begin = source.open_run if goes_on else lambda: source.select(source.cases)
        if goes_on:
            source.select(source.cases)
        with pytest.raises(RunDirectoryError, match=r"baseline\.json.*is not a baseline.json: it has no schema"):
            begin()
        RunLock.acquire(old.path).release()  # which nobody holds


def test_gpus_that_took_no_part_are_not_accepted(
    opened: Open, gangs: list[InstantGang], machine: Callable[..., None]
) -> None:
    """Sixteen GPUs, requirements for eight: nothing is known of the other eight."""
    machine(*map(gpu, range(16)))
    session = opened(gpu_sku="gpu")
    session.source.select(session.source.cases)
    session.source.open_run()
    assert all(session.judge(case, nothing).passed for case in session.source.cases)
    judgement = session.conclude(interrupted=False, spoiled=())
    assert judgement.outcome == "partial"
    assert "none of them tested 8 of 16 GPUs: GPU of local rank 8 on here" in judgement.reason
