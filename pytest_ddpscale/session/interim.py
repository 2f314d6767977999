"""Verdicts and reports while measuring: for a run that is killed, and report.html with progress put in every 5 s."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.report.while_measuring import REFRESH_S, Progress
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.record_lines import AnyRecord, Interrupted, Listener, Notice
from pytest_ddpscale.run.records import StudyEnd
from pytest_ddpscale.run.run_json import now_iso
from pytest_ddpscale.run.run_record import ends_of
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.session.evidence import EvidenceSource

# The judgement of evidence if the run ended now, why a study has no end yet, and the judgement's reason.
SoFar = Callable[[Evidence, str, str], Judgement]

# Largest shares of the time: of interim judging, which takes seconds on many nodes, and of putting progress in.
_LARGEST_SHARE = 0.05
LARGEST_SHARE_OF_PROGRESS = 0.005


class Interim:
    """Judges a session's run and writes reports after each study and on interruption.

    The page exists from `begin` on. Progress is put into it also while blocks are timed, by this process, which trains
    nothing: every `REFRESH_S` seconds, or less often where that would take more than its share of a core.
    `interruption` says when and why measuring was interrupted; empty if it was not.
    """

    def __init__(self, source: EvidenceSource, so_far: SoFar, now: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._so_far = so_far
        self._now = now
        self._progress: Progress | None = None
        self._page = ""
        self._next_progress_s = self._next_judging_s = 0.0
        self.interruption = ""

    def begin(self) -> None:
        """Write the page of the plan, before anything is started."""
        source, plan = self._source, self._source.plan_to_measure
        if plan is None or not plan.study_ids:
            return
        self._progress = Progress(
            plan, now=self._now, samples_per_s=source.expected_samples_per_s, budget_s=source.subject.settings.budget_s
        )
        nothing, why = source.subject.evidence_of_nothing(source.plan), "no requirement has been judged yet"
        with suppress(BadInput, OSError):  # read and write errors are reported at the end of the run
            self._render(self._so_far(nothing, why, why), nothing)

    def listening(self, listener: Listener) -> Listener:
        """A listener that passes records on first."""

        def hear(record: AnyRecord | Notice) -> None:
            listener(record)
            self.hear(record)

        return hear

    def hear(self, record: AnyRecord | Notice) -> None:
        """Process one record or notice."""
        if isinstance(record, Interrupted):
            self._page = ""  # which may not replace the final one
        if self._progress is not None:
            self._progress(record)
            if self._page and self._now() >= self._next_progress_s:
                with suppress(OSError):
                    self._put_progress(self._progress)
        if isinstance(record, Interrupted):
            self.interruption = f"interrupted at {now_iso()}: {say(record.message)}"
            self._write(self.interruption, is_last=True)
        elif isinstance(record, StudyEnd) and record.reason != "interrupted" and self._now() >= self._next_judging_s:
            began_s = self._now()
            self._write(f"measuring was still running when this was written at {now_iso()}")
            ended_s = self._now()
            self._next_judging_s = ended_s + (ended_s - began_s) / _LARGEST_SHARE

    def _write(self, why: str, *, is_last: bool = False) -> None:
        """Judge what was measured and write its reports."""
        from pytest_ddpscale.report.files import write_reports

        run = self._source.measured_run
        with suppress(BadInput, OSError):  # as above
            evidence = read_evidence(run, why, goes_on=True)
            studies = evidence.plan.study_ids
            ended = ends_of(run.read_records()).keys() & set(studies)
            done = f"{len(ended)} of {len(studies)} studies had ended; --ddp-resume={run.path} measures the others"
            judgement = self._so_far(evidence, why, f"{why}; {done}")
            write_reports(run, judgement, run.read_run(), evidence, is_final=is_last)
            if not is_last:
                self._render(judgement, evidence)

    def _render(self, judgement: Judgement, evidence: Evidence) -> None:
        """Render and write the page of the latest judgement. Raises BadInput, OSError."""
        from pytest_ddpscale.report.files import live_page

        if self._progress is not None:
            self._page = live_page(judgement, self._source.measured_run.read_run(), evidence)
            self._put_progress(self._progress)

    def _put_progress(self, progress: Progress) -> None:
        from pytest_ddpscale.report.files import write_live_page

        began_s = self._now()
        self._next_progress_s = began_s + REFRESH_S  # also if the disk is full
        write_live_page(self._source.measured_run, self._page, progress.section(now_iso()))
        self._next_progress_s = began_s + max(REFRESH_S, (self._now() - began_s) / LARGEST_SHARE_OF_PROGRESS)
