"""A session's dealings with the site's history: what its nodes reached before, and what they reach now."""

from __future__ import annotations

from pathlib import Path

from pytest_ddpscale.errors import BadInput
from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.history.baseline import BASELINE_SCHEMA_VERSION, Baseline, read_baseline
from pytest_ddpscale.history.recording import record_run, started_at_of
from pytest_ddpscale.results.run_directory import RunDirectory, read_file
from pytest_ddpscale.results.verdicts import Judgement


def baseline_of(measured: RunDirectory, history_file: Path | None, sku: str, evidence: Evidence) -> Baseline | None:
    """What the nodes of a run reached before it.

    As the run itself has it, if it was judged before, so that a verdict can be repeated anywhere; else as the history
    has it now.

    Raises:
        RunDirectoryError: baseline.json is broken.
        HistoryError: the history cannot be used.
    """
    if measured.baseline_json.exists():
        return _read(measured.baseline_json)
    if history_file is None or not history_file.exists():
        return None
    probed = {host for probe in evidence.probes.values() for host in probe.ranks.by_host}
    hosts = evidence.columns.hosts | probed | set(evidence.hosts)
    return read_baseline(history_file, sku, hosts, started_at_of(measured.read_run()))


def refuse_broken_baseline(measured: RunDirectory) -> None:
    """Before anything is judged or measured: found later, it would look like a requirement that is not kept.

    Raises:
        RunDirectoryError: baseline.json is there, and is no baseline.
    """
    if measured.baseline_json.exists():
        _read(measured.baseline_json)


def keep_baseline(run: RunDirectory, baseline: Baseline) -> None:
    """Write down what a verdict was made of."""
    if not run.baseline_json.exists():
        run.write_json(run.baseline_json, baseline)


def remember(history_file: Path, run: RunDirectory, judgement: Judgement, evidence: Evidence | None) -> str:
    """Add a run to the site's history. Returns why that failed, in words; empty if it did not.

    The history is a convenience: where it cannot be written the run is as good as before, and can be added later.
    """
    try:
        record_run(history_file, run, judgement, evidence)
    except BadInput as error:
        return f"the history was not brought up to date: {error}"
    return ""


def _read(path: Path) -> Baseline:
    return read_file(path, Baseline, BASELINE_SCHEMA_VERSION)
