"""Measurements in columns: one array per quantity for each arm of each study, (rounds, ranks).

Thousands of ranks make millions of measurements. A node or a group of ranks is a selection of columns, and metrics are
arithmetic on whole arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_ddpscale.run.block import CELLS, Block
from pytest_ddpscale.run.column_record import BoolArray, FloatArray, IntArray
from pytest_ddpscale.run.rank_columns import NOBODY, Index, Keeping, RankColumns, ranks_in_one_place, ranks_of_gang
from pytest_ddpscale.run.records import GangRecord

StepArray: TypeAlias = npt.NDArray[np.float32]
# Quantities that every block has, by the type of their arrays.
_OF_A_CELL = {"present": "?", "digest": "i8", **CELLS}


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
        cells: each quantity by name, (rows, ranks): those of every block, which are attributes as well, and readings
            that any rank has, NaN where one is unknown. Series have seconds of each step, NaN after a block's last
            step, (rows, ranks, most steps).
        present: whether a rank took part.
        groups: number of the group that the rank worked with.
        count: steps, iterations or messages in the block.
        work: of one of them: samples, floating-point operations or bytes.
        seconds: duration of the block.
        began_unix_s: its start, seconds since 1970 UTC.
        digest: of the parameters' bits; equal numbers mean equal bits, 0 means none.
    """

    study: str
    arm: str
    numbers: IntArray
    turn: IntArray
    node: IntArray
    ranks: RankColumns
    cells: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_A_CELL:
            raise AttributeError(f"an arm's columns have no {name}")
        return self.cells[name]

    def reading(self, name: str) -> FloatArray:
        """A reading, NaN where it is unknown, (rows, ranks)."""
        found: FloatArray | None = self.cells.get(name)
        return np.broadcast_to(np.nan, self.present.shape) if found is None else found

    def of_steps(self, name: str) -> StepArray:
        """A series, (rows, ranks, most steps), which are none if it is absent."""
        found: StepArray | None = self.cells.get(name)
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
        return np.asarray(self.work * self.count / self.seconds)

    @property
    def wrong(self) -> BoolArray:
        """Where a probe's result is wrong, or not said to be right, (rows, ranks)."""
        return np.asarray(self.present & (self.reading("is_correct") != 1))

    def only(self, cells: BoolArray, **others: Any) -> ArmColumns:
        """The same with only these cells present, and other quantities if they are given."""
        return replace(self, cells={**self.cells, **others, "present": self.present & cells})

    def of(self, rows: Index, columns: Index = slice(None)) -> ArmColumns:
        """Some rows of some ranks."""
        of_rows = {name: getattr(self, name)[rows] for name in ("numbers", "turn", "node")}
        return self.changed(lambda values: values[rows][:, columns], ranks=self.ranks.of(columns), **of_rows)

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
        return replace(self, cells={name: change(values) for name, values in self.cells.items()}, **others)

    @property
    def rank_of_cell(self) -> IntArray:
        """Index in `ranks` of each cell, (rows, ranks)."""
        size = self.present.shape[1]
        ranks: IntArray = self.node[:, np.newaxis] * size + np.arange(size)
        return ranks


@dataclass(frozen=True, eq=False)
class Columns(Keeping):
    """All measurements in rounds.

    Attributes:
        arms: by study and name of the arm, in the order of their first measurements.
    """

    arms: Mapping[tuple[str, str], ArmColumns] = field(default_factory=dict)

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
        return frozenset(device for arm in self.arms.values() for _, device in arm.ranks.gpus)


