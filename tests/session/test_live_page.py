"""While measuring, report.html is written between timed blocks, every 5 s, in at most 0.5 % of the time."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.run.record_lines import AnyRecord, Idle, Interrupted, Notice
from pytest_ddpscale.run.records import RoundEnd, StudyEnd, StudyStart
from pytest_ddpscale.session import live_page
from pytest_ddpscale.session.interim import Interim
from pytest_ddpscale.session.live_page import EVERY_S, LARGEST_SHARE, LivePage
from pytest_ddpscale.session.session import AcceptanceSession
from tests.builders.records import steady_block
from tests.builders.sessions import nothing

STUDY = "weak/r"


class Timed:
    """A session's page on a clock of the test's own; rendering and putting progress into it take as long as it says."""

    def __init__(self, session: AcceptanceSession, page_s: float, progress_s: float) -> None:
        self.now_s, self.spent_s, self.rendered = 100.0, 0.0, 0
        self.written: list[float] = []
        self.shares: list[float] = []
        self.page = LivePage(session, lambda: self.now_s)
        self._after(self.page, "_render", page_s, self._render)
        self._after(self.page, "_put", progress_s, lambda: self.written.append(self.now_s))

    def _render(self) -> None:
        self.rendered += 1

    def _after(self, page: LivePage, name: str, cost_s: float, note: Callable[[], None]) -> None:
        does = getattr(page, name)

        def timed() -> None:
            note()
            does()
            self.now_s += cost_s
            self.spent_s += cost_s

        setattr(page, name, timed)

    def hear(self, *records: AnyRecord | Notice) -> None:
        for record in records:
            self.page.hear(record)

    def rounds(self, number: int, every_s: float) -> None:
        for round_ in range(number):
            self.now_s += every_s
            self.hear(steady_block(STUDY, Arm("alone", 1, 4), round_, (0,), 100.0))
            self.hear(RoundEnd(study=STUDY, round=round_, arms=("alone",)))
            self.shares.append(self.spent_s / (self.now_s - 100.0))


def page_text(session: AcceptanceSession) -> str:
    assert session.run is not None
    path = session.run.path / "report.html"
    return path.read_text("utf-8") if path.exists() else ""


def test_the_page_says_how_far_measuring_is_before_anything_is_judged(measuring: AcceptanceSession) -> None:
    timed = Timed(measuring, 0.05, 0.005)
    timed.hear(Idle(), StudyStart(study=STUDY, unix_s=1.0))
    timed.rounds(30, 1.0)
    page = page_text(measuring)
    assert '<meta http-equiv="refresh" content="5">' in page
    assert "MEASURING: 0 of " in page
    assert re.search(r"Last written at 20\d\d-", page)
    assert f"{STUDY}: round 30" in page or f"{STUDY}: round 2" in page
    assert '<th scope="row">alone</th>' in page


def test_it_is_written_every_5_s_and_never_in_more_than_its_share(measuring: AcceptanceSession) -> None:
    timed = Timed(measuring, 0.1, 0.01)
    timed.hear(Idle())
    timed.rounds(200, 1.0)
    assert timed.rendered == 1, "nothing new was judged"
    gaps = {later - earlier for earlier, later in zip(timed.written, timed.written[1:], strict=False)}
    assert min(gaps) >= EVERY_S
    assert len(timed.written) >= 30
    assert max(timed.shares) <= LARGEST_SHARE


def test_a_page_that_costs_more_is_written_less_often(measuring: AcceptanceSession) -> None:
    timed = Timed(measuring, 0.1, 0.5)
    timed.hear(Idle())
    timed.rounds(600, 1.0)
    assert len(timed.written) == 5, "each 0.5 s is earned in 100 s, but for the first, of which nothing was known"
    assert timed.shares[-1] <= LARGEST_SHARE


def test_blocks_and_notices_write_nothing(measuring: AcceptanceSession) -> None:
    timed = Timed(measuring, 0.05, 0.005)
    timed.hear(Idle())
    timed.now_s += 1000.0
    timed.hear(Idle(), steady_block(STUDY, Arm("alone", 1, 4), 0, (0,), 100.0))
    assert timed.written == []
    timed.hear(RoundEnd(study=STUDY, round=6, arms=("alone",)))
    assert timed.written == [], "before the eighth round has ended rank 0 does not wait"
    timed.hear(RoundEnd(study=STUDY, round=7, arms=("alone",)))
    assert len(timed.written) == 1


def test_what_was_judged_after_a_study_is_on_the_next_page(measuring: AcceptanceSession) -> None:
    timed = Timed(measuring, 0.05, 0.005)
    measuring.live_page = timed.page
    listener = Interim(measuring, nothing)
    listener(Idle())
    timed.now_s += 1000.0
    listener(RoundEnd(study=STUDY, round=7, arms=("alone",)))
    assert "no requirement has been judged yet" in page_text(measuring)
    timed.now_s += 1000.0
    listener(StudyEnd(STUDY, "rounds"))
    assert timed.rendered == 2
    assert "measuring was still running when this was written at 20" in page_text(measuring)


def test_after_an_interruption_the_page_is_left_alone(measuring: AcceptanceSession) -> None:
    timed = Timed(measuring, 0.05, 0.005)
    timed.hear(Idle(), Interrupted("the job was cancelled"))
    timed.now_s += 1000.0
    timed.hear(StudyEnd(STUDY, "interrupted"))
    assert timed.written == []


def test_a_full_disk_ends_no_measuring(measuring: AcceptanceSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    timed = Timed(measuring, 0.05, 0.005)
    timed.hear(Idle())
    timed.now_s += 1000.0
    monkeypatch.setattr("pytest_ddpscale.report.files.write_live_page", full)
    timed.hear(RoundEnd(study=STUDY, round=7, arms=("alone",)))
    assert page_text(measuring) == ""


def test_the_shares_are_those_that_are_promised() -> None:
    assert (live_page.LARGEST_SHARE, live_page.EVERY_S) == (0.005, 5.0)
