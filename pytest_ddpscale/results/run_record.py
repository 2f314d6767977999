"""run.json: who measured, when, on what, with which versions."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pytest_ddpscale import __version__
from pytest_ddpscale.results.run_directory import RUN_SCHEMA_VERSION, RunDirectory
from pytest_ddpscale.util.masking import masked_arguments

IMPORTED = "imported"  # status of a run made of another tool's results
SIMULATED = "simulated"  # status of a run of the simulator, and the field of run.json that is true in it
SIMULATED_DEVICE = "SIM-"  # what its devices are called, in place of GPU-
_LEFT_OUT = " was left out: "  # between a node's name and why
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
        "argv": masked_arguments(argv),
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


def note_left_out(run: RunDirectory, devices_present: int, unfit: Mapping[str, str]) -> None:
    """Record that nodes were left out before anything was launched on them.

    Args:
        run: whose run.json is brought up to date.
        devices_present: on the nodes that are left.
        unfit: host → why.
    """
    record = run.read_run()
    notes = [f"{host}{_LEFT_OUT}{why}" for host, why in unfit.items()]
    run.write_json(run.run_json, {**record, "devices_present": devices_present, "left_out": notes})


def resume_run(
    run: RunDirectory, argv: Sequence[str], thresholds_sha256: str, measured_anew: Mapping[str, str]
) -> None:
    """Record that an earlier run goes on.

    Args:
        run: whose run.json is brought up to date.
        argv: the command line.
        thresholds_sha256: digest of the file that is judged by now.
        measured_anew: how each study that is measured again had ended, by its id.

    Raises:
        RunDirectoryError: run.json is broken or cannot be written.
    """
    record = run.read_run()
    began = {
        "at": now_iso(),
        "argv": masked_arguments(argv),
        "status_before": record.get("status"),
        "thresholds_sha256": thresholds_sha256,
        "measured_anew": dict(measured_anew),
    }
    earlier = record.get("resumed")
    record |= {"status": "running", "resumed": [*(earlier if isinstance(earlier, list) else ()), began]}
    record.pop("finished_at", None)
    run.write_json(run.run_json, record)


def left_out_nodes(record: dict[str, Any]) -> dict[str, str]:
    """The nodes that were left out, and why; `record` as in `resumption_notes`."""
    parts = [note.partition(_LEFT_OUT) for note in left_out_notes(record)]
    return {host: why for host, _, why in parts}


def left_out_notes(record: dict[str, Any]) -> list[str]:
    """Which nodes were left out before anything was launched on them, and why; `record` as in `resumption_notes`."""
    notes = record.get("left_out")
    return list(map(str, notes)) if isinstance(notes, list) else []


def binding_notes(records: Sequence[dict[str, Any]]) -> list[str]:
    """Which ranks could not be bound to the NUMA nodes of their GPUs, and why: one note for each reason."""
    ranks: dict[str, dict[tuple[str, int], None]] = {}
    for record in records:
        numa = record.get("numa") if record.get("kind") == "startup" else None
        if isinstance(numa, dict) and numa.get("note"):
            ranks.setdefault(str(numa["note"]), {})[str(record["host"]), int(record["rank"])] = None
    notes = []
    for reason, unbound in ranks.items():
        (host, rank), more = next(iter(unbound)), len(unbound) - 1
        others = f" and {more} more {'rank' if more == 1 else 'ranks'}" if more else ""
        notes.append(f"rank {rank} on {host}{others}: {reason}")
    return notes


def resumption_notes(record: dict[str, Any]) -> list[str]:
    """What a reader has to know of a run that was measured in several sessions.

    Args:
        record: the content of run.json.
    """
    resumed = record.get("resumed")
    if not isinstance(resumed, list) or not resumed or not all(isinstance(one, dict) for one in resumed):
        return []
    first = record.get("thresholds")
    first_sha256 = first.get("sha256") if isinstance(first, dict) else None
    notes = [f"measured in {len(resumed) + 1} sessions: resumed {', '.join(str(one.get('at')) for one in resumed)}"]
    attempts = [one["measured_anew"] for one in resumed if isinstance(one.get("measured_anew"), dict)]
    anew = [f"{study} ({end})" for attempt in attempts for study, end in attempt.items()]
    if anew:
        notes.append(f"measured again when resumed, the earlier attempts are in superseded.jsonl: {', '.join(anew)}")
    others = [one for one in resumed if one.get("thresholds_sha256") != first_sha256]
    if others:
        notes.append(
            f"resumed with another thresholds file (sha256 {str(others[-1].get('thresholds_sha256'))[:12]}) than "
            f"measuring began with (sha256 {str(first_sha256)[:12]}): studies that were kept ended by that one's bounds"
        )
    return notes


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


def interruptions_of(records: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What ended a study from outside, by its id: no fault of it, and no measurement either."""
    ends = {r["study"]: r for r in records if r.get("kind") == "study_end"}
    return {study: str(r.get("message", "")) for study, r in ends.items() if r.get("reason") == "interrupted"}


def studies_measured(records: Sequence[dict[str, Any]]) -> set[str]:
    """Ids of the studies that came to their own end, so that measuring them again would tell nothing new."""
    ends = {str(r["study"]): r.get("reason") for r in records if r.get("kind") == "study_end"}
    return {study for study, reason in ends.items() if reason in ("decided", "rounds")}


def studies_out_of_time(records: Sequence[dict[str, Any]]) -> set[str]:
    """Ids of the studies that ended because the session's budget was spent."""
    ends = {str(r["study"]): r.get("reason") for r in records if r.get("kind") == "study_end"}
    return {study for study, reason in ends.items() if reason == "budget"}


def studies_that_ended(records: Sequence[dict[str, Any]]) -> set[str]:
    """Ids of the studies whose end was recorded, good or bad."""
    return {str(r.get("study")) for r in records if r.get("kind") == "study_end"}


def now_iso() -> str:
    """Now, in UTC, as ``2026-01-31T12:00:00+00:00``."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


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
