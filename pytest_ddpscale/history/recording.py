"""Adding a judged run to the history in one transaction."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping, Sequence, Set
from dataclasses import astuple
from itertools import groupby
from pathlib import Path
from typing import Literal

from pytest_ddpscale.errors import OptionError, RunDirectoryError
from pytest_ddpscale.history.database import reading, writing
from pytest_ddpscale.history.key_values import KeyValue, KeyValueSeries, key_values_of, known_versions
from pytest_ddpscale.history.prediction import Reference
from pytest_ddpscale.history.reading import host_runs, references_of
from pytest_ddpscale.history.regression import regressed_values
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.record_lines import AnyRecord, line_of
from pytest_ddpscale.run.records import GangRecord, gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord, in_utc
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.run.verdicts import Judgement, Verdict, read_judged

Recorded = Literal["added", "replaced", "known"]


def add_run(history_file: Path, path: Path) -> Recorded:
    """Add a judged run directory.

    Raises:
        RunDirectoryError: it is not a run directory, is broken, was not judged or has changed since, or was imported.
        HistoryError: the history cannot be used.
    """
    run = RunDirectory.open(path)
    return record_run(history_file, run, read_judged(run, run))


def record_run(
    history_file: Path, run: RunDirectory, judgement: Judgement, evidence: Evidence | None = None
) -> Recorded:  # fmt: skip
    """Add a run with its verdicts and key values; regressed values are marked and not used as a baseline.

    A run is identified by its first records, wherever its directory is now. Adding it again changes nothing; a run that
    was resumed and judged again replaces its earlier state. A simulated run has a SKU of its own,
    ``simulated a100-sxm4-80gb``, so that no machine is compared with it.

    Raises:
        RunDirectoryError: the run is broken, or was imported.
        HistoryError: the history cannot be used; the run is unharmed.
    """
    record, records = run.read_run(), run.read_records()
    if record.is_imported:
        raise RunDirectoryError(
            str(run.path), "was imported: another tool measured it, elsewhere", "a run that was measured here"
        )
    evidence = evidence or read_evidence(run)
    versions = versions_by_host(record, records, evidence)
    sku = history_sku(judgement.sku, is_simulated=record.is_simulated(evidence.columns.devices))
    started_at = started_at_of(record)
    row = (
        _identity(judgement.sku, started_at, record, records), str(run.path.absolute()), sku, started_at,
        _judged_at(judgement, started_at), judgement.outcome, run.measurements_sha256(),
    )  # fmt: skip
    values = key_values_of(evidence)
    fallen = _fallen(history_file, sku, started_at, values)
    with writing(history_file) as connection:
        recorded = _write(connection, row, versions, judgement.verdicts, values, fallen)
        if recorded != "known":
            _mark_later(connection, sku, started_at, {one.host for one in values})
    return recorded


def forget(history_file: Path, node: str, sku: str | None = None) -> int:
    """Remove what a node reached; without `sku`, of all SKUs. Returns the number of its runs.

    Raises:
        HistoryError: the history does not exist or cannot be used.
        OptionError: it has no run of the node.
    """
    with reading(history_file):
        pass  # fails if there is no history; writing would create one
    with writing(history_file) as connection:
        of_sku = [run for (run,) in connection.execute("SELECT id FROM runs WHERE ? IN (sku, '')", (sku or "",))]
        pairs = [(node, run) for run in of_sku]
        connection.executemany("DELETE FROM key_values WHERE host = ? AND run = ?", pairs)
        runs = connection.executemany("DELETE FROM hosts WHERE host = ? AND run = ?", pairs).rowcount
    if not runs:
        raise OptionError("--forget", f"found {node!r}, of which the history has no run", "a node that it has")
    return runs


def history_sku(sku: str, *, is_simulated: bool) -> str:
    """The SKU under which the history stores a run."""
    return f"simulated {sku}" if is_simulated else sku


def started_at_of(record: RunRecord) -> str:
    """When a run started, in UTC, as ``2026-01-31T12:00:00+00:00``, which sorts by time."""
    return record.began.isoformat(timespec="seconds")


def _write(
    connection: sqlite3.Connection, row: Sequence[str], versions: Mapping[str, Mapping[str, str]],
    verdicts: Sequence[Verdict], values: Sequence[KeyValue], fallen: Set[KeyValue],
) -> Recorded:  # fmt: skip
    identity, judged_at, sha256 = row[0], row[4], row[6]
    known = connection.execute("SELECT judged_at, measurements_sha256 FROM runs WHERE id = ?", (identity,)).fetchone()
    if known is not None:
        if known[1] == sha256 or judged_at <= known[0]:
            return "known"
        for statement in (
            "DELETE FROM key_values WHERE run = ?",
            "DELETE FROM verdicts WHERE run = ?",
            "DELETE FROM hosts WHERE run = ?",
            "DELETE FROM runs WHERE id = ?",
        ):
            connection.execute(statement, (identity,))
    connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    connection.executemany(
        "INSERT INTO hosts VALUES (?, ?, ?)",
        [(host, identity, strict_json(said)) for host, said in sorted(versions.items())],
    )
    connection.executemany(
        "INSERT INTO verdicts VALUES (?, ?, ?, ?)",
        [(identity, one.id, one.outcome, one.severity) for one in verdicts],
    )
    connection.executemany(
        "INSERT INTO key_values VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(identity, *astuple(value), "worse" if value in fallen else "norm") for value in values],
    )
    return "added" if known is None else "replaced"


def _fallen(
    history_file: Path, sku: str, started_at: str, values: Sequence[KeyValue]
) -> set[KeyValue]:  # fmt: skip
    """Regressed values, read before the file is locked for writing, because all nodes of a site may wait for it."""
    if not history_file.exists() or history_file.stat().st_size == 0:
        return set()
    with reading(history_file) as connection:
        return _regressed(connection, sku, started_at, values)


def _regressed(connection: sqlite3.Connection, sku: str, started_at: str, values: Sequence[KeyValue]) -> set[KeyValue]:
    past: dict[KeyValueSeries, Reference] = {}
    for host in sorted({one.host for one in values}):
        past |= references_of(host_runs(connection, sku, host, started_at))
    return regressed_values(values, past)


def _mark_later(connection: sqlite3.Connection, sku: str, started_at: str, hosts: set[str]) -> None:
    """Mark the regressed values of later runs anew, in the order of time: their past has changed on these hosts."""
    later = connection.execute(
        "SELECT id, started_at, host FROM runs JOIN hosts ON runs.id = run WHERE sku = ? AND started_at > ? "
        "ORDER BY started_at, id",
        (sku, started_at),
    ).fetchall()
    for (run, began), rows in groupby(later, key=lambda row: row[:2]):
        took_part = {host for *_, host in rows}
        if hosts.isdisjoint(took_part):
            continue
        hosts |= took_part  # all values of a run are marked together
        stored = connection.execute(
            "SELECT rowid, host, gpu_index, gpu_uuid, metric, subject, world_size, arm, definition, value, unit, "
            "batch_size FROM key_values WHERE run = ?",
            (run,),
        )
        values = {number: KeyValue(*fields) for number, *fields in stored}
        fallen = _regressed(connection, sku, began, list(values.values()))
        connection.executemany(
            "UPDATE key_values SET standing = ? WHERE rowid = ?",
            [("worse" if value in fallen else "norm", number) for number, value in values.items()],
        )


def _identity(sku: str, started_at: str, record: RunRecord, records: Sequence[AnyRecord]) -> str:
    """Digest of the constant part of a run, distinct for two runs that started in the same second.

    It covers the record of the first gang: processes, hosts and start-up seconds. A resumed run keeps it.
    """
    first = next((one for one in records if isinstance(one, GangRecord)), records[0] if records else None)
    said = [sku, started_at, record.argv, record.simulation, first and line_of(first).decode()]
    return hashlib.sha256(strict_json(said).encode()).hexdigest()


def _judged_at(judgement: Judgement, started_at: str) -> str:
    try:
        return in_utc(judgement.basis["judged_at"]).isoformat(timespec="seconds")
    except (KeyError, ValueError):
        return started_at


def versions_by_host(record: RunRecord, records: Sequence[AnyRecord], evidence: Evidence) -> dict[str, dict[str, str]]:
    """Software versions on each host of the run, from its ranks and, such as the driver's, from its survey."""
    everywhere = record.versions
    found = {host: dict(everywhere) for host in (*sorted(evidence.columns.hosts), *evidence.hosts)}
    for gang in gangs_by_number(records).values():
        for rank, place in enumerate(gang.places):
            found[place.host] |= known_versions(gang.versions_of(rank))
    took_part = list(found) or list(evidence.surveys)  # without nodes that were left out
    for host, survey in evidence.surveys.items():
        if host in took_part:
            found[host] = found.get(host, dict(everywhere)) | known_versions(survey.versions)
    for place, one in evidence.transports.items():
        if one.process_group:
            found[place.host]["process_group"] = one.process_group
    return found
