"""A session that judges an earlier run measures nothing."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.report.files import write_reports
from pytest_ddpscale.run.records import ArmProfile
from pytest_ddpscale.run.run_directory import RunDirectory, RunLock
from pytest_ddpscale.run.run_json import Resumed, ThresholdsUsed
from pytest_ddpscale.session.session import AcceptanceSession
from tests.approved import assert_approved, masked
from tests.builders.records import gang_on
from tests.builders.sessions import THRESHOLDS, InstantGang, Open, gpu
from tests.session.conftest import LOST, WITH_CHECK, begun, told

# Something done to the run before it is judged.
Arrange = Callable[[RunDirectory], object]


@pytest.fixture
def old(measuring: AcceptanceSession) -> RunDirectory:
    """A run that was measured in full."""
    measuring.judge(measuring.source.cases[0])
    measuring.source.close("finished")
    measuring.source.release()
    return measuring.source.measured_run


def planned_with_another_bound(old: RunDirectory) -> None:
    plan = old.read_plan()
    plan.requirements[0]["requirement"]["bound"] = 150.0
    old.write_json(old.plan_json, plan)


def begun_with(path: str = "", sha256: str = "", text: str = "") -> Arrange:
    """Its latest session but one had these thresholds; the last one says nothing of them."""

    def arrange(old: RunDirectory) -> None:
        used = old.read_run().thresholds
        assert used is not None
        if text:
            Path("thresholds.yaml").write_text(text, encoding="utf-8")
            used = ThresholdsUsed("thresholds.yaml", hashlib.sha256(text.encode()).hexdigest())
        used = with_fields(used, path=path or used.path, sha256=sha256 or used.sha256)
        said: Any = {"at": old.read_run().started_at, "argv": (), "status_before": "", "measured_anew": {}}
        old.note(resumed=[Resumed(**said, thresholds=one) for one in (used, None)])

    return arrange


def lacking(old: RunDirectory) -> None:
    """Ranks that could not be bound are told once for each reason."""
    refused, absent = "not bound: Operation not permitted", "not bound: no cores"
    old.note(status="interrupted", notes=["imported"], left_out={"n9": "too old"})
    old.append_record(ArmProfile(study="weak/r", arm="alone", gang=0, rank=0, problem="saw no GPU kernel"))
    for number, notes in enumerate(([refused] * 2, [refused] * 2, ["", absent]), 1):
        old.append_record(gang_on(["n1"], 2, number=number, numa_note=notes))


ENDED = "{throughput_per_gpu: any, of: r, severity: warn, until: 2026-01-31, who: A. Name, why: a fan}"
WAIVED = THRESHOLDS.replace("    requirements: []", f"    change: [{ENDED}]")
SCENES: dict[str, tuple[Arrange, str]] = {
    "as it was measured": (lambda _: None, "judge"),
    "bounds of the plan, which do not count": (planned_with_another_bound, "judge"),
    "thresholds that lie elsewhere now": (begun_with("gone.yaml"), "judge"),
    "thresholds of its latest session that are refused now": (begun_with(text=f"{THRESHOLDS}peers:\n"), "judge"),
    "thresholds of its latest session that changed": (begun_with("stricter.yaml", "cd" * 32), "judge"),
    "a waiver of its own file that has ended since": (lambda _: Path("thresholds.yaml").write_text(WAIVED), "resume"),
    "the same of a new run": (lambda _: Path("thresholds.yaml").write_text(WAIVED), "run_dir"),
    "what the run lacks": (lacking, "judge"),
    "a broken baseline, judged": (lambda old: old.baseline_json.write_text("{}"), "judge"),
    "a broken baseline, resumed": (lambda old: old.baseline_json.write_text("{}"), "resume"),
}  # fmt: skip


def test_a_run_is_judged_by_what_is_there_and_what_it_began_with_and_nothing_is_launched(
    opened: Open, old: RunDirectory, gangs: list[InstantGang], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    said = list[str]()
    for name, (arrange, how) in SCENES.items():
        Path("thresholds.yaml").write_text(THRESHOLDS, encoding="utf-8")
        shutil.copytree(old.path, path := tmp_path / f"of {name}")
        arrange(RunDirectory.open(path))
        given = {"ddp_run_dir": None, f"ddp_{how}": str(path / "new" if how == "run_dir" else path)}
        try:
            session = begun(opened(gpu_sku="auto" if how == "judge" else "cpu", **given))
        except BadInput as error:
            said.append(f"{name}: {error}")
            RunLock.acquire(path).release()  # which nobody holds
            continue
        for case in session.source.cases if how == "judge" else ():
            session.judge(case)
        said += [f"{name}: {len(gangs)} launches, {session.source.cases[0].requirement.bound}"]
        said += told(session.conclude(interrupted=False, spoiled=()))
        session.source.release()
    assert_approved("judged.txt", masked("\n".join(said), tmp_path))


def test_who_judges_is_in_the_basis_and_the_measured_run_keeps_its_own(
    opened: Open, old: RunDirectory, tmp_path: Path
) -> None:
    record = old.run_json.read_bytes()
    given: dict[str, Any] = {"ddp_run_dir": None, "ddp_note": ["operator=Eve", "ticket=T-2", "thresholds_path=none"]}
    session = begun(opened(gpu_sku="auto", ddp_judge=str(old.path), **given))
    judgement = session.conclude(interrupted=False, spoiled=())
    noted = {"note_operator": "Eve", "note_ticket": "T-2", "note_thresholds_path": "none"}
    assert noted.items() <= judgement.basis.items()
    assert Path(judgement.basis["thresholds_path"]).is_file(), "no note hides what it was judged by"
    run, evidence = session.source.run, session.source.measured_so_far()
    assert run is not None
    measured = with_fields(old.read_run(), noted={"site": "Hall 1", "ticket": "T-1"})
    assert write_reports(run, judgement, measured, evidence) == []
    shown = "Checked by Eve, date, signature", ">Ticket</th><td>T-2", ">Site</th><td>Hall 1"
    page = (run.path / "report.html").read_text("utf-8")
    assert [words for words in shown if words not in page] == []
    session.history_file = run.path / "history.sqlite"
    session.source.close("finished")
    assert session.remember(judgement) == ""
    assert not session.history_file.exists(), "which has it from its own session"
    assert old.run_json.read_bytes() == record
    session.source.release()
    # Who measures or resumes is in run.json, and not twice.
    for how, path in (("resume", old.path), ("run_dir", tmp_path / "new")):
        session = begun(opened(**given | {f"ddp_{how}": str(path)}))
        assert session.source.measured_run.read_run().operators == ("Eve",)
        assert not noted.keys() & session.conclude(interrupted=False, spoiled=()).basis.keys()


def test_gpus_that_took_no_part_are_not_accepted(
    opened: Open, gangs: list[InstantGang], machine: Callable[..., None], tmp_path: Path
) -> None:
    """Sixteen GPUs, requirements for eight: nothing is known of the other eight. And one of nine does not answer."""
    said = list[str]()
    for text, gpus in (
        (THRESHOLDS, [*map(gpu, range(16))]),
        (WITH_CHECK, [*map(gpu, range(8)), with_fields(LOST, index=8)]),
    ):
        (tmp_path / "thresholds.yaml").write_text(text, encoding="utf-8")
        machine(*gpus)
        session = opened(gpu_sku="gpu", ddp_run_dir=str(tmp_path / f"of {len(gpus)}"))
        session.source.select([case for case in session.source.cases if not case.requirement.check])
        session.source.open_run()
        assert all(session.judge(case).passed for case in session.source.selected)
        judgement = session.conclude(interrupted=False, spoiled=())
        said += [f"{[blocker.cause for blocker in judgement.other_blockers]}", *told(judgement)]
    assert_approved("idle-gpus.txt", masked("\n".join(said), tmp_path))
