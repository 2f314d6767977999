"""Interim verdicts and reports, so that a run that is killed has them too."""

from __future__ import annotations

import time
from contextlib import suppress

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.run.evidence import read_evidence
from pytest_ddpscale.run.record_lines import AnyRecord, Interrupted, Listener, Notice
from pytest_ddpscale.run.records import StudyEnd
from pytest_ddpscale.run.run_record import ends_of, now_iso
from pytest_ddpscale.session.live_page import LivePage, SoFar
from pytest_ddpscale.session.sources import EvidenceSource

# Largest share of the time spent on interim judging, which takes seconds on many nodes.
_LARGEST_SHARE = 0.05


class Interim:
    """Judges a session's run and writes reports after each study and on interruption.

    `interruption` says when and why measuring was interrupted; empty if it was not.
    """

    def __init__(self, source: EvidenceSource, so_far: SoFar, page: LivePage) -> None:
        self._source = source
        self._so_far = so_far
        self._page = page
        self._next_s = 0.0
        self.interruption = ""

    def listening(self, listener: Listener) -> Listener:
        """A listener that passes records on first."""

        def hear(record: AnyRecord | Notice) -> None:
            listener(record)
            self.hear(record)

        return hear

    def hear(self, record: AnyRecord | Notice) -> None:
        """Process one record."""
        self._page.hear(record)
        if isinstance(record, Interrupted):
            self.interruption = f"interrupted at {now_iso()}: {record.message}"
            self._write(self.interruption, is_last=True)
        elif isinstance(record, StudyEnd) and record.reason != "interrupted" and time.monotonic() >= self._next_s:
            self._write(f"measuring was still running when this was written at {now_iso()}")

    def _write(self, why: str, *, is_last: bool = False) -> None:
        began_s = time.monotonic()
        with suppress(BadInput, OSError):  # read and write errors are reported at the end of the run
            self._judge_and_write(why, is_last)
        ended_s = time.monotonic()
        self._next_s = ended_s + (ended_s - began_s) / _LARGEST_SHARE

    def _judge_and_write(self, why: str, is_last: bool) -> None:
        from pytest_ddpscale.report.files import write_page, write_reports

        run = self._source.measured_run
        evidence = read_evidence(run, why, goes_on=True)
        studies = evidence.plan.study_ids
        ended = ends_of(run.read_records()).keys() & set(studies)
        done = f"{len(ended)} of {len(studies)} studies had ended; --ddp-resume={run.path} measures the others"
        judgement = self._so_far(evidence, why, f"{why}; {done}")
        write_reports(run, judgement, run.read_run(), evidence, is_final=False)
        if is_last:
            write_page(run, judgement, run.read_run(), evidence)
        else:
            self._page.judged(judgement, evidence)
