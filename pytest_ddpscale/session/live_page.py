"""report.html while measuring, written only between timed blocks and in a small share of the run's time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.report.live_progress import LiveProgress
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.record_lines import AnyRecord, Interrupted, Notice
from pytest_ddpscale.run.records import GangRecord, RoundEnd, StudyEnd, StudyStart
from pytest_ddpscale.run.run_record import now_iso
from pytest_ddpscale.run.verdicts import Judgement

if TYPE_CHECKING:
    from pytest_ddpscale.session.session import AcceptanceSession

LARGEST_SHARE = 0.005
EVERY_S = 5.0
# Assumed cost of the first page.
_FIRST_PAGE_S, _FIRST_PROGRESS_S = 0.1, 0.01


class LivePage:
    """A session's live page: rendered when the latest judgement changes, with current progress inserted each time.

    The page is written only when no block is timed: before and after a study, and at the end of a round from the eighth
    on, where rank 0 waits for an answer that is sent after listeners have processed the round. Writing takes at most
    `LARGEST_SHARE` of the time since the first record.
    """

    def __init__(self, session: AcceptanceSession, now: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._now = now
        self._progress = LiveProgress()
        self._is_over = False
        self._judged: tuple[Judgement, Evidence] | None = None
        self._page = ""
        self._is_stale = True
        self._began_s: float | None = None
        self._next_s = 0.0
        self._spent_s = 0.0
        self._page_s, self._progress_s = _FIRST_PAGE_S, _FIRST_PROGRESS_S

    def judged(self, judgement: Judgement, evidence: Evidence) -> None:
        """Take the latest judgement, for the next page."""
        self._judged, self._is_stale = (judgement, evidence), True

    def hear(self, record: AnyRecord | Notice) -> None:
        """Process one record, and write the page if no block is being timed.

        After an interruption the page is not written again, so that it cannot replace the final one.
        """
        self._began_s = self._now() if self._began_s is None else self._began_s
        self._is_over |= isinstance(record, Interrupted)
        if isinstance(record, Notice) or self._is_over:
            return
        self._progress.hear(record)
        if isinstance(record, GangRecord):  # import while ranks warm up; the final report needs it too
            import_module("pytest_ddpscale.report.html_page")
        if _is_between_blocks(record) and self._now() >= self._next_s:
            with suppress(BadInput, OSError):  # read and write errors are reported at the end of the run
                self._write()

    def _write(self) -> None:
        if self._is_stale and self._may_spend(self._page_s):
            self._next_s = self._now() + EVERY_S
            self._page_s = self._timed(self._render)
        if self._page and self._may_spend(self._progress_s):
            self._next_s = self._now() + EVERY_S
            self._progress_s = self._timed(self._put)

    def _may_spend(self, seconds: float) -> bool:
        assert self._began_s is not None
        return self._spent_s + seconds <= LARGEST_SHARE * (self._now() - self._began_s)

    def _timed(self, work: Callable[[], None]) -> float:
        """Run `work` and return its seconds, which count as spent even if it fails."""
        began_s = self._now()
        try:
            work()
        finally:
            took_s = self._now() - began_s
            self._spent_s += took_s
        return took_s

    def _render(self) -> None:
        from pytest_ddpscale.report.files import page_of

        source = self._session.source
        if self._judged is None:
            nothing, why = self._session.subject.evidence_of_nothing(source.plan), "no requirement has been judged yet"
            self._judged = self._session.so_far(nothing, why, why), nothing
        judgement, evidence = self._judged
        self._page = page_of(judgement, source.measured_run.read_run(), evidence, goes_on=True)
        self._is_stale = False

    def _put(self) -> None:
        from pytest_ddpscale.report.files import write_live_page

        source = self._session.source
        assert source.plan is not None
        measured_now = source.plan_to_measure.study_ids if source.plan_to_measure else ()
        section = self._progress.section(source.plan, measured_now, now_iso())
        write_live_page(source.measured_run, self._page, section)


def _is_between_blocks(record: AnyRecord) -> bool:
    if isinstance(record, RoundEnd):
        return record.round + 1 >= FEWEST_ROUNDS
    return isinstance(record, StudyStart | StudyEnd)
