"""The latest earlier run of the same nodes that was accepted, beside the verdicts of a run."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from pytest_ddpscale.history.database import reading
from pytest_ddpscale.plan.metric_catalogue import METRICS, THROUGHPUT_PER_GPU
from pytest_ddpscale.results.verdicts import ACCEPTING, LastAcceptance, RunOutcome, Verdict
from pytest_ddpscale.stats.value_change import ComparedValue, change_between


def last_acceptance(
    history_file: Path, sku: str, hosts: Collection[str], before_iso: str, verdicts: Sequence[Verdict]
) -> LastAcceptance | None:
    """The last run of exactly these hosts that was accepted, with waivers or without, and what it reached.

    What is worse is so by the intervals of both verdicts (`stats.value_change`), which hold how far launches differ
    where that was known.

    Args:
        history_file: the site's.
        sku: as the history keeps it.
        hosts: that took part.
        before_iso: when this run began, ISO 8601 in UTC.
        verdicts: of this run.

    Returns:
        None if there was none.

    Raises:
        HistoryError: the history cannot be used.
    """
    with reading(history_file) as connection:
        for run, path, began, outcome in _accepted(connection, sku, before_iso):
            took_part = connection.execute("SELECT host FROM hosts WHERE run = ?", (run,))
            if {host for (host,) in took_part} == set(hosts):
                return _beside(began, path, outcome, _values(connection, run), verdicts)
    return None


def _accepted(
    connection: sqlite3.Connection, sku: str, before_iso: str
) -> Iterator[tuple[str, str, str, RunOutcome]]:  # fmt: skip
    """Latest first."""
    rows = connection.execute(
        "SELECT id, run_path, started_at, outcome FROM runs WHERE sku = ? AND started_at < ? "
        "ORDER BY started_at DESC, id",
        (sku, before_iso),
    ).fetchall()
    return (row for row in rows if row[3] in ACCEPTING)


def _values(connection: sqlite3.Connection, run: str) -> dict[tuple[str, int], ComparedValue]:
    """By requirement and number of ranks."""
    rows = connection.execute(
        "SELECT id, world_size, value, low, high FROM verdicts WHERE run = ? AND value IS NOT NULL AND low IS NOT NULL",
        (run,),
    )
    return {(name, size): ComparedValue(*numbers) for name, size, *numbers in rows}


def _beside(
    began: str, path: str, outcome: RunOutcome, then: dict[tuple[str, int], ComparedValue], verdicts: Sequence[Verdict]
) -> LastAcceptance:
    count, worse, throughput = 0, [], []
    for one in verdicts:
        metric, was = METRICS[one.metric], then.get((one.id, one.world_size))
        if metric.subject not in ("workload", "probe") or was is None or one.value is None or one.interval is None:
            continue
        by_factors = metric.compared_scale == "factors"
        now = ComparedValue(one.value, *one.interval)
        if by_factors and min(*was, *now) <= 0:
            continue
        change = change_between(was, now, by_factors=by_factors)
        count += 1
        if metric is THROUGHPUT_PER_GPU:
            throughput.append(1 + change.size)
        if change.is_shown and (change.size > 0) == metric.upper_bound:
            worse.append(one.id)
    ends = min(throughput, default=None), max(throughput, default=None)
    return LastAcceptance(began, path, outcome, count, *ends, tuple(worse))
