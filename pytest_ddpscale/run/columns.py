"""Measurements in columns: one array per quantity for each arm of each study, (rounds, ranks).

Thousands of ranks make millions of measurements. A node or a group of ranks is a selection of columns, and metrics are
arithmetic on whole arrays.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_ddpscale.run.column_record import BoolArray, FloatArray, IntArray
from pytest_ddpscale.run.records import Block, GangRecord

StepArray: TypeAlias = npt.NDArray[np.float32]
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
    """

    numbers: IntArray
    hosts: TextArray
    local_ranks: IntArray
    devices: TextArray

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
        return RankColumns(self.numbers[columns], self.hosts[columns], self.local_ranks[columns], self.devices[columns])

    def who(self, column: int) -> tuple[int, str, int, str]:
        """Number, host, local rank and device of one rank."""
        place = str(self.hosts[column]), int(self.local_ranks[column]), str(self.devices[column])
        return int(self.numbers[column]), *place

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


@dataclass(frozen=True, eq=False)
class ArmColumns:
    """Measurements of one arm of one study. Where a rank was absent, times are NaN and counts 0.

    For many nodes that each train the same alone there may be a row for each round and node: `side_by_side`.

    Attributes:
        study: its id.
        arm: its name.
        numbers: of the rounds, ascending, (rounds,).
        node: index of the row's node; 0 if a row has all ranks, (rounds,).
        batch_size: per-GPU batch, in samples, (rounds,).
        single_sample: whether it is the long sample of an imported result, with the spread of its steps, (rounds,).
        ranks: rank of each column; with a row per node all ranks of the first node, then of the second …
        present: whether a rank took part, (rounds, ranks).
        steps: optimizer steps in the block, (rounds, ranks).
        block_s: duration of the block, in seconds, (rounds, ranks).
        started_unix_s: start of the block, seconds since 1970 UTC, (rounds, ranks).
        step_stdev_s: sample standard deviation of the step time in seconds, NaN if unknown, (rounds, ranks).
        utilization: share of the block in which the device was busy, NaN if unknown, (rounds, ranks).
        energy_j: energy of the GPU in the block, in joules, NaN if unknown, (rounds, ranks).
        peak_memory_bytes: peak memory, NaN if unknown, (rounds, ranks).
        waited_s: seconds of the block in which the rank waited for data, NaN with synthetic data, (rounds, ranks).
        skipped_steps: optimizer steps that fp16's loss scaler skipped, (rounds, ranks).
        checksum: of the parameters' bits; equal numbers mean equal bits, 0 means none, (rounds, ranks).
        step_s: duration of each step in seconds, NaN after a block's last step, (rounds, ranks, most steps).
    """

    study: str
    arm: str
    numbers: IntArray
    node: IntArray
    batch_size: IntArray
    single_sample: BoolArray
    ranks: RankColumns
    present: BoolArray
    steps: IntArray
    block_s: FloatArray
    started_unix_s: FloatArray
    step_stdev_s: FloatArray
    utilization: FloatArray
    energy_j: FloatArray
    peak_memory_bytes: FloatArray
    waited_s: FloatArray
    skipped_steps: IntArray
    checksum: IntArray
    step_s: StepArray

    def of(self, rounds: Index, columns: Index = slice(None)) -> ArmColumns:
        """Some rounds of some ranks."""
        by_round = {name: getattr(self, name)[rounds] for name in OF_A_ROUND}
        if isinstance(rounds, slice) or isinstance(columns, slice):
            cells = {name: getattr(self, name)[rounds, columns] for name in OF_A_CELL}
        else:
            cells = {name: getattr(self, name)[rounds][:, columns] for name in OF_A_CELL}
        return ArmColumns(self.study, self.arm, ranks=self.ranks.of(columns), **by_round, **cells)

    def side_by_side(self, nodes: IntArray) -> ArmColumns:
        """The same with a row for each round and node; that of round r and node n has the number r · nodes + n.

        Args:
            nodes: columns of each node's ranks, (nodes, ranks of one).
        """
        count, size = nodes.shape
        at, rounds = as_slice(nodes.ravel()), len(self.numbers)

        def of_nodes(values: Any) -> Any:
            if values.ndim == 2 and values.strides[1] == 0:  # one value for all ranks
                return np.broadcast_to(values[:, :1].repeat(count, axis=0), (rounds * count, size))
            return values[:, at].reshape(rounds * count, size, *values.shape[2:])

        return ArmColumns(
            self.study,
            self.arm,
            numbers=(self.numbers[:, np.newaxis] * count + np.arange(count)).ravel(),
            node=np.tile(np.arange(count), rounds),
            batch_size=self.batch_size.repeat(count),
            single_sample=self.single_sample.repeat(count),
            ranks=self.ranks.of(at),
            **{name: of_nodes(getattr(self, name)) for name in OF_A_CELL},
        )

    @property
    def rank_of_cell(self) -> IntArray:
        """Index in `ranks` of each cell, (rounds, ranks)."""
        size = self.present.shape[1]
        ranks: IntArray = self.node[:, np.newaxis] * size + np.arange(size)
        return ranks


