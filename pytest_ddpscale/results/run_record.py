"""run.json: who measured, when, on what, with which versions."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pytest_ddpscale import __version__
from pytest_ddpscale.results.gangs import versions_of
from pytest_ddpscale.results.record_lines import AnyRecord
from pytest_ddpscale.results.records import GangRecord, StudyEnd, WarmUp, gangs_by_number
from pytest_ddpscale.results.run_directory import RUN_SCHEMA_VERSION, RunDirectory
from pytest_ddpscale.results.strict_json import Record, each
from pytest_ddpscale.util.masking import masked_arguments

IMPORTED = "imported"  # status of a run made of another tool's results
SIMULATED = "simulated"  # status of a run of the simulator, and the field of run.json that is true in it
SIMULATED_DEVICE = "SIM-"  # what its devices are called, in place of GPU-
_LEFT_OUT = " was left out: "  # between a node's name and why
SIMULATED_NOTE = "SIMULATED: no machine was measured"


class RunDevice(Record, frozen=True):
    """A device of a host, as run.json has it."""

    index: int
    uuid: str
    name: str


class RunHost(Record, frozen=True):
    """A host that took part, as run.json has it."""

    host: str
    devices: tuple[RunDevice, ...]


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


def binding_notes(records: Sequence[AnyRecord]) -> list[str]:
    """Which ranks could not be bound to the NUMA nodes of their GPUs, and why: one note for each reason."""
    ranks: dict[str, dict[tuple[str, int], None]] = {}
    for gang in gangs_by_number(records).values():
        for rank, note in enumerate(each(gang.numa_notes, gang.world_size)):
            if note:
                ranks.setdefault(note, {})[gang.hosts[rank], rank] = None
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
    record, records = run.read_run() | {"status": status, "finished_at": now_iso()}, run.read_records()
    gangs = list(gangs_by_number(records).values())
    if gangs:
        versions = versions_of(gangs[0])
        record["hosts"] = hosts_of(gangs)
        record["versions"] = record["versions"] | {k: v for k, v in versions.items() if v is not None}
        record["environment"] = each(gangs[0].environment, 1)[0]
        record["startup"] = _slowest_startup(records, gangs)
    run.write_json(run.run_json, record)


def errors_of(records: Sequence[AnyRecord]) -> dict[str, str]:
    """Message of every study that broke and was not measured again, by its id."""
    return {study: end.message for study, end in ends_of(records).items() if end.reason == "error"}


def interruptions_of(records: Sequence[AnyRecord]) -> dict[str, str]:
    """What ended a study from outside, by its id: no fault of it, and no measurement either."""
    return {study: end.message for study, end in ends_of(records).items() if end.reason == "interrupted"}


def studies_measured(records: Sequence[AnyRecord]) -> set[str]:
    """Ids of the studies that came to their own end, so that measuring them again would tell nothing new."""
    return {study for study, end in ends_of(records).items() if end.reason in ("decided", "rounds")}


def studies_out_of_time(records: Sequence[AnyRecord]) -> set[str]:
    """Ids of the studies that ended because the session's budget was spent."""
    return {study for study, end in ends_of(records).items() if end.reason == "budget"}


def ends_of(records: Sequence[AnyRecord]) -> dict[str, StudyEnd]:
    """The last end of every study whose end was recorded, good or bad, by its id."""
    return {record.study: record for record in records if isinstance(record, StudyEnd)}


def now_iso() -> str:
    """Now, in UTC, as ``2026-01-31T12:00:00+00:00``."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def hosts_of(gangs: Iterable[GangRecord]) -> list[dict[str, Any]]:
    """Hosts and their devices, as run.json has them."""
    hosts: dict[str, dict[int, dict[str, Any]]] = {}
    for gang in gangs:
        for rank, name in enumerate(each(gang.device_names, gang.world_size)):
            host, index, device = gang.place(rank)
            hosts.setdefault(host, {})[index] = {"index": index, "uuid": device, "name": name}
    return [{"host": host, "devices": [devices[i] for i in sorted(devices)]} for host, devices in sorted(hosts.items())]


def _slowest_startup(records: Sequence[AnyRecord], gangs: Sequence[GangRecord]) -> dict[str, float]:
    """Seconds of the slowest rank of any gang, and of the first step, kept apart from what is judged."""
    first_steps = [record.first_block_s for record in records if isinstance(record, WarmUp)]
    slowest = {
        "import_s": max(second for gang in gangs for second in each(gang.import_s, 1)),
        "rendezvous_s": max(second for gang in gangs for second in each(gang.rendezvous_s, 1)),
    }
    return slowest | ({"first_step_s": first_steps[0]} if first_steps else {})
