"""The rank of each column of measurements."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from pytest_ddpscale.run.column_record import BoolArray, IntArray
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import GangRecord

ObjectArray: TypeAlias = npt.NDArray[np.object_]
Index: TypeAlias = slice | IntArray | BoolArray
T = TypeVar("T")


class Keeping:
    """Keeps what was derived from it."""

    @cached_property
    def _kept(self) -> dict[Hashable, Any]:
        return {}

    def once(self, key: Hashable, find_out: Callable[[], T]) -> T:
        """A derived value that many readers need, computed on first access of its unique key."""
        if key not in self._kept:
            self._kept[key] = find_out()
        found: T = self._kept[key]
        return found


@dataclass(frozen=True, eq=False)
class RankColumns(Keeping):
    """The rank of each column.

    Attributes:
        numbers: global ranks, ascending, (ranks,).
        rank_places: where they are, (ranks,).
    """

    numbers: IntArray
    rank_places: ObjectArray

    def __len__(self) -> int:
        """Number of ranks."""
        return len(self.numbers)

    def is_same(self, other: RankColumns) -> bool:
        """Whether they are the same ranks in the same places."""
        names = "numbers", "rank_places"
        return self is other or all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    def of(self, columns: Index) -> RankColumns:
        """Some of the ranks."""
        return RankColumns(self.numbers[columns], self.rank_places[columns])

    def who(self, column: int) -> tuple[int, Place]:
        """Number and place of one rank."""
        return int(self.numbers[column]), self.rank_places[column]

    @cached_property
    def hosts(self) -> ObjectArray:
        """Name of each rank's host, (ranks,)."""
        return np.array([place.host for place in self.rank_places], np.object_)

    @cached_property
    def gpus(self) -> list[tuple[str, str]]:
        """Host of each rank, and UUID of its GPU, or ``cpu``."""
        return [(place.host, place.uuid) for place in self.rank_places]

    @cached_property
    def places(self) -> list[tuple[str, int]]:
        """Host and local rank of each rank, which stay the same when a relaunch renumbers ranks."""
        return [place.of_rank for place in self.rank_places]

    @cached_property
    def by_host(self) -> Mapping[str, IntArray]:
        """Columns of each host, by host name."""
        found: dict[str, list[int]] = {}
        for column, place in enumerate(self.rank_places):
            found.setdefault(place.host, []).append(column)
        return {host: np.array(columns) for host, columns in sorted(found.items())}


def ranks_of_gang(gang: GangRecord) -> RankColumns:
    """All ranks of a launch."""
    return RankColumns(np.arange(gang.world_size), np.fromiter(gang.places, np.object_))


NOBODY = RankColumns(np.zeros(0, np.int64), np.zeros(0, np.object_))


def ranks_in_one_place(gangs: Mapping[int, RankColumns], numbers: IntArray) -> RankColumns:
    """The ranks with these numbers, which must be in the same place in all gangs.

    Raises:
        ValueError: a rank is in another place in one of the gangs.
    """
    first, *others = (gang if np.array_equal(gang.numbers, numbers) else gang.of(numbers) for gang in gangs.values())
    for other in others:
        for rank, place, before in zip(numbers.tolist(), other.rank_places, first.rank_places, strict=True):
            if (place.of_rank, place.uuid) != (before.of_rank, before.uuid):
                raise ValueError(f"rank {rank} was measured in two places by gangs {', '.join(map(str, gangs))}")
    return first
