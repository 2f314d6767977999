"""Measurements in memory: for each arm of each study an array per quantity, (rows, ranks).

A row is a round, or a turn within a round. A column is a device with its rank, also if a later gang numbers it anew.
Where a rank was absent, times and readings are NaN and counts 0. Nodes and groups are some of the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from pytest_ddpscale.run.block import FORWARD_S, SERIES, Block
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import GangRecord
from pytest_ddpscale.util.arrays import BoolArray, FloatArray, Index, IntArray, ObjectArray

T = TypeVar("T")
K = TypeVar("K", bound="Memoized")
P = ParamSpec("P")
# Quantities that every block has.
_CELLS = {"groups": "i8", "count": "i8", "work": "f8", "seconds": "f8", "digest": "i8"}
_FEWEST_ROWS = 8  # for which arrays are laid out; the fewest rounds


class Memoized:
    """Keeps what was derived from it."""

    @cached_property
    def _kept(self) -> dict[Hashable, Any]:
        return {}

    def memoize(self, key: Hashable, find_out: Callable[[], T]) -> T:
        """A derived value that many readers need, computed on first access of its unique key."""
        if key not in self._kept:
            self._kept[key] = find_out()
        value: T = self._kept[key]
        return value


def memoized(find_out: Callable[Concatenate[K, P], T]) -> Callable[Concatenate[K, P], T]:
    """A function whose results are kept with its first argument, for each key of further ones."""

    @wraps(find_out)
    def cached(kept: K, /, *key: P.args, **named: P.kwargs) -> T:
        return kept.memoize((find_out, *key, *named.items()), lambda: find_out(kept, *key, **named))

    return cached


@dataclass(frozen=True, eq=False)
class RankColumns(Memoized):
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
    def node(self) -> IntArray:
        """Index of each rank's host in `by_host`, (ranks,)."""
        return np.unique(self.hosts, return_inverse=True)[1]

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
        by_host: dict[str, list[int]] = {}
        for column, place in enumerate(self.rank_places):
            by_host.setdefault(place.host, []).append(column)
        return {host: np.array(columns) for host, columns in sorted(by_host.items())}


