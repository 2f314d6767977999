"""Verdicts and report of a run that still goes on, so that a run that is killed at any moment has them."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.results.records import flops_of
from pytest_ddpscale.results.run_record import now_iso, studies_that_ended

if TYPE_CHECKING:
    from pytest_ddpscale.launch.supervisor import Listener
    from pytest_ddpscale.session.session import AcceptanceSession

# At most this share of the time goes into judging what is not complete: on many nodes it takes seconds.
_LARGEST_SHARE = 0.05


class Interim:
    """A listener that has the run judged and written after each study, and when somebody ends the session.

    Args:
        session: whose run it is.
        listener: hears every record first.
    """

    def __init__(self, session: AcceptanceSession, listener: Listener) -> None:
        self._session = session
        self._listener = listener
        self._next_s = 0.0

    def __call__(self, record: dict[str, Any]) -> None:
        """Take one record."""
        self._listener(record)
        kind = record.get("kind")
        if kind == "interrupted":
            self._session.interruption = f"interrupted at {now_iso()}: {record['message']}"
            self._write(self._session.interruption)
        elif kind == "study_end" and record["reason"] != "interrupted" and time.monotonic() >= self._next_s:
            self._write(f"measuring went on at {now_iso()}, when this was written")

    def _write(self, why: str) -> None:
        began_s = time.monotonic()
        with suppress(BadInput):  # what cannot be read or written is said when all has been measured
            self._judge_and_write(why)
        ended_s = time.monotonic()
        self._next_s = ended_s + (ended_s - began_s) / _LARGEST_SHARE

    def _judge_and_write(self, why: str) -> None:
        from pytest_ddpscale.report.files import write_reports

        run = self._session.run
        assert run is not None
        records, plan = run.read_records(), run.read_plan()
        ended = studies_that_ended(records) & set(plan.study_ids)
        done = f"{len(ended)} of {len(plan.study_ids)} studies had ended; --ddp-resume={run.path} measures the others"
        judgement = self._session.so_far(why, f"{why}; {done}")
        measured = (run.read_run(), plan, run.read_measurements(), flops_of(records))
        write_reports(run, judgement, *measured, is_final=False)
