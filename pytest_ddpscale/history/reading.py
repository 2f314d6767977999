"""Reading a node's runs from the history."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pytest_ddpscale.history.key_values import KeyValue, KeyValueSeries
from pytest_ddpscale.history.prediction import MOST_VALUES, Reference, reference_of
from pytest_ddpscale.run.strict_json import parse_strict_json

# Most runs of a node that serve as a baseline. Not every run has every value, so twenty values may need more runs.
MOST_RUNS = 60
_REJECTED = "rejected"


@dataclass(frozen=True)
class HostRun:
    """One run, restricted to one host.

    Attributes:
        id: unique digest.
        path: of its directory when it was added.
        started_at: ISO 8601 in UTC.
        failed: ids of the requirements that failed, on any host.
        is_waived: whether a failure that can reject was waived.
        values: of the host and its GPUs.
        worse: those of the values that had regressed from the runs before it.
    """

    id: str
    path: str
    started_at: str
    outcome: str
    versions: Mapping[str, str]
    failed: tuple[str, ...]
    values: tuple[KeyValue, ...]
    worse: tuple[KeyValue, ...] = ()
    is_waived: bool = False

    @property
    def counts(self) -> bool:
        """Whether it may serve as a baseline; a broken node must not become its own baseline, waived or not."""
        return self.outcome != _REJECTED and not self.is_waived

    @property
    def norm(self) -> tuple[KeyValue, ...]:
        """The values that serve as a baseline for later runs."""
        return tuple(value for value in self.values if self.is_norm(value))

    def is_norm(self, value: KeyValue) -> bool:
        """Whether a value serves as a baseline: the run counts, and the value had not regressed."""
        return self.counts and value not in self.worse


def skus_and_hosts(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Every SKU with every host that has a run of it, sorted."""
    rows = connection.execute(
        "SELECT DISTINCT sku, host FROM hosts JOIN runs ON runs.id = hosts.run ORDER BY sku, host"
    )
    return [(str(sku), str(host)) for sku, host in rows]


def host_runs(connection: sqlite3.Connection, sku: str, host: str, before: str | None = None) -> list[HostRun]:
    """The latest runs of a host, oldest first; with `before`, only those that started before it (ISO 8601).

    The result goes back as far as needed for `MOST_RUNS` runs that serve as a baseline. Runs in between that do not,
    because they were rejected, waived or only surveyed the node, are included and do not count towards the limit.
    """
    # If a failure could reject but the run is not rejected, it was waived.
    rows = connection.execute(
        "SELECT runs.id, run_path, started_at, outcome, versions, "
        "outcome != ? AND EXISTS (SELECT 1 FROM verdicts WHERE run = runs.id AND outcome = 'failed' "
        "AND severity = 'fail') AS is_waived, EXISTS "
        "(SELECT 1 FROM key_values WHERE key_values.host = hosts.host AND run = runs.id AND standing = 'norm') "
        "FROM hosts JOIN runs ON runs.id = hosts.run "
        "WHERE host = ? AND sku = ? AND (? IS NULL OR started_at < ?) ORDER BY started_at, runs.id",
        (_REJECTED, host, sku, before, before),
    ).fetchall()
    norms = [number for number, row in enumerate(rows) if row[3] != _REJECTED and row[-1] and not row[-2]]
    first = norms[-MOST_RUNS] if len(norms) > MOST_RUNS else 0
    return [
        HostRun(
            identity, path, started_at, outcome, _versions(versions), _failed(connection, identity),
            *_values(connection, host, identity), bool(is_waived),
        )
        for identity, path, started_at, outcome, versions, is_waived, _ in rows[first:]
    ]  # fmt: skip


def runs_between(
    connection: sqlite3.Connection, sku: str, since: str, until: str
) -> list[tuple[str, str, frozenset[str]]]:
    """Path, outcome and hosts of each run of a SKU that began from one moment on and before another (ISO 8601)."""
    rows = connection.execute(
        "SELECT runs.id, run_path, outcome, host FROM hosts JOIN runs ON runs.id = hosts.run "
        "WHERE sku = ? AND started_at >= ? AND started_at < ? ORDER BY started_at, runs.id",
        (sku, since, until),
    )
    by_run = groupby(rows, lambda row: row[:3])
    return [(path, outcome, frozenset(row[3] for row in of_run)) for (_, path, outcome), of_run in by_run]


def references_of(runs: Iterable[HostRun]) -> dict[KeyValueSeries, Reference]:
    """Summary of the latest twenty baseline values of each series; `runs` are of one host, oldest first."""
    found: dict[KeyValueSeries, list[float]] = {}
    for run in runs:
        for value in run.norm:
            found.setdefault(value.series, []).append(value.value)
    summed = {series: reference_of(values[-MOST_VALUES:]) for series, values in found.items()}
    return {series: reference for series, reference in summed.items() if reference is not None}


def _values(connection: sqlite3.Connection, host: str, run: str) -> tuple[tuple[KeyValue, ...], tuple[KeyValue, ...]]:
    """All values of a host in a run, and those that had regressed."""
    rows = connection.execute(
        "SELECT host, gpu_index, gpu_uuid, metric, subject, world_size, arm, definition, value, unit, "
        "batch_size, standing "
        "FROM key_values WHERE host = ? AND run = ? ORDER BY rowid",
        (host, run),
    )
    found = [(KeyValue(*row[:-1]), row[-1]) for row in rows]
    return tuple(value for value, _ in found), tuple(value for value, standing in found if standing == "worse")


def _failed(connection: sqlite3.Connection, run: str) -> tuple[str, ...]:
    rows = connection.execute("SELECT id FROM verdicts WHERE run = ? AND outcome = 'failed' ORDER BY rowid", (run,))
    return tuple(str(identity) for (identity,) in rows)


def _versions(text: str) -> dict[str, str]:
    found: Any = parse_strict_json(text)
    if not isinstance(found, dict):
        raise ValueError(f"versions are {text[:40]!r}")  # noqa: TRY004 (as for all damage of the file)
    return {str(name): str(version) for name, version in found.items()}