@dataclass(frozen=True, eq=False)
class ArmRounds:
    """Measurements of one arm of one study.

    Cells are (rows, ranks), or (rows, places, ranks of a place): `at`. What is said of all ranks is then said of those
    of each place.

    Attributes:
        study: its id.
        arm: its name.
        numbers: of the rounds, ascending, (rows,).
        turn: of the groups that take turns within a round, ascending in each round, (rows,).
        ranks: rank of each column.
        groups: number of the group that the rank worked with.
        count: steps, iterations or messages in the block.
        work: of one of them: samples, floating-point operations or bytes.
        seconds: duration of the block; NaN if the rank was absent.
        digest: of the parameters' bits; equal numbers mean equal bits, 0 means none.
        readings: those that any rank has, by name, NaN where one is unknown. Series have seconds of each step, NaN
            after a block's last step, (…, ranks, most steps).
    """

    study: str
    arm: str
    numbers: IntArray
    turn: IntArray
    ranks: RankColumns
    groups: IntArray
    count: IntArray
    work: FloatArray
    seconds: FloatArray
    digest: IntArray
    readings: Mapping[str, Any]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.numbers)

    @cached_property
    def present(self) -> BoolArray:
        """Whether a rank took part."""
        return ~np.isnan(self.seconds)

    def reading(self, name: str) -> FloatArray:
        """A reading, NaN where it is unknown, or a series, (…, ranks, most steps), which are none if it is absent."""
        shape = (*self.seconds.shape, 0) if name in SERIES else self.seconds.shape
        values: FloatArray | None = self.readings.get(name)
        return np.broadcast_to(np.nan, shape) if values is None else values

    @property
    def single_sample(self) -> BoolArray:
        """Whether a row is the long sample of an imported result, with the spread of its steps, (rows,)."""
        return np.asarray((self.reading("single_sample") == 1).any(axis=-1))

    def is_of_work(self, work: float) -> BoolArray:
        """Whether all present ranks of a row did this work in each step, (rows,)."""
        return np.asarray(~(self.present & (self.work != work)).any(axis=-1))

    @property
    def wrong(self) -> BoolArray:
        """Where a probe's result is wrong, or not said to be right."""
        return np.asarray(self.present & (self.reading("is_correct") != 1))

    @property
    def per_second(self) -> FloatArray:
        """Work done per second; NaN where a rank was absent."""
        return self.work * self.count / self.seconds

    @cached_property
    def mean_step_s(self) -> FloatArray:
        """Mean step time of each rank's block, in seconds; NaN where it was absent."""
        return self.seconds / np.maximum(self.count, 1)

    @property
    def step_s(self) -> FloatArray:
        """Mean step time of the slowest rank, in seconds; under DDP it sets the pace, (rows,)."""
        return self.most(self.mean_step_s)

    @cached_property
    def samples_per_s_per_gpu(self) -> FloatArray:
        """Work per second and rank, at the slowest rank's pace, (rows,)."""
        return self.least(self.per_second)

    def most(self, cells: FloatArray) -> FloatArray:
        """The largest of all ranks; NaN if that of any present rank is unknown, or none is present, (rows,)."""
        is_unknown = (np.isnan(cells) & self.present).any(axis=-1)
        return np.where(is_unknown, np.nan, np.fmax.reduce(cells, axis=-1, initial=np.nan))

    def least(self, cells: FloatArray) -> FloatArray:
        """The smallest, as `most` is the largest."""
        return -self.most(-cells)

    def only(self, cells: BoolArray) -> ArmRounds:
        """The same with only these cells present."""
        present = self.present & cells

        def kept(values: Any) -> Any:
            of_values = present if values.ndim == present.ndim else present[..., np.newaxis]
            return np.where(of_values, values, values.dtype.type(_nothing(values)))

        return self if (present == self.present).all() else self._changed(kept)

    def of(self, rows: Index, columns: Index = slice(None)) -> ArmRounds:
        """Some rows of some ranks."""
        times = {"numbers": self.numbers[rows], "turn": self.turn[rows]}
        return self._changed(lambda values: values[rows][:, columns], ranks=self.ranks.of(columns), **times)

    def there(self) -> ArmRounds:
        """Without rows and ranks of which nothing is present."""
        rows, columns = (np.asarray(self.present.any(axis=axis)) for axis in (1, 0))
        return self if rows.all() and columns.all() else self.of(rows, columns)

    def at(self, columns: IntArray) -> ArmRounds:
        """Ranks side by side: cells are (rows, places, ranks of a place), absent where a place has fewer.

        Args:
            columns: those of each place, -1 where it has fewer, (places, most ranks of one).
        """
        index, shape = as_slice(columns.ravel()), columns.shape
        selected = self._changed(lambda values: values[:, index].reshape(len(values), *shape, *values.shape[2:]))
        return selected.only(np.broadcast_to(columns >= 0, selected.seconds.shape))

    def _changed(self, change: Callable[[Any], Any], **others: Any) -> ArmRounds:
        """`change` makes each quantity of a rank and row; `others` has what is not of these."""
        cells = {name: change(getattr(self, name)) for name in _CELLS}
        return replace(
            self, **cells, readings={name: change(values) for name, values in self.readings.items()}, **others
        )


@dataclass(frozen=True, eq=False)
class Columns(Memoized):
    """All measurements in rounds.

    Attributes:
        arms: by study and name of the arm, in the order of their first measurements.
    """

    arms: Mapping[tuple[str, str], ArmRounds] = field(default_factory=dict)

    def of_study(self, study_id: str) -> Iterator[ArmRounds]:
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


_NONE = np.zeros(0, np.int64)
_NO_CELLS: Any = [*(np.zeros((0, 0), kind) for kind in _CELLS.values()), {}]  # and no readings
NO_ROUNDS = ArmRounds("", "", _NONE, _NONE, RankColumns(_NONE, _NONE.astype(np.object_)), *_NO_CELLS)


