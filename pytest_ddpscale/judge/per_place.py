"""Values per round of many places: nodes that each trained alone, GPUs, pairs of GPUs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from pytest_ddpscale.plan.per_round import PerRound
from pytest_ddpscale.run.column_record import FloatArray, IntArray

P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Alike(Generic[P]):
    """Places with equally many rounds, and their values in the order of the rounds, (places, rounds)."""

    places: list[P]
    values: FloatArray


class PerPlace(Mapping[P, PerRound]):
    """A value for each place and round, where it could be read.

    Args:
        places: each once; those without any value are left out.
        numbers: of the rounds, ascending, (rounds,).
        values: NaN where there is none, (places, rounds).
    """

    def __init__(self, places: Sequence[P], numbers: IntArray, values: FloatArray) -> None:
        known = ~np.isnan(values)
        self._numbers, self._values, self._known = numbers, values, known
        has_any: Any = known.any(axis=1).tolist()
        self._row = {place: row for row, place in enumerate(places) if has_any[row]}

    def __len__(self) -> int:
        """Number of places that have a value."""
        return len(self._row)

    def __iter__(self) -> Iterator[P]:
        """Places that have a value."""
        return iter(self._row)

    def __getitem__(self, place: P) -> PerRound:
        """Values of one place."""
        row = self._row[place]
        known = self._known[row]
        return PerRound(self._numbers[known], self._values[row, known])

    @cached_property
    def by_rounds(self) -> list[Alike[P]]:
        """All places, grouped by their number of rounds."""
        places, rows = list(self._row), np.array(list(self._row.values()), np.int64)
        rounds = self._known[rows].sum(axis=1)
        alike = [np.flatnonzero(rounds == count) for count in np.unique(rounds)]
        return [Alike([places[i] for i in those.tolist()], self._of(rows[those])) for those in alike]

    def _of(self, rows: IntArray) -> FloatArray:
        values: FloatArray = self._values[rows][self._known[rows]].reshape(len(rows), -1)
        return values


def of_nodes(found: Sequence[tuple[Sequence[str], PerRound]]) -> PerPlace[str]:
    """Values by host.

    Args:
        found: hosts and their rows, numbered like those of `pytest_ddpscale.run.columns.ArmColumns.side_by_side`.
    """
    split = [np.divmod(rows.numbers, len(hosts)) for hosts, rows in found]
    numbers = np.unique(np.concatenate([np.zeros(0, np.int64), *(rounds for rounds, _ in split)]))
    everybody = [host for hosts, _ in found for host in hosts]
    values, first = np.full((len(everybody), len(numbers)), np.nan), 0
    for (hosts, rows), (rounds, nodes) in zip(found, split, strict=True):
        values[first + nodes, np.searchsorted(numbers, rounds)] = rows.values
        first += len(hosts)
    return PerPlace(everybody, numbers, values)