OF_A_ROUND = ("numbers", "node", "batch_size", "single_sample")
OF_A_CELL = tuple(one.name for one in fields(ArmColumns) if one.name not in ("study", "arm", "ranks", *OF_A_ROUND))


@dataclass(frozen=True, eq=False)
class Columns:
    """All measurements of training.

    Attributes:
        arms: by study and name of the arm, in the order of their first measurements.
        kept: cache of derived values, by any unique key.
    """

    arms: Mapping[tuple[str, str], ArmColumns] = field(default_factory=lambda: MappingProxyType({}))
    kept: dict[Any, Any] = field(default_factory=dict)

    def of_study(self, study_id: str) -> Iterator[ArmColumns]:
        """All arms of a study."""
        return (arm for (study, _), arm in self.arms.items() if study == study_id)

    @cached_property
    def hosts(self) -> frozenset[str]:
        """Names of all hosts that measured anything."""
        return frozenset(host for arm in self.arms.values() for host in arm.ranks.by_host)

    @cached_property
    def devices(self) -> frozenset[str]:
        """All devices that measured anything."""
        return frozenset(device for arm in self.arms.values() for device in arm.ranks.devices.tolist())


class GrowingColumns:
    """Columns to which blocks are added during the measurement, without reading earlier ones again."""

    def __init__(self) -> None:
        self._gangs: dict[int, RankColumns] = {}
        self._rows: dict[tuple[str, str], list[_BlockArrays]] = {}
        self._laid_out: dict[tuple[str, str], ArmColumns] = {}

    def add_gang(self, gang: GangRecord) -> None:
        """Add the ranks of a launch, before their measurements."""
        self._gangs[gang.gang] = ranks_of_gang(gang)

    def add(self, block: Block) -> None:
        """Add a block. If a block was measured twice, the earlier one counts."""
        rows = self._rows.setdefault((block.study, block.arm), [])
        self._laid_out.pop((block.study, block.arm), None)
        row = _BlockArrays.of(block)
        twin = next((i for i, other in enumerate(rows) if other.number == row.number), None)
        if twin is None:
            rows.append(row)
        elif row.age < rows[twin].age:
            rows[twin] = row

    def columns(self, arms: Container[tuple[str, str]] | None = None) -> Columns:
        """All added arms, or those given by study and name.

        Raises:
            ValueError: a rank of an arm was measured in two places.
        """
        wanted = [key for key in self._rows if arms is None or key in arms]
        for key in wanted:
            if key not in self._laid_out:
                self._laid_out[key] = self._arm(*key)
        return Columns({key: self._laid_out[key] for key in wanted})

    def rounds_begun(self, study_id: str) -> int:
        """Number of rounds of a study with any measurement."""
        return len({row.number for (study, _), rows in self._rows.items() if study == study_id for row in rows})

    def _arm(self, study: str, arm: str) -> ArmColumns:
        rows = sorted(self._rows[study, arm], key=lambda row: row.number)
        numbers = np.sort(rows[0].ranks)
        if not all(np.array_equal(row.ranks, rows[0].ranks) for row in rows):  # ranks take turns, or one is missing
            numbers = np.unique(np.concatenate([row.ranks for row in rows]))
        at = [np.searchsorted(numbers, row.ranks) for row in rows]
        cells = {name: _laid_out([row.cells[name] for row in rows], at, len(numbers)) for name in rows[0].cells}
        steps = np.full((len(rows), len(numbers), max(row.step_s.shape[1] for row in rows)), np.nan, np.float32)
        for i, row in enumerate(rows):
            steps[i, at[i], : row.step_s.shape[1]] = row.step_s
        return ArmColumns(
            study=study,
            arm=arm,
            numbers=np.array([row.number for row in rows], np.int64),
            node=np.zeros(len(rows), np.int64),
            batch_size=np.array([row.batch_size for row in rows], np.int64),
            single_sample=np.array([row.single_sample for row in rows], np.bool_),
            ranks=ranks_in_one_place({row.gang: self._gangs[row.gang] for row in rows}, numbers),
            present=_laid_out([np.broadcast_to(np.True_, len(places)) for places in at], at, len(numbers)),
            step_s=steps,
            **cells,
        )


