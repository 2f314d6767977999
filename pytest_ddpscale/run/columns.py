"""Measurements in columns: one array per quantity for each arm of each study, (rounds, ranks).

Thousands of ranks make millions of measurements. A node or a group of ranks is a selection of columns, and metrics are
arithmetic on whole arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.column_record import BoolArray, FloatArray, IntArray
from pytest_ddpscale.run.rank_columns import NOBODY, Index, RankColumns, ranks_in_one_place, ranks_of_gang
from pytest_ddpscale.run.records import GangRecord

StepArray: TypeAlias = npt.NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ArmColumns:
    """Measurements of one arm of one study. Where a rank was absent, times are NaN and counts 0.

    There is a row for each round, or for each round and turn. For many nodes that each train the same alone there may
    be a row for each round and node: `side_by_side`.

    Attributes:
        study: its id.
        arm: its name.
        numbers: of the rounds, ascending, (rows,).
        turn: of the groups that take turns within a round, ascending in each round, (rows,).
        node: index of the row's node; 0 if a row has all ranks, (rows,).
        ranks: rank of each column; with a row per node all ranks of the first node, then of the second …
        present: whether a rank took part, (rows, ranks).
        groups: number of the group that the rank worked with, (rows, ranks).
        count: steps, iterations or messages in the block, (rows, ranks).
        work: of one of them: samples, floating-point operations or bytes, (rows, ranks).
        seconds: duration of the block, (rows, ranks).
        began_unix_s: its start, seconds since 1970 UTC, (rows, ranks).
        digest: of the parameters' bits; equal numbers mean equal bits, 0 means none, (rows, ranks).
        readings: those that any rank has, by name, NaN where one is unknown, (rows, ranks).
        series: seconds of each step by name, NaN after a block's last step, (rows, ranks, most steps).
    """

    study: str
    arm: str
    numbers: IntArray
    turn: IntArray
    node: IntArray
    ranks: RankColumns
    present: BoolArray
    groups: IntArray
    count: IntArray
    work: FloatArray
    seconds: FloatArray
    began_unix_s: FloatArray
    digest: IntArray
    readings: Mapping[str, FloatArray]
    series: Mapping[str, StepArray]

    def reading(self, name: str) -> FloatArray:
        """A reading, NaN where it is unknown, (rows, ranks)."""
        found = self.readings.get(name)
        return np.broadcast_to(np.nan, self.present.shape) if found is None else found

    def of_steps(self, name: str) -> StepArray:
        """A series, (rows, ranks, most steps), which are none if it is absent."""
        found = self.series.get(name)
        return np.zeros((*self.present.shape, 0), np.float32) if found is None else found

    @property
    def single_sample(self) -> BoolArray:
        """Whether a row is the long sample of an imported result, with the spread of its steps, (rows,)."""
        return np.asarray((self.reading("single_sample") == 1).any(axis=1))

    def is_of_work(self, work: float) -> BoolArray:
        """Whether all present ranks of a row did this work in each step, (rows,)."""
        is_other = self.present & (self.work != work)
        return np.asarray(~is_other.any(axis=1))

    @property
    def per_second(self) -> FloatArray:
        """Work done per second, NaN where a rank was absent, (rows, ranks)."""
        return self.work * self.count / self.seconds

    @property
    def wrong(self) -> BoolArray:
        """Where a probe's result is wrong, or not said to be right, (rows, ranks)."""
        return np.asarray(self.present & (self.reading("is_correct") != 1))

    def only(self, cells: BoolArray) -> ArmColumns:
        """The same with only these cells present."""
        return replace(self, present=self.present & cells)

    def of(self, rows: Index, columns: Index = slice(None)) -> ArmColumns:
        """Some rows of some ranks."""

        def some(values: Any) -> Any:
            if isinstance(rows, slice) or isinstance(columns, slice):
                return values[rows, columns]
            return values[rows][:, columns]

        of_rows = {name: getattr(self, name)[rows] for name in _OF_A_ROW}
        return self.changed(some, ranks=self.ranks.of(columns), **of_rows)

    def side_by_side(self, nodes: IntArray) -> ArmColumns:
        """The same with a row for each round and node; that of round r and node n has the number r · nodes + n.

        Args:
            nodes: columns of each node's ranks, (nodes, ranks of one).
        """
        count, size = nodes.shape
        at, rows = as_slice(nodes.ravel()), len(self.numbers)

        def of_nodes(values: Any) -> Any:
            if values.ndim == 2 and values.strides[1] == 0:  # one value for all ranks
                return np.broadcast_to(values[:, :1].repeat(count, axis=0), (rows * count, size))
            return values[:, at].reshape(rows * count, size, *values.shape[2:])

        return self.changed(
            of_nodes,
            numbers=(self.numbers[:, np.newaxis] * count + np.arange(count)).ravel(),
            turn=self.turn.repeat(count),
            node=np.tile(np.arange(count), rows),
            ranks=self.ranks.of(at),
        )

    def changed(self, change: Callable[[Any], Any], **others: Any) -> ArmColumns:
        """`change` makes each quantity of a rank and row; `others` has what is not of these."""
        return replace(
            self,
            **{name: change(getattr(self, name)) for name in _OF_A_CELL},
            readings={name: change(self.reading(name)) for name in self.readings},
            series={name: change(self.of_steps(name)) for name in self.series},
            **others,
        )

    @property
    def rank_of_cell(self) -> IntArray:
        """Index in `ranks` of each cell, (rows, ranks)."""
        size = self.present.shape[1]
        ranks: IntArray = self.node[:, np.newaxis] * size + np.arange(size)
        return ranks


