"""A run that still goes on has verdicts and a report already, so that one that is killed has them.

report.html exists from the plan on and has new progress every 5 s, in at most 0.5 % of a core; interim judging takes a
twentieth of the time at most.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_ddpscale.launch.gang_state import Limits
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.report import files
from pytest_ddpscale.report.while_measuring import REFRESH_S
from pytest_ddpscale.run.record_lines import AnyRecord, Idle, Interrupted, Notice
from pytest_ddpscale.run.records import StudyEnd, StudyStart
from pytest_ddpscale.run.verdicts import read_judged
from pytest_ddpscale.session import session as module
from pytest_ddpscale.session.session import LARGEST_SHARE_OF_PROGRESS, AcceptanceSession, LiveReport
from tests.approved import assert_approved, masked
from tests.builders.records import gang_on, steady_block
from tests.builders.sessions import InstantGang, Open
from tests.session.conftest import begun, told

STUDY = "weak/r"
CANCELLED, START = Interrupted("the job was cancelled"), StudyStart(study=STUDY, unix_s=1.0)
END, CUT = StudyEnd(STUDY, "rounds"), StudyEnd(STUDY, "interrupted")


class Half:
    """A session on a clock of the test's own, about to be killed; its only study has ended.

    Attributes:
        progress_s: how long putting progress into the page takes.
        written_s: when that was done.
    """

    def __init__(self, session: AcceptanceSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session, self.run = session, session.source.measured_run
        self.now_s, self.progress_s, self.written_s = 1000.0, 0.005, list[float]()
        self.interim = session.interim = LiveReport(session, lambda: self.now_s)
        write = files.write_live_page

        def timed(*page: object) -> None:
            self.written_s.append(self.now_s)
            self.now_s += self.progress_s
            write(*page)  # type: ignore[arg-type]

        monkeypatch.setattr(module, "write_live_page", timed)
        InstantGang(None, self.run, Limits(), None).measure(session.source.plan)

    @property
    def page(self) -> str:
        return (self.run.path / "report.html").read_text("utf-8")


@pytest.fixture
def half(measuring: AcceptanceSession, gangs: list[InstantGang], monkeypatch: pytest.MonkeyPatch) -> Half:
    return Half(measuring, monkeypatch)


SCENES: dict[str, tuple[AnyRecord | Notice, ...]] = {
    # Not of other records, nor of what an interruption ended.
    "nothing has ended": (Idle(), START, CUT), "what cannot be read": (END,),
    # Nothing is settled by it.
    "a study has ended": (END,),
    # Of a study that goes on they are not measured yet, and no error.
    "a study goes on, and somebody ends the session": (CANCELLED, CUT),
}  # fmt: skip


def test_verdicts_are_written_after_a_study_and_at_once_where_somebody_ends_the_session(
    opened: Open, gangs: list[InstantGang], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = list[str]()
    for name, records in SCENES.items():
        monkeypatch.setattr(InstantGang, "ends", "goes on" not in name)
        half = Half(begun(opened(ddp_run_dir=str(tmp_path / name))), monkeypatch)
        half.interim.begin()
        if "read" in name:
            half.run.plan_json.write_text("{", "utf-8")
        for record in records:
            half.interim.hear(record)
            half.now_s += 1000.0
        shown = re.findall('http-equiv="refresh"|the job was cancelled|easuring was still running', half.page)
        said += [f"{name}: {len(half.written_s)} times written, {sorted({*shown})}, settled {half.session.verdicts}"]
        if half.run.verdicts_json.exists():
            said += told(read_judged(half.run, half.run))
            said += (half.run.path / "report.md").read_text("utf-8").splitlines()[:1]
        if CANCELLED in records:
            said += told(half.session.conclude(interrupted=True, spoiled=()))
    assert_approved("interim.txt", masked("\n".join(said), tmp_path))


def test_they_take_a_twentieth_of_the_time_at_most(half: Half, monkeypatch: pytest.MonkeyPatch) -> None:
    judged_s = list[float]()

    def takes_two_seconds(*_: object, **__: object) -> None:
        half.now_s += 2.0
        judged_s.append(half.now_s)

    monkeypatch.setattr(module, "write_reports", takes_two_seconds)
    for _ in range(100):
        half.interim.hear(END)
        half.now_s += 1.0
    half.interim.hear(CANCELLED)  # somebody waits for that one
    assert judged_s == [1002.0, 1042.0, 1082.0, half.now_s]


def test_the_page_has_the_plan_then_ranks_and_progress_every_5_s_also_while_blocks_are_timed(half: Half) -> None:
    half.interim.begin()
    shown = f'content="{REFRESH_S}">', "MEASURING: 0 of ", "0 % done, ", "starting ranks</p>", "No requirement has been"
    assert [words for words in shown if words not in half.page] == []
    half.interim.hear(gang_on(["n1", "n2"], 1))
    half.interim.hear(START)
    for second in range(30):
        half.now_s += 1.0
        block = steady_block(STUDY, Arm("ddp", 2, 4), second, (0, 1), 100.0 + second)
        half.interim.hear(Idle() if second % 3 else block)
    assert half.written_s == pytest.approx([1000.0 + 5 * number for number in range(7)], abs=1.1)
    assert "ddp@2, round 28" in half.page
    assert '<td class="n">127.0</td>' in half.page


def test_the_page_takes_no_more_than_its_share(half: Half) -> None:
    half.progress_s = 0.5
    half.interim.begin()
    for _ in range(600):
        half.now_s += 1.0
        half.interim.hear(Idle())
    gaps = [later - earlier for earlier, later in zip(half.written_s, half.written_s[1:], strict=False)]
    assert 0.5 / LARGEST_SHARE_OF_PROGRESS <= min(gaps) < 110.0
    assert (LARGEST_SHARE_OF_PROGRESS, REFRESH_S) == (0.005, 5), "as promised"


def test_a_page_on_a_full_disk_ends_no_measuring_and_of_an_earlier_run_there_is_none(
    half: Half, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    for interim in (opened(ddp_judge=str(half.run.path)).interim, half.interim):
        interim.begin()
        half.now_s += 1000.0
        interim.hear(Idle())
        assert not (half.run.path / "report.html").exists()
        monkeypatch.setattr(module, "write_live_page", full)
