"""run.json: who measured, when, on what, with which versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pytest_ddpscale import __version__
from pytest_ddpscale.results.run_directory import RUN_SCHEMA_VERSION, RunDirectory

RUNS_FOLDER = Path("ddpscale-runs")
IMPORTED = "imported"  # status of a run made of another tool's results
SIMULATED = "simulated"  # status of a run of the simulator, and the field of run.json that is true in it
SIMULATED_DEVICE = "SIM-"  # what its devices are called, in place of GPU-
SIMULATED_NOTE = "SIMULATED: no machine was measured"


def is_simulated(record: dict[str, Any], devices: Iterable[str] = ()) -> bool:
    """Whether a run was simulated: any one of its marks is enough.

    Args:
        record: the content of run.json.
        devices: on which it says it was measured.
    """
    notes = record.get("notes")
    return (
        bool(record.get(SIMULATED))
        or record.get("status") == SIMULATED
        or "simulation" in record
        or (isinstance(notes, list) and SIMULATED_NOTE in notes)
        or any(device.startswith(SIMULATED_DEVICE) for device in devices)
    )


def new_run_directory(asked: Path | None, sku: str) -> RunDirectory:
    """The directory asked for, or ``ddpscale-runs/<UTC time>-<sku>`` with a link ``latest`` to it.

    Raises:
        RunDirectoryError: it cannot be written, or already holds a run.
    """
    if asked is not None:
        return RunDirectory.create(asked)
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
    path = RUNS_FOLDER / f"{stamp}-{sku}"
    number = 2
    while path.exists():
        path = RUNS_FOLDER / f"{stamp}-{sku}-{number}"
        number += 1
    run = RunDirectory.create(path)
    _link_latest(path)
    return run


def start_run(
    run: RunDirectory,
    sku: str,
    argv: Sequence[str],
    thresholds_path: Path,
    thresholds_sha256: str,
    devices_present: int | None = None,
) -> None:
    """Record what is about to happen, before it happens.

    Args:
        run: whose run.json is written.
        sku: canonical SKU name.
        argv: the command line.
        thresholds_path: the file judged by.
        thresholds_sha256: its digest.
        devices_present: GPUs that may be used here, whether they are going to be or not.
    """
    record = {
        "schema_version": RUN_SCHEMA_VERSION,
        "sku": sku,
        "status": "running",
        "started_at": now_iso(),
        "argv": list(argv),
        "thresholds": {"path": str(thresholds_path), "sha256": thresholds_sha256},
        "versions": {
            "python": platform.python_version(),
            "pytest": _version("pytest"),
            "pytest_ddpscale": __version__,
        },
        "devices_present": devices_present,
        "hosts": [],
    }
    run.write_json(run.run_json, record)


def finish_run(run: RunDirectory, status: str) -> None:
    """Add how it ended, and what the ranks said of themselves: hosts, devices, versions, start-up."""
    record = run.read_run() | {"status": status, "finished_at": now_iso()}
    startups = [r for r in run.read_records() if r.get("kind") == "startup"]
    if startups:
        record["hosts"] = _hosts(startups)
        record["versions"] = record["versions"] | {k: v for k, v in startups[0]["versions"].items() if v is not None}
        record["environment"] = startups[0]["environment"]
        record["startup"] = _slowest_startup(run, startups)
    run.write_json(run.run_json, record)


def errors_of(records: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Message of every study that broke and was not measured again, by its id."""
    ends = {r["study"]: r for r in records if r.get("kind") == "study_end"}
    return {study: str(r.get("message", "")) for study, r in ends.items() if r.get("reason") == "error"}


def studies_that_ended(records: Sequence[dict[str, Any]]) -> set[str]:
    """Ids of the studies whose end was recorded, good or bad."""
    return {str(r.get("study")) for r in records if r.get("kind") == "study_end"}


def now_iso() -> str:
    """Now, in UTC, as ``2026-01-31T12:00:00+00:00``."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _link_latest(path: Path) -> None:
    link = RUNS_FOLDER / "latest"
    temporary = RUNS_FOLDER / f".latest-{os.getpid()}"
    try:
        temporary.symlink_to(path.name)
        temporary.replace(link)
    except OSError:
        temporary.unlink(missing_ok=True)  # a file system without links: the run itself is unharmed


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _hosts(startups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    hosts: dict[str, dict[int, dict[str, Any]]] = {}
    for s in startups:
        device = {"index": s["local_rank"], "uuid": s["device"], "name": s["device_name"]}
        hosts.setdefault(s["host"], {})[s["local_rank"]] = device
    return [{"host": host, "devices": [devices[i] for i in sorted(devices)]} for host, devices in sorted(hosts.items())]


def _slowest_startup(run: RunDirectory, startups: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Seconds of the slowest rank of any gang, and of the first step, kept apart from what is judged."""
    first_steps = [r["first_block_s"] for r in run.read_records() if r.get("kind") == "warm_up"]
    slowest = {name: max(s[name] for s in startups) for name in ("import_s", "rendezvous_s")}
    return slowest | ({"first_step_s": first_steps[0]} if first_steps else {})
