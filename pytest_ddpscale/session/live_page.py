"""report.html while measuring: rendered when the plan is made and after studies, with progress put in every 10 s."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.report.live_progress import REFRESH_S, LiveProgress
from pytest_ddpscale.report.progress import Progress
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.record_lines import AnyRecord, Interrupted, Notice
from pytest_ddpscale.run.run_record import now_iso
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.session.sources import EvidenceSource

# The judgement of evidence if the run ended now, why a study has no end yet, and the judgement's reason.
SoFar = Callable[[Evidence, str, str], Judgement]

LARGEST_SHARE = 0.005


class LivePage:
    """A session's live page.

    Progress is put into the rendered page also while blocks are timed, by this process, which trains nothing: every
    `REFRESH_S` seconds, or less often where that would take more than `LARGEST_SHARE` of a core.
    """

    def __init__(self, source: EvidenceSource, so_far: SoFar, now: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._so_far = so_far
        self._now = now
        self._progress: LiveProgress | None = None
        self._judgement: Judgement | None = None
        self._page = ""
        self._next_s = 0.0

    def begin(self) -> None:
        """Write the page of the plan, before anything is started."""
        source = self._source
        if source.plan_to_measure is None or not source.plan_to_measure.study_ids:
            return
        settings = source.subject.settings
        self._progress = LiveProgress(
            Progress(
                source.plan_to_measure, now=self._now, samples_per_s=source.expected_samples_per_s,
                isolate=settings.is_isolated, budget_s=settings.budget_s,
            )
        )  # fmt: skip
        nothing, why = source.subject.evidence_of_nothing(source.plan), "no requirement has been judged yet"
        with suppress(BadInput, OSError):  # read and write errors are reported at the end of the run
            self.judged(self._so_far(nothing, why, why), nothing)

    def judged(self, judgement: Judgement, evidence: Evidence) -> None:
        """Render and write the page of the latest judgement, once it has begun. Raises BadInput, OSError."""
        if self._progress is None:
            return
        from pytest_ddpscale.report.files import page_of

        run = self._source.measured_run
        page = page_of(judgement, run.read_run(), evidence, goes_on=True)
        self._judgement, self._page = judgement, page
        self._put()

    def hear(self, record: AnyRecord | Notice) -> None:
        """Process one record or notice, and put the progress into the page if it is time.

        After an interruption the page is not written again, so that it cannot replace the final one.
        """
        if isinstance(record, Interrupted):
            self._page = ""
        if self._progress is None:
            return
        self._progress.hear(record)
        if self._page and self._now() >= self._next_s:
            with suppress(OSError):
                self._put()

    def _put(self) -> None:
        from pytest_ddpscale.report.files import write_live_page

        assert self._progress is not None
        assert self._judgement is not None
        began_s = self._now()
        self._next_s = began_s + REFRESH_S  # also if the disk is full
        run = self._source.measured_run
        self._progress.read_telemetry(run.telemetry_jsonl)
        write_live_page(run, self._page, self._progress.section(now_iso(), self._judgement))
        self._next_s = began_s + max(REFRESH_S, (self._now() - began_s) / LARGEST_SHARE)
