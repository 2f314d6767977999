"""Telemetry of GPUs during measurements, in columns: one row for each GPU and block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from pytest_ddpscale.run.column_record import BoolArray, FloatArray, IntArray
from pytest_ddpscale.run.rank_columns import Index
from pytest_ddpscale.run.records import GangRecord, RankPlace
from pytest_ddpscale.run.telemetry_record import SpreadColumns, TelemetryBlock


@dataclass(frozen=True, eq=False)
class Sayings:
    """A column with few different values, texts or mappings, stored once each.

    Attributes:
        values: the different values.
        which: index of each row's value, (rows,).
    """

    values: Sequence[Any]
    which: IntArray

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.which)

    def __iter__(self) -> Iterator[Any]:
        """Value of each row."""
        return (self.values[i] for i in self.which.tolist())

    def __getitem__(self, rows: Index) -> Sayings:
        """Some of the rows."""
        return Sayings(self.values, self.which[rows])

    @property
    def different(self) -> list[Any]:
        """The different values of these rows."""
        return [self.values[i] for i in np.flatnonzero(np.bincount(self.which)).tolist()]

    def where(self, is_so: Callable[[Any], bool]) -> BoolArray:
        """Whether the condition holds for each row's value, (rows,)."""
        answers = np.zeros(len(self.values), np.bool_)
        for i in np.flatnonzero(np.bincount(self.which)).tolist():
            answers[i] = is_so(self.values[i])
        return answers[self.which]


