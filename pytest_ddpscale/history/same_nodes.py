"""What the site's history knows of the nodes of a run: their earlier results, and how recent runs of them ended."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path

from pytest_ddpscale.errors import HistoryError
from pytest_ddpscale.history.past_run import known_versions, started_at_of
from pytest_ddpscale.history.regression import BASELINE_SCHEMA_VERSION, Baseline, read_baseline
from pytest_ddpscale.history.store import hosts_of, node_runs, reading
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_directory import RunDirectory, read_file

RECENT_DAYS = 7


def baseline_of(measured: RunDirectory, history_file: Path, sku: str, evidence: Evidence) -> Baseline | None:
    """Earlier results of a run's nodes.

    They come from the run itself if it was judged before, so that a verdict can be repeated anywhere; else from the
    history.

    Raises:
        RunDirectoryError: baseline.json is broken.
        HistoryError: the history cannot be used.
    """
    kept = kept_baseline(measured)
    if kept is not None or not history_file.exists():
        return kept
    surveys = evidence.surveys
    versions = {host: known_versions(surveys[host].versions if host in surveys else {}) for host in _hosts(evidence)}
    return read_baseline(history_file, sku, versions, started_at_of(measured.read_run()))


def recent_runs(measured: RunDirectory, history_file: Path, sku: str, evidence: Evidence) -> str:
    """How many runs of exactly these nodes began in the `RECENT_DAYS` before under the same thresholds, and how they
    ended; empty for none.
    """
    record, hosts = measured.read_run(), _hosts(evidence)
    until, since = started_at_of(record), (record.began - timedelta(RECENT_DAYS)).isoformat(timespec="seconds")
    if not (history_file.exists() and record.thresholds and hosts):
        return ""
    try:
        with reading(history_file) as connection:
            runs = [run for run in node_runs(connection, sku, min(hosts), until) if run.started_at >= since]
            alike = [run for run in runs if hosts_of(connection, run.run) == hosts]
    except HistoryError as error:
        return f"earlier runs of these nodes are unknown: {error}"
    ended = [run.outcome for run in alike if run.thresholds == record.thresholds.sha256]
    if not ended:
        return ""
    times = ", ".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in Counter(ended).most_common())
    return f"earlier runs of these nodes under the same thresholds in the last {RECENT_DAYS} days: {times}"


def _hosts(evidence: Evidence) -> frozenset[str]:
    """All hosts in the evidence."""
    return frozenset({*evidence.columns.hosts, *evidence.hosts})


def kept_baseline(measured: RunDirectory) -> Baseline | None:
    """The baseline that earlier verdicts on a run used; None without one. Raises RunDirectoryError if it is broken."""
    file = measured.baseline_json
    return read_file(file, Baseline, BASELINE_SCHEMA_VERSION) if file.exists() else None