class _GrowingArm:
    """Arrays of one arm with room for more rows, which doubles when it is full."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], int] = {}  # by round and turn
        self.ranks = np.zeros((2, 0), np.int64)  # rank, ascending, and device of each column
        self.columns = np.zeros(0, np.int64)  # of each device, -1 without one
        self.cells: dict[str, Any] = {}  # with one column where all ranks share each row's value

    def add(self, block: Block, devices: IntArray) -> None:
        """Add a block of ranks on these devices."""
        row = self.rows.setdefault((block.round, block.turn), len(self.rows))
        earlier: Index = slice(None)
        if is_wider := devices.max() >= len(self.columns) or (self.columns[devices] < 0).any():
            before = self.ranks[1]
            new = np.stack([block.each("ranks"), devices])[:, ~np.isin(devices, before)]
            ranks = np.concatenate([self.ranks, new], axis=1)
            self.ranks = ranks[:, np.argsort(ranks[0], kind="stable")]
            self.columns = np.full(1 + self.ranks[1].max(), -1)
            self.columns[self.ranks[1]] = np.arange(ranks.shape[1])
            earlier = self.columns[before]
        columns, size = self.columns[devices], self.ranks.shape[1]
        for name in dict.fromkeys([*self.cells, *_CELLS, *block.readings, *block.series]):
            values = block.each(name)
            is_shared = values.strides[0] == 0 and len(columns) == size
            cells = self.cells.get(name)
            if cells is None:
                kind = np.float32 if name == FORWARD_S else values.dtype
                cells = np.empty((0, 1, *values.shape[1:]), kind)
            steps = [max(cells.shape[2], values.shape[1])] if values.ndim > 1 else []
            is_narrow = is_shared and cells.shape[1] == 1 and not (is_wider and len(cells))
            rows = max(_FEWEST_ROWS, 2 * len(cells), row + 1) if row >= len(cells) else len(cells)
            shape = rows, 1 if is_narrow else size, *steps
            if cells.shape != shape:
                grown = self.cells[name] = np.empty(shape, cells.dtype)
                grown[: len(self.rows)] = _nothing(cells)
                known = slice(len(cells)), earlier, *map(slice, cells.shape[2:])
                grown[known] = cells
                cells = grown
            cells[row] = _nothing(cells)
            index = row, slice(None) if is_shared else columns, *map(slice, values.shape[1:])
            cells[index] = values[:1] if is_shared else values


class GrowingColumns:
    """Columns to which blocks are added during the measurement, without laying out earlier ones again."""

    def __init__(self) -> None:
        self._devices: dict[Place, int] = {}  # number of each
        self._devices_of: dict[int, IntArray] = {}  # of the ranks of each gang
        self._ranks: dict[bytes, RankColumns] = {}  # those of several arms, with all that was derived from them
        self._arms: dict[tuple[str, str], _GrowingArm] = {}
        self._laid_out: dict[tuple[str, str], ArmRounds] = {}

    def hear(self, record: object) -> None:
        """Add a block, or the ranks of a launch, which come before their measurements."""
        if isinstance(record, GangRecord):
            numbers = [self._devices.setdefault(place, len(self._devices)) for place in record.places]
            self._devices_of[record.gang] = np.array(numbers, np.int64)
        elif isinstance(record, Block):
            name, devices = (record.study, record.arm), self._devices_of[record.gang][record.each("ranks")]
            self._arms.setdefault(name, _GrowingArm()).add(record, devices)
            self._laid_out.pop(name, None)

    def columns(self, arms: Container[tuple[str, str]] | None = None) -> Columns:
        """All added arms, or those given by study and name."""
        wanted = [name for name in self._arms if arms is None or name in arms]
        for name in wanted:
            if name not in self._laid_out:
                self._laid_out[name] = self._rounds(*name)
        return Columns({name: self._laid_out[name] for name in wanted})

    def _rounds(self, study: str, name: str) -> ArmRounds:
        arm = self._arms[study, name]
        times, (ranks, devices), key = sorted(arm.rows), arm.ranks, arm.ranks.tobytes()
        rows, (numbers, turns) = as_slice(np.array([arm.rows[time] for time in times])), np.array(times).T
        if key not in self._ranks:
            self._ranks[key] = RankColumns(ranks, np.fromiter(self._devices, np.object_)[devices])
        shape = len(times), len(ranks)
        readings: dict[str, Any] = {
            one: np.broadcast_to(cells[rows], (*shape, *cells.shape[2:])) for one, cells in arm.cells.items()
        }
        cells = {one: readings.pop(one) for one in _CELLS}
        return ArmRounds(study, name, numbers, turns, self._ranks[key], **cells, readings=readings)


def columns_of(blocks: Iterable[Block], gangs: Iterable[GangRecord]) -> Columns:
    """The columns of blocks, which may be in any order, and of the gangs that measured them."""
    growing = GrowingColumns()
    for record in (*gangs, *blocks):
        growing.hear(record)
    return growing.columns()


def as_slice(index: IntArray) -> slice | IntArray:
    """Consecutive columns or rows as a slice, which needs no copy; others unchanged."""
    if len(index) and index[0] >= 0 and (np.diff(index) == 1).all():
        return slice(int(index[0]), int(index[-1]) + 1)
    return index


def _nothing(cells: Any) -> float:
    """What stands where a rank was absent."""
    return np.nan if cells.dtype.kind == "f" else 0
