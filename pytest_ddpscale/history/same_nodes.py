"""Earlier runs of exactly the same nodes, with their values in each requirement."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pytest_ddpscale.history.key_values import KeyValue
from pytest_ddpscale.judge.intervals import Estimate
from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.run.verdicts import RunOutcome

RequirementKey: TypeAlias = "tuple[str, int]"  # id, and number of ranks
_Work: TypeAlias = "dict[tuple[str, str, int], set[str]]"  # definitions by subject, arm and number of ranks


@dataclass(frozen=True)
class EarlierRun:
    """One earlier run.

    Attributes:
        id: unique digest.
        path: of its directory when it was added.
        began: ISO 8601 in UTC.
    """

    id: str
    path: str
    began: str
    outcome: RunOutcome


def runs_of_exactly(
    connection: sqlite3.Connection, sku: str, hosts: Collection[str], before_iso: str
) -> Iterator[EarlierRun]:  # fmt: skip
    """Runs of exactly these hosts, latest first.

    Args:
        connection: to the history.
        sku: as stored in the history.
        hosts: by name.
        before_iso: when this run started, ISO 8601 in UTC.
    """
    rows = connection.execute(
        "SELECT id, run_path, started_at, outcome FROM runs WHERE sku = ? AND started_at < ? "
        "ORDER BY started_at DESC, id",
        (sku, before_iso),
    ).fetchall()
    for run, path, began, outcome in rows:
        took_part = connection.execute("SELECT host FROM hosts WHERE run = ?", (run,))
        if {host for (host,) in took_part} == set(hosts):
            yield EarlierRun(run, path, began, outcome)


def reached_by(connection: sqlite3.Connection, run: EarlierRun) -> dict[RequirementKey, Estimate]:
    """Values with intervals in each requirement that `is_kept`. Raises ValueError for malformed numbers."""
    rows = connection.execute(
        "SELECT metric, id, world_size, value, low, high FROM verdicts WHERE run = ? AND value IS NOT NULL "
        "AND low IS NOT NULL AND outcome NOT IN ('error', 'not_measured')",
        (run.id,),
    )
    found = {}
    for metric, name, size, *numbers in rows:
        if metric in METRICS and is_kept(METRICS[metric]):
            if not all(isinstance(one, float) and math.isfinite(one) for one in numbers):
                raise ValueError(f"{name} is {numbers}; expected finite numbers")
            found[name, size] = Estimate(numbers[0], (numbers[1], numbers[2]))
    return found


def is_kept(metric: Metric) -> bool:
    """Whether values of several runs are comparable: measured, and independent of numbers in the thresholds.

    Generation ratio and FLOPs utilization depend on the thresholds; throughput shows the same.
    """
    return metric.subject in ("workload", "probe") and not (metric.takes_versus or metric.takes_peak)


def done_otherwise(connection: sqlite3.Connection, run: EarlierRun, now: Sequence[KeyValue]) -> set[str]:
    """Names of the workloads and probes that the run did differently, such as with another batch."""
    then = _work(
        connection.execute("SELECT subject, arm, world_size, definition FROM key_values WHERE run = ?", (run.id,))
    )
    ours = _work((one.subject, one.arm, one.world_size, one.definition) for one in now)
    # Weak and strong scaling share a name, and a run may have measured only one of them.
    return {key[0] for key in ours.keys() & then.keys() if not (ours[key] <= then[key] or then[key] <= ours[key])}


def _work(rows: Iterator[tuple[str, str, int, str]] | sqlite3.Cursor) -> _Work:
    found: _Work = {}
    for subject, arm, world_size, definition in rows:
        found.setdefault((subject, arm, world_size), set()).add(definition)
    return found
