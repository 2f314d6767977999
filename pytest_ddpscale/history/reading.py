"""What the history holds of a node."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_ddpscale.history.key_values import KeyValue, Series
from pytest_ddpscale.results.records import parse_strict_json

# Of a node at most. Not every run tells every value, so that twenty values may take more runs than twenty.
MOST_RUNS = 60
_REJECTED = "rejected"


@dataclass(frozen=True)
class HostRun:
    """One run, as far as it is about one host.

    Attributes:
        id: digest that tells it from all others.
        path: where its directory was when it was added.
        started_at: ISO 8601 in UTC.
        outcome: of the whole run.
        versions: of the software on this host, by name.
        failed: ids of the requirements that failed, on whatever host.
        values: what the host and its GPUs reached.
    """

    id: str
    path: str
    started_at: str
    outcome: str
    versions: Mapping[str, str]
    failed: tuple[str, ...]
    values: tuple[KeyValue, ...]

    @property
    def counts(self) -> bool:
        """Whether it may be a norm for later runs: a node that broke must not become its own."""
        return self.outcome != _REJECTED


def skus_and_hosts(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Every SKU with every host that has a run of it, in order."""
    rows = connection.execute(
        "SELECT DISTINCT sku, host FROM hosts JOIN runs ON runs.id = hosts.run ORDER BY sku, host"
    )
    return [(str(sku), str(host)) for sku, host in rows]


def host_runs(
    connection: sqlite3.Connection, sku: str, host: str, before: str | None = None, limit: int = MOST_RUNS
) -> list[HostRun]:
    """The latest runs of a host, oldest first.

    Args:
        connection: to the history.
        sku: of the runs.
        host: that took part.
        before: ISO 8601 in UTC: only runs that began before; None for all.
        limit: how many at most.
    """
    rows = connection.execute(
        "SELECT runs.id, run_path, started_at, outcome, versions FROM hosts JOIN runs ON runs.id = hosts.run "
        "WHERE host = ? AND sku = ? AND (? IS NULL OR started_at < ?) ORDER BY started_at DESC, runs.id DESC LIMIT ?",
        (host, sku, before, before, limit),
    ).fetchall()
    return [
        HostRun(
            identity, path, started_at, outcome, _versions(versions), _failed(connection, identity),
            _values(connection, host, identity),
        )
        for identity, path, started_at, outcome, versions in reversed(rows)
    ]  # fmt: skip


def past_values(runs: Iterable[HostRun]) -> dict[Series, list[float]]:
    """Values of each series in runs that may be a norm, in the order of the runs."""
    found: dict[Series, list[float]] = {}
    for run in runs:
        for value in run.values if run.counts else ():
            found.setdefault(value.series, []).append(value.value)
    return found


def _values(connection: sqlite3.Connection, host: str, run: str) -> tuple[KeyValue, ...]:
    rows = connection.execute(
        "SELECT host, gpu_index, gpu_uuid, metric, subject, world_size, arm, definition, value, unit "
        "FROM key_values WHERE host = ? AND run = ?",
        (host, run),
    )
    return tuple(KeyValue(*row) for row in rows)


def _failed(connection: sqlite3.Connection, run: str) -> tuple[str, ...]:
    rows = connection.execute("SELECT id FROM verdicts WHERE run = ? AND outcome = 'failed' ORDER BY rowid", (run,))
    return tuple(str(identity) for (identity,) in rows)


def _versions(text: str) -> dict[str, str]:
    found: Any = parse_strict_json(text)
    if not isinstance(found, dict):
        raise ValueError(f"versions are {text[:40]!r}")  # noqa: TRY004 (of the file, as all that is wrong with it)
    return {str(name): str(version) for name, version in found.items()}