@dataclass(frozen=True, eq=False)
class _BlockArrays:
    """A block as arrays, in the order of its ranks."""

    number: int
    batch_size: int
    single_sample: bool
    gang: int
    ranks: IntArray
    cells: Mapping[str, IntArray | FloatArray]
    step_s: StepArray

    @property
    def age(self) -> tuple[float, float]:
        """Sort key that makes the order of records irrelevant, even of two that began at the same time."""
        return float(self.cells["started_unix_s"].min()), float(self.cells["block_s"].max())

    @staticmethod
    def of(block: Block) -> _BlockArrays:
        """Convert a block to arrays."""
        cells = {name: block.each(name) for name in (*_NUMBERS, "steps", "skipped_steps")}
        cells["checksum"], ranks = block.checksums, block.each("ranks")
        cells["waited_s"] = _waited_s(block)
        step_s = np.frombuffer(block.step_s, "<f4").reshape(len(ranks), -1).astype(np.float32, copy=False)
        return _BlockArrays(block.round, block.batch_size, block.single_sample, block.gang, ranks, cells, step_s)


def _waited_s(block: Block) -> FloatArray:
    """Seconds that each rank waited for data in all its steps; NaN with synthetic data."""
    if not block.waited_s:
        return np.broadcast_to(np.nan, len(block.ranks))
    of_steps = np.frombuffer(block.waited_s, "<f4").reshape(len(block.ranks), -1)
    seconds: FloatArray = of_steps.sum(axis=1, dtype=np.float64)
    return seconds


def _laid_out(rows: Sequence[Any], at: Sequence[IntArray], ranks: int) -> Any:
    """One quantity in an array, (rounds, ranks), with NaN, 0 or False for absent ranks.

    Args:
        rows: for each round, a value for each present rank.
        at: their columns.
        ranks: number of columns.
    """
    if all(len(values) == ranks and values.strides == (0,) for values in rows):  # one value for all ranks
        return np.broadcast_to(np.array([values[0] for values in rows])[:, np.newaxis], (len(rows), ranks))
    found = np.empty((len(rows), ranks), rows[0].dtype)
    for i, values in enumerate(rows):
        if len(values) < ranks:
            found[i] = np.nan if found.dtype.kind == "f" else 0
        found[i, at[i]] = values
    return found


_NUMBERS = ("block_s", "started_unix_s", "step_stdev_s", "utilization", "energy_j", "peak_memory_bytes")


def ranks_of_gang(gang: GangRecord) -> RankColumns:
    """All ranks of a launch."""
    return RankColumns(
        np.arange(gang.world_size),
        np.array(gang.hosts, np.object_),
        np.array(gang.local_ranks, np.int64),
        np.array(gang.devices, np.object_),
    )


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


def columns_of(blocks: Iterable[Block], gangs: Iterable[GangRecord]) -> Columns:
    """The columns of blocks, which may be in any order.

    Args:
        blocks: one for each arm and round.
        gangs: the gangs that measured them.

    Raises:
        ValueError: a rank of an arm was measured in two places.
    """
    growing = GrowingColumns()
    for gang in gangs:
        growing.add_gang(gang)
    for block in blocks:
        growing.add(block)
    return growing.columns()


NOBODY = RankColumns(np.zeros(0, np.int64), np.zeros(0, np.object_), np.zeros(0, np.int64), np.zeros(0, np.object_))


def joined(ranks: Sequence[RankColumns]) -> RankColumns:
    """Ranks side by side."""
    return RankColumns(
        *(np.concatenate([getattr(one, column.name) for one in ranks]) for column in fields(RankColumns))
    )


def as_slice(columns: IntArray) -> slice | IntArray:
    """Consecutive columns as a slice, which needs no copy; others unchanged."""
    if len(columns) and np.array_equal(columns, np.arange(columns[0], columns[0] + len(columns))):
        return slice(int(columns[0]), int(columns[-1]) + 1)
    return columns