@dataclass(frozen=True, eq=False)
class TelemetryColumns:
    """The readings of `TelemetryBlock`, (rows,), in the order of blocks and of their ranks; NaN if not read.

    Attributes:
        arms: study and arm, or probe, in order of first appearance.
        places: host, local rank and device of ranks.
        arm: index in `arms` of each row.
        round: number of the round.
        rank: global rank of the GPU.
        place: index in `places` of each row.
        utilization: mean of the window, like ``power_w``, ``sm_clock_mhz`` and ``sm_activity``.
    """

    arms: Sequence[tuple[str, str]]
    places: Sequence[RankPlace]
    arm: IntArray
    round: IntArray
    rank: IntArray
    place: IntArray
    started_unix_s: FloatArray
    ended_unix_s: FloatArray
    polls: FloatArray
    utilization: FloatArray
    power_w: FloatArray
    power_limit_w: FloatArray
    idle_power_w: FloatArray
    sm_clock_mhz: FloatArray
    sm_clock_max_mhz: FloatArray
    energy_j: FloatArray
    ecc_corrected: FloatArray
    ecc_uncorrected: FloatArray
    pcie_generation: FloatArray
    pcie_width: FloatArray
    sm_activity: FloatArray
    lost: Sayings
    throttle_reasons: Sayings
    sources: Sayings
    unreadable: Sayings

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.arm)

    def of(self, rows: Index) -> TelemetryColumns:
        """Some rows."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _OF_A_ROW})

    def together(self, keys: IntArray) -> list[IntArray]:
        """Rows grouped by key, (rows,), in order of first appearance."""
        if not len(keys):
            return []
        order = np.argsort(keys, kind="stable")
        ends = np.flatnonzero(np.diff(keys[order])) + 1
        return sorted(np.split(order, ends), key=lambda rows: int(rows[0]))

    @property
    def by_gpu(self) -> list[TelemetryColumns]:
        """Rows of each GPU, which host and UUID identify."""
        numbers: dict[tuple[str, str], int] = {}
        gpus = [numbers.setdefault((place.host, place.device), len(numbers)) for place in self.places]
        return [self.of(rows) for rows in self.together(np.array(gpus, np.int64)[self.place])]

    def rows_of_arm(self, study: str, arm: str) -> IntArray:
        """Rows of an arm, or of a probe by its id."""
        return self._rows_of_arms.get((study, arm), np.zeros(0, np.int64))

    @cached_property
    def _rows_of_arms(self) -> Mapping[tuple[str, str], IntArray]:
        return {self.arms[self.arm[rows[0]]]: rows for rows in self.together(self.arm)}

    def of_arm(self, study: str, arm: str, hosts: Iterable[str]) -> TelemetryColumns:
        """Rows of an arm on some hosts, host by host."""
        rows = self.rows_of_arm(study, arm)
        numbers = {host: i for i, host in enumerate(hosts)}
        of_places = np.array([numbers.get(place.host, len(numbers)) for place in self.places], np.int64)
        of_rows = of_places[self.place[rows]]
        order = np.argsort(of_rows, kind="stable")
        return self.of(rows[order[: np.count_nonzero(of_rows < len(numbers))]])

    @property
    def seconds(self) -> FloatArray:
        """Length of the windows, in seconds."""
        return self.ended_unix_s - self.started_unix_s

    @property
    def hosts(self) -> frozenset[str]:
        """Names of the nodes with telemetry."""
        return frozenset(self.places[place].host for place in np.unique(self.place).tolist())

    def place_of(self, row: int) -> RankPlace:
        """Host, local rank and GPU of a row."""
        return self.places[int(self.place[row])]


_OF_A_ROW = tuple(one.name for one in fields(TelemetryColumns) if one.name not in ("arms", "places"))
_READINGS = _OF_A_ROW[_OF_A_ROW.index("started_unix_s") :]
_TOLD = ("lost", "throttle_reasons", "sources", "unreadable")


def telemetry_columns_of(blocks: Sequence[TelemetryBlock], gangs: Mapping[int, GangRecord]) -> TelemetryColumns:
    """The columns of telemetry records.

    Args:
        blocks: in order.
        gangs: by number.
    """
    ends = np.cumsum([len(block.ranks) for block in blocks], dtype=np.int64).tolist()
    rows = [slice(end - len(block.ranks), end) for block, end in zip(blocks, ends, strict=True)]
    arms: dict[tuple[str, str], int] = {}
    places: dict[RankPlace, int] = {}
    of_gangs = {}
    for number in dict.fromkeys(block.gang for block in blocks):
        gang = gangs[number]
        theirs = map(gang.place, range(gang.world_size))
        of_gangs[number] = np.array([places.setdefault(place, len(places)) for place in theirs], np.int64)
    columns: dict[str, Any] = {
        name: _sayings(blocks, rows, name) if name in _TOLD else _numbers(blocks, rows, name) for name in _READINGS
    }
    columns |= {name: np.zeros(ends[-1] if ends else 0, np.int64) for name in ("arm", "round", "rank", "place")}
    for block, at in zip(blocks, rows, strict=True):
        columns["arm"][at] = arms.setdefault((block.study, block.arm), len(arms))
        columns["round"][at], columns["rank"][at] = block.round, block.ranks
        columns["place"][at] = of_gangs[block.gang][columns["rank"][at]]
    return TelemetryColumns(list(arms), list(places), **columns)


def _numbers(blocks: Sequence[TelemetryBlock], rows: Sequence[slice], name: str) -> FloatArray:
    found = np.full(rows[-1].stop if rows else 0, np.nan)
    for block, at in zip(blocks, rows, strict=True):
        column = getattr(block, name)
        if column is not None:
            found[at] = column.mean if isinstance(column, SpreadColumns) else column
    return found


def _sayings(blocks: Sequence[TelemetryBlock], rows: Sequence[slice], name: str) -> Sayings:
    numbers: dict[Any, int] = {}
    values: list[Any] = []
    which = np.zeros(rows[-1].stop if rows else 0, np.int64)

    def number(value: Any) -> int:
        found = numbers.setdefault(tuple(value.items()) if isinstance(value, dict) else value, len(values))
        if found == len(values):
            values.append(value)
        return found

    for block, at in zip(blocks, rows, strict=True):
        column = getattr(block, name)
        which[at] = list(map(number, column)) if isinstance(column, tuple) else number(column)
    return Sayings(values, which)


NO_TELEMETRY = telemetry_columns_of((), {})
