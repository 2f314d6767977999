"""Device memory errors: those present before launch, and new ones under load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from pytest_ddpscale.judge.finding import Finding, GpuPlace, NodeEvidence, fault, note, unknown
from pytest_ddpscale.judge.from_survey import Findings, is_unsupported, unread
from pytest_ddpscale.judge.lost_gpus import gpus_afterwards
from pytest_ddpscale.judge.under_load import each_working_gpu
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.run.survey_record import SurveyedGpu
from pytest_ddpscale.run.telemetry import TelemetryColumns


def ecc(expectation: NodeExpectation, gpu: SurveyedGpu, place: GpuPlace) -> Iterator[Finding]:
    """ECC mode is as expected, no uncorrectable errors, and no repair has failed or waits for a reset."""
    if gpu.ecc_enabled is None:
        if expectation.ecc is not None or not is_unsupported(gpu, "ecc_enabled"):
            yield unread(gpu, place, "ecc_enabled")
        return
    if expectation.ecc is not None and gpu.ecc_enabled != expectation.ecc:
        yield fault(f"ECC is {_on(gpu.ecc_enabled)}; expected {_on(expectation.ecc)}", place)
    if gpu.ecc_enabled:
        yield from _counts(gpu, place)
        yield from _repairs(gpu, place)


def ecc_under_load(evidence: NodeEvidence) -> Findings:
    """No new uncorrectable errors under load or after ranks have failed."""
    found = each_working_gpu(_under_load, evidence)
    for host, before, after, place in gpus_afterwards(evidence):
        new, known = _new_since(before, after), found.get(host, Finding())
        # An unchanged counter does not make up for missing telemetry.
        if new and all(one.gpu != place for one in known.faults):
            found[host] = known + fault(new, place, stands_alone=True)
    return found


def _counts(gpu: SurveyedGpu, place: GpuPlace) -> Iterator[Finding]:
    if gpu.ecc_uncorrected is None:
        yield unread(gpu, place, "ecc_uncorrected")
    elif gpu.ecc_uncorrected:
        text = f"{gpu.ecc_uncorrected} uncorrectable memory errors since the driver was loaded"
        yield fault(text, place, stands_alone=True)
    if gpu.ecc_corrected:
        yield note(f"{gpu.ecc_corrected} corrected memory errors since the driver was loaded", place)


def _repairs(gpu: SurveyedGpu, place: GpuPlace) -> Iterator[Finding]:
    """A GPU either retires pages (before Ampere) or remaps rows (since); it does not support the other."""
    rows = gpu.remapped_rows
    if gpu.retired_pages_pending is None and not is_unsupported(gpu, "retired_pages_pending") and rows is None:
        yield unread(gpu, place, "retired_pages_pending")
    if rows is None and not is_unsupported(gpu, "remapped_rows"):
        yield unread(gpu, place, "remapped_rows")
    if gpu.retired_pages_pending:
        yield fault("a memory page waits for a reset of the GPU to be retired", place, stands_alone=True)
    if rows is not None and rows.failed:
        yield fault("a faulty memory row could not be remapped", place, stands_alone=True)
    if rows is not None and rows.pending:
        yield fault("a memory row waits for a reset of the GPU to be remapped", place, stands_alone=True)
    if rows is not None and rows.uncorrectable:
        yield note(f"{rows.uncorrectable} memory rows were remapped for uncorrectable errors", place)


def _under_load(
    expectation: NodeExpectation, windows: TelemetryColumns, place: GpuPlace
) -> Iterator[Finding]:  # fmt: skip
    """New errors of all windows.

    One unread window makes the result unknown: the next window counts from the poll before its own begin, not from the
    last window that was read, so an error in the unread window may be in no count.
    """
    uncorrected, corrected = int(np.nansum(windows.ecc_uncorrected)), int(np.nansum(windows.ecc_corrected))
    reasons = windows.unreadable[np.isnan(windows.ecc_uncorrected)]
    if uncorrected:
        yield fault(f"{uncorrected} new uncorrectable memory errors under load", place, stands_alone=True)
    if corrected:
        yield note(f"{corrected} new corrected memory errors under load", place)
    if len(reasons) and not (expectation.ecc is not True and all(map(_has_no_ecc, reasons.different))):
        first = next(iter(reasons))
        reason = first.get("ecc_uncorrected") or first.get("device", "the driver gives no reason")
        where = f"{len(reasons)} of {len(windows)} windows under load"
        yield unknown(f"memory error counters cannot be read in {where} ({reason})", place)


def _new_since(before: SurveyedGpu, after: SurveyedGpu) -> str:
    """Errors that appeared between launch and the ranks' failure, which they may have caused; empty if none."""
    was, now = before.ecc_uncorrected, after.ecc_uncorrected
    if was is not None and now is not None and now > was:
        return f"{now - was} new uncorrectable memory errors after ranks failed"
    if before.retired_pages_pending is False and after.retired_pages_pending:
        return "a memory page waits to be retired after ranks failed"
    rows_before, rows = before.remapped_rows, after.remapped_rows
    if rows_before is None or rows is None:
        return ""
    if rows.failed and not rows_before.failed:
        return "a faulty memory row could not be remapped after ranks failed"
    return "a memory row waits to be remapped after ranks failed" if rows.pending and not rows_before.pending else ""


def _has_no_ecc(unreadable: Mapping[str, str]) -> bool:
    return "not supported" in unreadable.get("ecc_uncorrected", "").lower()


def _on(enabled: bool) -> str:
    return "on" if enabled else "off"
