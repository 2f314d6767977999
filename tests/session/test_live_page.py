"""While measuring, report.html exists from the plan on and has new progress every 5 s, in at most 0.5 % of a core."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.report.while_measuring import REFRESH_S
from pytest_ddpscale.run.record_lines import Idle, Interrupted
from pytest_ddpscale.run.records import StudyEnd, StudyStart
from pytest_ddpscale.session.interim import LARGEST_SHARE_OF_PROGRESS, Interim
from pytest_ddpscale.session.session import AcceptanceSession
from tests.builders.records import gang_on, steady_block
from tests.builders.sessions import Open

STUDY = "weak/r"


class Timed:
    """A session's page on a clock of the test's own; putting progress into it takes as long as it says."""

    def __init__(self, session: AcceptanceSession, monkeypatch: pytest.MonkeyPatch, progress_s: float = 0.005) -> None:
        self.now_s, self.written = 100.0, list[float]()
        self.page = Interim(session.source, session.so_far, lambda: self.now_s)
        from pytest_ddpscale.report import files

        write = files.write_live_page

        def timed(*page: object) -> None:
            self.written.append(self.now_s)
            self.now_s += progress_s
            write(*page)  # type: ignore[arg-type]

        monkeypatch.setattr(files, "write_live_page", timed)


def path_of(session: AcceptanceSession) -> Path:
    return session.source.measured_run.path / "report.html"


def text_of(session: AcceptanceSession) -> str:
    return path_of(session).read_text("utf-8")


@pytest.fixture
def timed(measuring: AcceptanceSession, monkeypatch: pytest.MonkeyPatch) -> Timed:
    return Timed(measuring, monkeypatch)


def test_the_page_of_the_plan_says_how_long_it_takes(measuring: AcceptanceSession, timed: Timed) -> None:
    timed.page.begin()
    page = text_of(measuring)
    assert f'<meta http-equiv="refresh" content="{REFRESH_S}">' in page
    assert "MEASURING: 0 of " in page
    assert "0 % done, " in page
    assert "starting ranks</p>" in page


def test_ranks_and_progress_are_put_in_every_5_s_also_while_blocks_are_timed(
    measuring: AcceptanceSession, timed: Timed
) -> None:
    timed.page.begin()
    timed.page.hear(gang_on(["n1", "n2"], 1))
    timed.page.hear(StudyStart(study=STUDY, unix_s=1.0))
    for second in range(30):
        timed.now_s += 1.0
        if second % 3:
            timed.page.hear(Idle())
            continue
        timed.page.hear(steady_block(STUDY, Arm("ddp", 2, 4), second, (0, 1), 100.0 + second))
    assert timed.written == pytest.approx([100.0, 105.0, 110.0, 115.0, 120.0, 125.0, 130.0], abs=1.1)
    page = text_of(measuring)
    assert "ddp@2, round 28" in page
    assert '<td class="n">127.0</td>' in page


def test_it_takes_no_more_than_its_share(measuring: AcceptanceSession, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Timed(measuring, monkeypatch, 0.5)
    timed.page.begin()
    for _ in range(600):
        timed.now_s += 1.0
        timed.page.hear(Idle())
    gaps = [later - earlier for earlier, later in zip(timed.written, timed.written[1:], strict=False)]
    assert min(gaps) >= 0.5 / LARGEST_SHARE_OF_PROGRESS
    assert len(timed.written) <= 7


def test_what_was_judged_after_a_study_is_on_the_page_at_once(measuring: AcceptanceSession, timed: Timed) -> None:
    timed.page.begin()
    assert "No requirement has been judged yet" in text_of(measuring)
    measuring.source.measured_run.append_records([StudyEnd(STUDY, "rounds")])
    timed.page.hear(StudyEnd(STUDY, "rounds"))
    assert "Measuring was still running when this was written at 20" in text_of(measuring)


def test_after_an_interruption_the_page_is_left_alone(timed: Timed) -> None:
    timed.page.begin()
    timed.page.hear(Interrupted("the job was cancelled"))
    timed.now_s += 1000.0
    timed.page.hear(StudyEnd(STUDY, "interrupted"))
    assert len(timed.written) == 1


def test_a_full_disk_ends_no_measuring(
    measuring: AcceptanceSession, timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("pytest_ddpscale.report.files.write_live_page", full)
    timed.page.begin()
    timed.now_s += 1000.0
    timed.page.hear(Idle())
    assert not path_of(measuring).exists()


def test_an_earlier_run_has_none(measuring: AcceptanceSession, opened: Open) -> None:
    judging = opened(ddp_judge=str(measuring.source.measured_run.path))
    judging.interim.begin()
    judging.interim.hear(Idle())
    assert not path_of(measuring).exists()


def test_the_share_is_the_promised_one() -> None:
    assert (LARGEST_SHARE_OF_PROGRESS, REFRESH_S) == (0.005, 5)
