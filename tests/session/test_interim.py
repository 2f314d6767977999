"""A run that still goes on has verdicts and a report already, so that one that is killed has them.

report.html exists from the plan on and has new progress every 5 s, in at most 0.5 % of a core; interim judging takes a
twentieth of the time at most.
"""

from __future__ import annotations

import pytest

from pytest_ddpscale.launch.gang_state import Limits
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.report import files
from pytest_ddpscale.report.while_measuring import REFRESH_S
from pytest_ddpscale.run.record_lines import Idle, Interrupted
from pytest_ddpscale.run.records import StudyEnd, StudyStart
from pytest_ddpscale.run.verdicts import Judgement, read_judged
from pytest_ddpscale.session import session as module
from pytest_ddpscale.session.session import LARGEST_SHARE_OF_PROGRESS, AcceptanceSession, LiveReport
from tests.builders.records import gang_on, steady_block
from tests.builders.sessions import SAMPLES_PER_S, InstantGang, Open

STUDY = "weak/r"
CANCELLED = Interrupted("the job was cancelled")
END, CUT = StudyEnd(STUDY, "rounds"), StudyEnd(STUDY, "interrupted")


class Half:
    """A session on a clock of the test's own, about to be killed; its only study has ended.

    Attributes:
        progress_s: how long putting progress into the page takes.
        written_s: when that was done.
    """

    def __init__(self, session: AcceptanceSession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session, self.run, self.plan = session, session.source.measured_run, session.source.plan
        self.now_s, self.progress_s, self.written_s = 1000.0, 0.005, list[float]()
        self.interim = session.interim = LiveReport(session, lambda: self.now_s)
        write = files.write_live_page

        def timed(*page: object) -> None:
            self.written_s.append(self.now_s)
            self.now_s += self.progress_s
            write(*page)  # type: ignore[arg-type]

        monkeypatch.setattr(module, "write_live_page", timed)
        InstantGang(None, self.run, Limits(), None).measure(self.plan)

    @property
    def page(self) -> str:
        return (self.run.path / "report.html").read_text("utf-8")

    @property
    def judgement(self) -> Judgement:
        """As it was written, of what is there."""
        return read_judged(self.run, self.run)


@pytest.fixture
def half(measuring: AcceptanceSession, gangs: list[InstantGang], monkeypatch: pytest.MonkeyPatch) -> Half:
    return Half(measuring, monkeypatch)


def test_verdicts_are_written_after_a_study_and_the_run_is_incomplete(half: Half) -> None:
    half.interim.begin()
    half.interim.hear(END)
    judgement, running = half.judgement, "easuring was still running when this was written at 20"
    assert (judgement.outcome, half.session.verdicts) == ("incomplete", {}), "nothing is settled by it"
    assert running in judgement.reason
    assert running in half.page
    assert f"1 of 1 studies had ended; --ddp-resume={half.run.path}" in judgement.reason
    assert any(verdict.passed and verdict.value == pytest.approx(SAMPLES_PER_S) for verdict in judgement.verdicts)
    assert "INCOMPLETE" in (half.run.path / "report.md").read_text("utf-8")


def test_of_a_study_that_goes_on_they_are_not_measured_yet_and_no_error(half: Half) -> None:
    lines = half.run.measurements_jsonl.read_text("utf-8").splitlines(keepends=True)
    left = "".join(line for line in lines if '"study_end"' not in line)
    half.run.measurements_jsonl.write_text(left, "utf-8")
    half.interim.hear(CANCELLED)
    assert {verdict.outcome for verdict in half.judgement.verdicts} == {"not_measured"}
    assert half.judgement.verdicts[0].reason.startswith("interrupted at 20")


def test_of_a_session_that_somebody_ends_they_are_there_at_once_with_when_and_why_and_the_page_is_final(
    half: Half,
) -> None:
    half.interim.begin()
    half.interim.hear(CANCELLED)
    half.now_s += 1000.0
    half.interim.hear(CUT)
    assert len(half.written_s) == 1
    assert "the job was cancelled" in half.page
    assert 'http-equiv="refresh"' not in half.page
    assert half.judgement.reason.startswith("interrupted at 20")
    assert ": the job was cancelled; 1 of " in half.judgement.reason
    final = half.session.conclude(interrupted=True, spoiled=())
    assert (final.outcome, final.reason[:17]) == ("incomplete", "interrupted at 20")


def test_they_take_a_twentieth_of_the_time_at_most(half: Half, monkeypatch: pytest.MonkeyPatch) -> None:
    judged_s = list[float]()

    def takes_two_seconds(*_: object, **__: object) -> None:
        half.now_s += 2.0
        judged_s.append(half.now_s)

    monkeypatch.setattr(module, "write_reports", takes_two_seconds)
    for _ in range(100):
        half.interim.hear(END)
        half.now_s += 1.0
    assert judged_s == [1002.0, 1042.0, 1082.0]
    half.interim.hear(CANCELLED)
    assert len(judged_s) == 4, "somebody waits for that one"


def test_they_are_not_made_of_other_records_nor_of_what_an_interruption_ended_nor_of_what_cannot_be_read(
    half: Half,
) -> None:
    for record in (Idle(), StudyStart(study=STUDY, unix_s=1.0), CUT):
        half.interim.hear(record)
    half.run.plan_json.write_text("{", "utf-8")
    half.interim.hear(END)
    assert not half.run.verdicts_json.exists()


def test_the_page_has_the_plan_then_ranks_and_progress_every_5_s_also_while_blocks_are_timed(half: Half) -> None:
    half.interim.begin()
    for told in (
        f'<meta http-equiv="refresh" content="{REFRESH_S}">', "MEASURING: 0 of ", "0 % done, ", "starting ranks</p>",
        "No requirement has been judged yet",
    ):  # fmt: skip
        assert told in half.page
    half.interim.hear(gang_on(["n1", "n2"], 1))
    half.interim.hear(StudyStart(study=STUDY, unix_s=1.0))
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
    assert min(gaps) >= 0.5 / LARGEST_SHARE_OF_PROGRESS
    assert len(half.written_s) <= 7
    assert (LARGEST_SHARE_OF_PROGRESS, REFRESH_S) == (0.005, 5), "as promised"


def test_a_page_on_a_full_disk_ends_no_measuring_and_of_an_earlier_run_there_is_none(
    half: Half, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    judging = opened(ddp_judge=str(half.run.path))
    judging.interim.begin()
    judging.interim.hear(Idle())
    assert not (half.run.path / "report.html").exists()

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(module, "write_live_page", full)
    half.interim.begin()
    half.now_s += 1000.0
    half.interim.hear(Idle())
    assert not (half.run.path / "report.html").exists()
