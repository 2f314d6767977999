"""A session's access to the site's history: read its nodes' earlier results and add the new ones."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.history.baseline import BASELINE_SCHEMA_VERSION, Baseline, read_baseline
from pytest_ddpscale.history.recording import record_run, started_at_of
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_directory import RunDirectory, read_file
from pytest_ddpscale.run.verdicts import Judgement


def baseline_of(measured: RunDirectory, history_file: Path | None, sku: str, evidence: Evidence) -> Baseline | None:
    """Earlier results of a run's nodes.

    They come from the run itself if it was judged before, so that a verdict can be repeated anywhere; else from the
    history.

    Raises:
        RunDirectoryError: baseline.json is broken.
        HistoryError: the history cannot be used.
    """
    kept = kept_baseline(measured)
    if kept is not None or history_file is None or not history_file.exists():
        return kept
    return read_baseline(history_file, sku, _hosts(evidence), started_at_of(measured.read_run()))


def _hosts(evidence: Evidence) -> frozenset[str]:
    """All hosts in the evidence."""
    return frozenset({*evidence.columns.hosts, *evidence.hosts})


def kept_baseline(measured: RunDirectory) -> Baseline | None:
    """The baseline that earlier verdicts on a run used; None without one. Raises RunDirectoryError if it is broken."""
    file = measured.baseline_json
    return read_file(file, Baseline, BASELINE_SCHEMA_VERSION) if file.exists() else None


def remember(history_file: Path, run: RunDirectory, judgement: Judgement, evidence: Evidence | None) -> str:
    """Add a run to the site's history. Returns why that failed; empty if it did not.

    A failure does not affect the run, which can be added to the history later.
    """
    try:
        record_run(history_file, run, judgement, evidence)
    except BadInput as error:
        return f"the history was not updated: {error}"
    return ""
