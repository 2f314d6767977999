"""A loss that is there to stay, such as after an update: what a node reaches now becomes its norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.history.database import reading, writing
from pytest_ddpscale.history.key_values import KeyValue, KeyValueSeries
from pytest_ddpscale.history.missing_gpus import fullest_places, missing_gpus


@dataclass(frozen=True)
class _Kept:
    """A row of the history.

    Attributes:
        row: its number.
        run: that told it.
        value: what it says.
        standing: ``norm`` or ``worse``.
    """

    row: int
    run: str
    value: KeyValue
    standing: str


def accept_losses(history_file: Path, node: str, sku: str | None = None) -> int:
    """Take what a node reached last for its norm, wherever that was worse than before.

    Of a value that had fallen in its latest run, the nights since it fell count from now on, and those before no more.
    Nor do values of GPUs that the node no longer has.

    Args:
        history_file: the site's.
        node: its name.
        sku: only of this one; None for all.

    Returns:
        how many values were accepted, or are no longer waited for.

    Raises:
        HistoryError: there is no history, or it cannot be used.
        OptionError: nothing of such a node had fallen or is missing.
    """
    with reading(history_file):
        pass  # there is one; writing would make it
    norm: list[int] = []
    former: list[int] = []
    accepted = 0
    with writing(history_file) as connection:
        rows = connection.execute(
            "SELECT key_values.rowid, sku, run, standing, host, gpu_index, gpu_uuid, metric, subject, world_size, arm, "
            "definition, value, unit FROM key_values JOIN runs ON runs.id = run "
            "WHERE host = ? AND (? IS NULL OR sku = ?) AND standing != 'former' ORDER BY sku, started_at, run",
            (node, sku, sku),
        ).fetchall()
        for _, of_sku in groupby(rows, key=lambda row: row[1]):
            told = [_Kept(row[0], row[2], KeyValue(*row[4:]), row[3]) for row in of_sku]
            gone = _gone(told)
            for series, theirs in _by_series(told).items():
                since = _fallen_since(theirs)
                if series.gpu in gone:
                    since = len(theirs)
                elif since == len(theirs):
                    continue
                accepted += 1
                former += [one.row for one in theirs[:since]]
                norm += [one.row for one in theirs[since:]]
        connection.executemany("UPDATE key_values SET standing = 'norm' WHERE rowid = ?", [(row,) for row in norm])
        connection.executemany("UPDATE key_values SET standing = 'former' WHERE rowid = ?", [(row,) for row in former])
    if not accepted:
        found = f"found {node!r}, of which the history has nothing that fell or is missing"
        raise OptionError("--accept", found, "a node that is worse than it was", "Nothing was changed.")
    return accepted


def _gone(told: Sequence[_Kept]) -> set[str]:
    """UUIDs of the GPUs that told nothing in the latest run of what others of their node did."""
    runs = [[one.value.series for one in run] for _, run in groupby(told, key=lambda one: one.run)]
    return {gpu for _, gpu in missing_gpus(fullest_places(runs), runs[-1])}


def _by_series(told: Sequence[_Kept]) -> dict[KeyValueSeries, list[_Kept]]:
    found: dict[KeyValueSeries, list[_Kept]] = {}
    for one in told:
        found.setdefault(one.value.series, []).append(one)
    return found


def _fallen_since(theirs: Sequence[_Kept]) -> int:
    """Index of the first of the latest values that all had fallen; their number if the latest had not."""
    since = len(theirs)
    while since and theirs[since - 1].standing == "worse":
        since -= 1
    return since
