"""Accepting a permanent loss, such as after an update: a node's latest values become its new baseline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.history.baseline import fullest_places, missing_gpus
from pytest_ddpscale.history.database import reading, writing
from pytest_ddpscale.history.key_values import KeyValue, KeyValueSeries


class _Kept(NamedTuple):
    """A row of the history: its number, its run, whether the value had regressed, and the value."""

    row: int
    run: str
    is_worse: bool
    value: KeyValue


def accept_losses(history_file: Path, node: str, sku: str | None = None) -> int:
    """Accept a node's latest values as its new baseline where they regressed.

    For a value that regressed in its latest run, only runs since the regression count from now on. Values of GPUs that
    the node no longer has stop counting. Without `sku`, this holds for all SKUs.

    Returns:
        Number of values accepted or no longer expected.

    Raises:
        HistoryError: the history does not exist or cannot be used.
        OptionError: no value of the node regressed or is missing.
    """
    with reading(history_file):
        pass  # fails if there is no history; writing would create one
    standings: list[tuple[str, int]] = []
    accepted = 0
    with writing(history_file) as connection:
        rows = connection.execute(
            "SELECT sku, key_values.rowid, run, standing = 'worse', host, gpu_index, gpu_uuid, metric, subject, "
            "world_size, arm, definition, value, unit, batch_size FROM key_values JOIN runs ON runs.id = run "
            "WHERE host = ? AND (? IS NULL OR sku = ?) AND standing != 'former' ORDER BY sku, started_at, run",
            (node, sku, sku),
        ).fetchall()
        for _, of_sku in groupby(rows, key=lambda row: row[0]):
            told = [_Kept(row[1], row[2], row[3], KeyValue(*row[4:])) for row in of_sku]
            gone = _gone(told)
            by_series: dict[KeyValueSeries, list[_Kept]] = {}
            for one in told:
                by_series.setdefault(one.value.series, []).append(one)
            for series, theirs in by_series.items():
                is_gone = series.gpu in gone
                if is_gone or theirs[-1].is_worse:
                    since = len(theirs) if is_gone else _fallen_since(theirs)
                    accepted += 1
                    standings += [("norm" if i >= since else "former", one.row) for i, one in enumerate(theirs)]
        connection.executemany("UPDATE key_values SET standing = ? WHERE rowid = ?", standings)
    if not accepted:
        found = f"found {node!r}, for which the history has no regressed or missing value"
        raise OptionError("--accept", found, "a node with a regressed or missing value", "Nothing was changed.")
    return accepted


def _gone(told: Sequence[_Kept]) -> set[str]:
    """UUIDs of the GPUs without values in the latest run that other GPUs of their node have."""
    runs = [[one.value.series for one in run] for _, run in groupby(told, key=lambda one: one.run)]
    return {gpu for _, gpu in missing_gpus(fullest_places(runs), runs[-1])}


def _fallen_since(theirs: Sequence[_Kept]) -> int:
    """Index of the first of the uninterrupted regressed values at the end."""
    return max((i + 1 for i, one in enumerate(theirs) if not one.is_worse), default=0)