class GrowingColumns:
    """Columns to which blocks are added during the measurement, without reading earlier ones again."""

    def __init__(self) -> None:
        self._gangs: dict[int, RankColumns] = {}
        self._blocks: dict[tuple[str, str], dict[tuple[int, int], Block]] = {}  # by arm, then by round and turn
        self._laid_out: dict[tuple[str, str], ArmColumns] = {}
        self._grown = set[tuple[str, str]]()  # since they were laid out

    def add_gang(self, gang: GangRecord) -> None:
        """Add the ranks of a launch, before their measurements."""
        self._gangs[gang.gang] = ranks_of_gang(gang)

    def add(self, block: Block) -> None:
        """Add a block. If a block was measured twice, the earlier one counts."""
        blocks = self._blocks.setdefault((block.study, block.arm), {})
        twin = blocks.setdefault((block.round, block.turn), block)
        if _age(block) < _age(twin):
            blocks[block.round, block.turn] = block
        self._grown.add((block.study, block.arm))

    def columns(self, arms: Container[tuple[str, str]] | None = None) -> Columns:
        """All added arms, or those given by study and name.

        Raises:
            ValueError: a rank of an arm was measured in two places.
        """
        wanted = [key for key in self._blocks if arms is None or key in arms]
        for key in self._grown.intersection(wanted):
            self._laid_out[key] = self._arm(*key)
            self._grown.remove(key)
        return Columns({key: self._laid_out[key] for key in wanted})

    def rounds_begun(self, study_id: str) -> int:
        """Number of rounds of a study with any measurement."""
        return len({round_ for (study, _), blocks in self._blocks.items() if study == study_id for round_, _ in blocks})

    def _arm(self, study: str, arm: str) -> ArmColumns:
        numbers, blocks = zip(*sorted(self._blocks[study, arm].items()), strict=True)
        rounds, turns = np.array(numbers, np.int64).T
        ranks = np.sort(blocks[0].ranks)
        if not all(np.array_equal(np.sort(block.ranks), ranks) for block in blocks):  # turns, or one is missing
            ranks = np.unique(np.concatenate([block.ranks for block in blocks]))
        at = [np.searchsorted(ranks, block.ranks) for block in blocks]
        places = ranks_in_one_place({block.gang: self._gangs[block.gang] for block in blocks}, ranks)
        before = self._laid_out.get((study, arm))
        if before is not None and before.ranks.is_same(places):
            places = before.ranks  # with all that was derived from them
        there = [np.broadcast_to(np.True_, len(columns)) for columns in at]
        quantities = dict.fromkeys(name for block in blocks for name in block.quantities)
        cells = {name: _laid_out([block.each(name) for block in blocks], at, len(ranks)) for name in quantities}
        cells["present"] = _laid_out(there, at, len(ranks))
        return ArmColumns(study, arm, rounds, turns, np.zeros_like(rounds), places, cells)


def _age(block: Block) -> tuple[float, float]:
    """Sort key that makes the order of records irrelevant, even of two that began at the same time."""
    return float(np.min(block.began_unix_s)), float(np.max(block.seconds))


def _laid_out(rows: Sequence[Any], at: Sequence[IntArray], ranks: int) -> Any:
    """One quantity in an array, (rows, ranks) or (rows, ranks, most steps), with NaN, 0 or False where there is none.

    Args:
        rows: for each row, a value, or those of its steps, for each present rank.
        at: their columns.
        ranks: number of columns.
    """
    if all(len(values) == ranks and values.strides == (0,) for values in rows):  # one value for all ranks
        return np.broadcast_to(np.array([values[0] for values in rows])[:, np.newaxis], (len(rows), ranks))
    steps = [max(values.shape[1] for values in rows)] if rows[0].ndim > 1 else []
    nothing = np.nan if rows[0].dtype.kind == "f" else 0
    found = np.full((len(rows), ranks, *steps), nothing, rows[0].dtype)
    for row, columns, values in zip(found, at, rows, strict=True):
        cells = columns, *map(slice, values.shape[1:])
        row[cells] = values
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


_NOTHING = {name: np.zeros((0, 0), kind) for name, kind in _OF_A_CELL.items()}
NO_MEASUREMENTS = ArmColumns("", "", *(np.zeros(0, np.int64),) * 3, NOBODY, _NOTHING)


def as_slice(columns: IntArray) -> slice | IntArray:
    """Consecutive columns as a slice, which needs no copy; others unchanged."""
    if len(columns) and np.array_equal(columns, np.arange(columns[0], columns[0] + len(columns))):
        return slice(int(columns[0]), int(columns[-1]) + 1)
    return columns