_OF_A_ROW = ("numbers", "turn", "node")
_OF_A_CELL = ("present", "groups", "count", "work", "seconds", "began_unix_s", "digest")


@dataclass(frozen=True, eq=False)
class Columns:
    """All measurements in rounds.

    Attributes:
        arms: by study and name of the arm, in the order of their first measurements.
    """

    arms: Mapping[tuple[str, str], ArmColumns] = field(default_factory=lambda: MappingProxyType({}))
    _kept: dict[Hashable, Any] = field(init=False, default_factory=dict)

    def once(self, key: Hashable, find_out: Callable[[], T]) -> T:
        """A derived value that many readers need, computed on first access of its unique key."""
        if key not in self._kept:
            self._kept[key] = find_out()
        found: T = self._kept[key]
        return found

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
        self._ranks: dict[tuple[str, str], RankColumns] = {}

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
        return len({row.number[0] for (study, _), rows in self._rows.items() if study == study_id for row in rows})

    def _arm(self, study: str, arm: str) -> ArmColumns:
        rows = sorted(self._rows[study, arm], key=lambda row: row.number)
        numbers = np.sort(rows[0].ranks)
        if not all(np.array_equal(row.ranks, rows[0].ranks) for row in rows):  # ranks take turns, or one is missing
            numbers = np.unique(np.concatenate([row.ranks for row in rows]))
        at = [np.searchsorted(numbers, row.ranks) for row in rows]
        ranks = ranks_in_one_place({row.gang: self._gangs[row.gang] for row in rows}, numbers)
        known = self._ranks.get((study, arm))
        self._ranks[study, arm] = ranks = known if known is not None and known.is_same(ranks) else ranks

        def laid_out(values: Sequence[Any]) -> Any:
            return _laid_out(values, at, len(numbers))

        readings = dict.fromkeys(name for row in rows for name in row.readings)
        return ArmColumns(
            study=study,
            arm=arm,
            numbers=np.array([row.number[0] for row in rows], np.int64),
            turn=np.array([row.number[1] for row in rows], np.int64),
            node=np.zeros(len(rows), np.int64),
            ranks=ranks,
            present=laid_out([np.broadcast_to(np.True_, len(places)) for places in at]),
            readings={
                name: laid_out([row.readings.get(name, np.broadcast_to(np.nan, len(row.ranks))) for row in rows])
                for name in readings
            },
            series={
                name: _laid_out_steps([row.series.get(name) for row in rows], at, len(numbers))
                for name in dict.fromkeys(name for row in rows for name in row.series)
            },
            **{name: laid_out([row.cells[name] for row in rows]) for name in rows[0].cells},
        )


@dataclass(frozen=True, eq=False)
class _BlockArrays:
    """A block as arrays, in the order of its ranks; `number` has its round and turn."""

    number: tuple[int, int]
    gang: int
    ranks: IntArray
    cells: Mapping[str, IntArray | FloatArray]
    readings: Mapping[str, FloatArray]
    series: Mapping[str, StepArray]

    @property
    def age(self) -> tuple[float, float]:
        """Sort key that makes the order of records irrelevant, even of two that began at the same time."""
        return float(self.cells["began_unix_s"].min()), float(self.cells["seconds"].max())

    @staticmethod
    def of(block: Block) -> _BlockArrays:
        """Convert a block to arrays."""
        cells = {name: block.each(name) for name in block.columns if name != "ranks"}
        return _BlockArrays(
            number=(block.round, block.turn),
            gang=block.gang,
            ranks=block.each("ranks"),
            cells={**cells, "digest": block.checksums},
            readings={name: block.reading(name) for name in block.readings},
            series={name: block.of_steps(name).astype(np.float32, copy=False) for name in block.series},
        )


def _laid_out(rows: Sequence[Any], at: Sequence[IntArray], ranks: int) -> Any:
    """One quantity in an array, (rows, ranks), with NaN, 0 or False for absent ranks.

    Args:
        rows: for each row, a value for each present rank.
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


def _laid_out_steps(rows: Sequence[StepArray | None], at: Sequence[IntArray], ranks: int) -> StepArray:
    """One series, (rows, ranks, most steps), with NaN where there is none."""
    found = np.full((len(rows), ranks, max(row.shape[1] for row in rows if row is not None)), np.nan, np.float32)
    for i, row in enumerate(rows):
        if row is not None:
            found[i, at[i], : row.shape[1]] = row
    return found


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


_NO_COUNTS, _NO_NUMBERS = np.zeros((0, 0), np.int64), np.zeros((0, 0))
NO_MEASUREMENTS = ArmColumns(
    "", "", *(np.zeros(0, np.int64),) * 3, NOBODY, np.zeros((0, 0), np.bool_), *(_NO_COUNTS,) * 2,
    *(_NO_NUMBERS,) * 3, _NO_COUNTS, {}, {},
)  # fmt: skip


def as_slice(columns: IntArray) -> slice | IntArray:
    """Consecutive columns as a slice, which needs no copy; others unchanged."""
    if len(columns) and np.array_equal(columns, np.arange(columns[0], columns[0] + len(columns))):
        return slice(int(columns[0]), int(columns[-1]) + 1)
    return columns
