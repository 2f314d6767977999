"""The rank of each column of measurements."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_ddpscale.run.column_record import BoolArray, IntArray
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import GangRecord

TextArray: TypeAlias = npt.NDArray[np.object_]
Index: TypeAlias = slice | IntArray | BoolArray


@dataclass(frozen=True, eq=False)
class RankColumns:
    """The rank of each column.

    Attributes:
        numbers: global ranks, ascending, (ranks,).
        hosts: host names, (ranks,).
        local_ranks: ranks on their hosts, (ranks,).
        devices: GPU UUIDs, or ``cpu``, (ranks,).
        gpu_indices: NVML's indices of the GPUs, None if not known; on a CPU the local ranks, (ranks,).
        pci_bus_ids: NVML's PCI addresses of the GPUs; empty if not known, (ranks,).
    """

    numbers: IntArray
    hosts: TextArray
    local_ranks: IntArray
    devices: TextArray
    gpu_indices: TextArray
    pci_bus_ids: TextArray

    @cached_property
    def kept(self) -> dict[Hashable, Any]:
        """Cache of values derived from these ranks, by any unique key."""
        return {}

    def __len__(self) -> int:
        """Number of ranks."""
        return len(self.numbers)

    def is_same(self, other: RankColumns) -> bool:
        """Whether they are the same ranks in the same places."""
        return self is other or all(
            np.array_equal(getattr(self, one.name), getattr(other, one.name)) for one in fields(RankColumns)
        )

    def of(self, columns: Index) -> RankColumns:
        """Some of the ranks."""
        return RankColumns(*(getattr(self, one.name)[columns] for one in fields(RankColumns)))

    def who(self, column: int) -> tuple[int, Place]:
        """Number and place of one rank."""
        host, local_rank, device = self.hosts[column], int(self.local_ranks[column]), str(self.devices[column])
        place = Place(str(host), local_rank, device, self.gpu_indices[column], self.pci_bus_ids[column])
        return int(self.numbers[column]), place

    @cached_property
    def rank_places(self) -> Sequence[Place]:
        """Place of each rank, with its device."""
        columns = (self.hosts, self.local_ranks, self.devices, self.gpu_indices, self.pci_bus_ids)
        return list(map(Place, *(column.tolist() for column in columns)))

    @cached_property
    def by_host(self) -> Mapping[str, IntArray]:
        """Columns of each host, by host name."""
        names, hosts = np.unique(self.hosts.astype(str), return_inverse=True)
        order = np.argsort(hosts, kind="stable")
        ends = np.cumsum(np.bincount(hosts, minlength=len(names)))
        return dict(zip(map(str, names), np.split(order, ends[:-1]), strict=True)) if len(names) else {}

    @cached_property
    def by_gpu(self) -> Mapping[tuple[str, str], list[int]]:
        """Columns of each device, by host name and UUID."""
        found: dict[tuple[str, str], list[int]] = {}
        for column, gpu in enumerate(zip(self.hosts, self.devices, strict=True)):
            found.setdefault(gpu, []).append(column)
        return found

    @cached_property
    def places(self) -> list[tuple[str, int]]:
        """Host and local rank of each rank, which stay the same when a relaunch renumbers ranks."""
        return list(zip(self.hosts.tolist(), self.local_ranks.tolist(), strict=True))


def ranks_at(numbers: IntArray, places: Sequence[Place]) -> RankColumns:
    """Ranks with these numbers in these places."""
    columns = [[getattr(place, field) for place in places] for field in Place.__struct_fields__]
    hosts, local_ranks, *of_gpus = (np.array(column, np.object_) for column in columns)
    return RankColumns(numbers, hosts, local_ranks.astype(np.int64), *of_gpus)


NOBODY = ranks_at(np.zeros(0, np.int64), ())


def ranks_of_gang(gang: GangRecord) -> RankColumns:
    """All ranks of a launch."""
    return ranks_at(np.arange(gang.world_size), list(map(gang.place, range(gang.world_size))))


def ranks_in_one_place(gangs: Mapping[int, RankColumns], numbers: IntArray) -> RankColumns:
    """The ranks with these numbers, which must be in the same place in all gangs.

    Raises:
        ValueError: a rank is in another place in one of the gangs, or is not part of one.
    """
    for number, gang in gangs.items():
        if len(numbers) and numbers[-1] >= len(gang):
            raise ValueError(f"rank {numbers[-1]} took part, but gang {number} has {len(gang)} ranks")
    first, *others = (gang if np.array_equal(gang.numbers, numbers) else gang.of(numbers) for gang in gangs.values())
    for other in others:
        moved = (other.hosts != first.hosts) | (other.devices != first.devices)
        moved |= other.local_ranks != first.local_ranks
        if moved.any():
            rank = int(numbers[np.argmax(moved)])
            raise ValueError(f"rank {rank} was measured in two places by gangs {', '.join(map(str, gangs))}")
    return first
