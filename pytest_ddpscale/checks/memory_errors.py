"""Errors of device memory: those that a GPU has, and those that appear while it works."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpscale.checks.finding import Finding, GpuPlace, NodeEvidence, fault, gpu_label, note, unknown
from pytest_ddpscale.checks.from_survey import Findings, each_gpu, is_unsupported, unread
from pytest_ddpscale.checks.lost_gpus import gpus_afterwards
from pytest_ddpscale.checks.under_load import each_working_gpu
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.results.survey_record import SurveyedGpu
from pytest_ddpscale.results.telemetry_record import Telemetry


def ecc(evidence: NodeEvidence) -> Findings:
    """Errors are corrected as expected, none was uncorrectable, and no repair waits for a reset or has failed."""
    return each_gpu(evidence, _ecc)


def ecc_under_load(evidence: NodeEvidence) -> Findings:
    """No uncorrectable error appears while GPUs work, nor is there a new one after ranks have failed."""
    found = each_working_gpu(evidence, _under_load)
    for host, before, after, place in gpus_afterwards(evidence):
        new, known = _new_since(before, after, place), found.get(host, Finding())
        # Nothing new is no sign that anybody watched.
        if new.faults and all(one.gpu != place for one in known.faults):
            found[host] = known + new
    return found


def _ecc(expectation: NodeExpectation, gpu: SurveyedGpu, place: GpuPlace) -> Finding:
    if gpu.ecc_enabled is None:
        has_none = expectation.ecc is None and is_unsupported(gpu, "ecc_enabled")
        return Finding() if has_none else unread(gpu, place, "ecc_enabled")
    found = Finding()
    if expectation.ecc is not None and gpu.ecc_enabled != expectation.ecc:
        found += fault(f"ECC is {_on(gpu.ecc_enabled)}; expected {_on(expectation.ecc)}", place)
    if gpu.ecc_enabled:
        found += _counts(gpu, place) + _repairs(gpu, place)
    return found


def _counts(gpu: SurveyedGpu, place: GpuPlace) -> Finding:
    found = Finding()
    if gpu.ecc_uncorrected is None:
        found += unread(gpu, place, "ecc_uncorrected")
    elif gpu.ecc_uncorrected:
        text = f"{gpu.ecc_uncorrected} uncorrectable memory errors since the driver was loaded"
        found += fault(text, place, stands_alone=True)
    if gpu.ecc_corrected:
        found += note(f"{gpu_label(place)}: {gpu.ecc_corrected} corrected memory errors since the driver was loaded")
    return found


def _repairs(gpu: SurveyedGpu, place: GpuPlace) -> Finding:
    """A GPU retires pages (before Ampere) or remaps rows (since): the other one is not supported."""
    found = Finding()
    rows = gpu.remapped_rows
    if gpu.retired_pages_pending is None and not is_unsupported(gpu, "retired_pages_pending") and rows is None:
        found += unread(gpu, place, "retired_pages_pending")
    if rows is None and not is_unsupported(gpu, "remapped_rows"):
        found += unread(gpu, place, "remapped_rows")
    if gpu.retired_pages_pending:
        found += fault("a memory page waits for a reset of the GPU to be retired", place, stands_alone=True)
    if rows is not None and rows.failed:
        found += fault("a faulty memory row could not be remapped", place, stands_alone=True)
    if rows is not None and rows.pending:
        found += fault("a memory row waits for a reset of the GPU to be remapped", place, stands_alone=True)
    if rows is not None and rows.uncorrectable:
        found += note(f"{gpu_label(place)}: {rows.uncorrectable} memory rows were remapped for uncorrectable errors")
    return found


def _under_load(expectation: NodeExpectation, windows: Sequence[Telemetry], place: GpuPlace) -> Finding:
    """New errors of all windows.

    A single one that is not read leaves it open: the next counts from the poll before its own begin, not from the last
    window that was read, so that an error of the unread one may be in no count.
    """
    found = Finding()
    uncorrected = sum(window.ecc_uncorrected or 0 for window in windows)
    corrected = sum(window.ecc_corrected or 0 for window in windows)
    unread_windows = [window for window in windows if window.ecc_uncorrected is None]
    if uncorrected:
        found += fault(f"{uncorrected} new uncorrectable memory errors under load", place, stands_alone=True)
    if corrected:
        found += note(f"{gpu_label(place)}: {corrected} new corrected memory errors under load")
    if unread_windows and not (expectation.ecc is not True and all(map(_has_no_ecc, unread_windows))):
        reasons = unread_windows[0].unreadable
        reason = reasons.get("ecc_uncorrected") or reasons.get("device", "the driver does not say why")
        text = f"memory errors cannot be read in {len(unread_windows)} of {len(windows)} windows ({reason})"
        found += unknown(f"{gpu_label(place)}: {text}")
    return found


def _new_since(before: SurveyedGpu, after: SurveyedGpu, place: GpuPlace) -> Finding:
    """What the driver counts after ranks have failed, and did not before they began: it may have ended them."""
    was, now = before.ecc_uncorrected, after.ecc_uncorrected
    if was is not None and now is not None and now > was:
        text = f"{now - was} new uncorrectable memory errors when ranks had failed"
        return fault(text, place, stands_alone=True)
    if before.retired_pages_pending is False and after.retired_pages_pending:
        return fault("a memory page waits to be retired since ranks failed", place, stands_alone=True)
    rows_before, rows = before.remapped_rows, after.remapped_rows
    if rows_before is None or rows is None:
        return Finding()
    if rows.failed and not rows_before.failed:
        return fault("a faulty memory row could not be remapped since ranks failed", place, stands_alone=True)
    if rows.pending and not rows_before.pending:
        return fault("a memory row waits to be remapped since ranks failed", place, stands_alone=True)
    return Finding()


def _has_no_ecc(window: Telemetry) -> bool:
    return "not supported" in window.unreadable.get("ecc_uncorrected", "").lower()


def _on(enabled: bool) -> str:
    return "on" if enabled else "off"
