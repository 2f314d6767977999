"""Measurements of probes in columns: one array per quantity for each probe, (rounds, ranks)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from pytest_ddpscale.run.column_record import BoolArray, FloatArray, IntArray
from pytest_ddpscale.run.columns import RankColumns, ranks_in_one_place, ranks_of_gang
from pytest_ddpscale.run.probe_record import NO_PEER, ProbeBlock, ProbeMeasurement
from pytest_ddpscale.run.records import GangRecord

ProbeName: TypeAlias = tuple[str, int]  # name of the probe and world size
_PEER_BITS = 31  # enough for the ranks of any gang


@dataclass(frozen=True, eq=False)
class ProbeColumns:
    """Measurements of one probe. Where a rank was absent, numbers are NaN.

    Attributes:
        study: ``probes``.
        probe: its name.
        world_size: number of ranks that run it together.
        numbers: of the rounds, ascending, (rounds,).
        iterations: number of iterations of each rank, (rounds,).
        ranks: rank of each column; for send-recv one column per peer.
        peers: global rank at the other end of a send-recv, `NO_PEER` for all other probes, (ranks,).
        present: whether a rank took part, (rounds, ranks).
        work: of one iteration: floating-point operations or bytes, (rounds, ranks).
        seconds: duration of all iterations, (rounds, ranks).
        started_unix_s: start of the iterations, seconds since 1970 UTC, (rounds, ranks).
        is_correct: whether the result is right, (rounds, ranks).
        kept: cache of values derived from `ranks` and `peers`, by any unique key.
    """

    study: str
    probe: str
    world_size: int
    numbers: IntArray
    iterations: IntArray
    ranks: RankColumns
    peers: IntArray
    present: BoolArray
    work: FloatArray
    seconds: FloatArray
    started_unix_s: FloatArray
    is_correct: BoolArray
    kept: dict[Any, Any] = field(default_factory=dict)

    def is_of_ranks_of(self, other: ProbeColumns) -> bool:
        """Whether both have the same columns."""
        return np.array_equal(self.peers, other.peers) and self.ranks.is_same(other.ranks)

    @property
    def per_second(self) -> FloatArray:
        """Work done per second, in its unit, (rounds, ranks)."""
        return self.work * self.iterations[:, np.newaxis] / self.seconds

    @property
    def wrong(self) -> BoolArray:
        """Where a result is wrong, (rounds, ranks)."""
        return self.present & ~self.is_correct

    def only(self, cells: BoolArray) -> ProbeColumns:
        """The same with only these cells present."""
        return replace(self, present=self.present & cells)

    def rank_by_rank(self) -> list[ProbeMeasurement]:
        """The measurements one by one, round by round, to inspect a few of them."""
        rows, columns = np.nonzero(self.present)
        who = self.ranks
        return [
            ProbeMeasurement(
                self.study, self.probe, self.world_size, int(self.numbers[row]), int(who.numbers[i]),
                int(who.local_ranks[i]), who.hosts[i], who.devices[i], float(self.work[row, i]),
                int(self.iterations[row]), float(self.seconds[row, i]), float(self.started_unix_s[row, i]),
                bool(self.is_correct[row, i]), None if self.peers[i] == NO_PEER else int(self.peers[i]),
            )
            for row, i in zip(rows.tolist(), columns.tolist(), strict=True)
        ]  # fmt: skip


class GrowingProbes:
    """Columns of probes to which blocks are added during the measurement."""

    def __init__(self) -> None:
        self._gangs: dict[int, RankColumns] = {}
        self._blocks: dict[ProbeName, list[ProbeBlock]] = {}
        self._columns: dict[ProbeName, ProbeColumns] = {}
        self._before: dict[ProbeName, ProbeColumns] = {}

    def add_gang(self, gang: GangRecord) -> None:
        """Add the ranks of a launch, before their measurements."""
        self._gangs[gang.gang] = ranks_of_gang(gang)

    def add(self, block: ProbeBlock) -> None:
        """Add a block. If a block was measured twice, the earlier one counts."""
        key = block.probe, block.world_size
        self._blocks.setdefault(key, []).append(block)
        self._columns.pop(key, None)

    def columns(self) -> Mapping[ProbeName, ProbeColumns]:
        """Columns of all added blocks, by probe. Raises ValueError if a rank was probed in two places."""
        for key, blocks in self._blocks.items():
            if key not in self._columns:
                found, before = _columns(blocks, self._gangs), self._before.get(key)
                if before is not None and found.is_of_ranks_of(before):
                    found = replace(found, kept=before.kept)
                self._columns[key] = self._before[key] = found
        return dict(self._columns)


def probe_columns_of(blocks: Iterable[ProbeBlock], gangs: Iterable[GangRecord]) -> Mapping[ProbeName, ProbeColumns]:
    """The columns of probe blocks, which may be in any order.

    Args:
        blocks: one for each probe and round.
        gangs: the gangs that measured them.

    Raises:
        ValueError: a rank was probed in two places.
    """
    growing = GrowingProbes()
    for gang in gangs:
        growing.add_gang(gang)
    for block in blocks:
        growing.add(block)
    return growing.columns()


def _columns(blocks: Sequence[ProbeBlock], gangs: Mapping[int, RankColumns]) -> ProbeColumns:
    earliest: dict[int, ProbeBlock] = {}
    for block in sorted(blocks, key=_age, reverse=True):
        earliest[block.round] = block
    numbers = sorted(earliest)
    ends = {number: _ends(earliest[number]) for number in numbers}
    first = ends[numbers[0]]
    is_steady = all(np.array_equal(theirs, first) for theirs in ends.values())
    everybody = np.unique(first if is_steady else np.concatenate(list(ends.values())))
    shape = len(numbers), len(everybody)
    present, is_correct = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    cells: dict[str, Any] = {name: np.full(shape, np.nan) for name in ("work", "seconds", "started_unix_s")}
    at = np.zeros(0, np.int64)
    for row, number in enumerate(numbers):
        block = earliest[number]
        if not row or not is_steady:
            at = np.searchsorted(everybody, ends[number])
        present[row, at], is_correct[row, at] = True, block.is_correct
        for name, values in cells.items():
            values[row, at] = getattr(block, name)
    last = earliest[numbers[-1]]
    who = ranks_in_one_place({block.gang: gangs[block.gang] for block in earliest.values()}, everybody >> _PEER_BITS)
    return ProbeColumns(
        study=last.study,
        probe=last.probe,
        world_size=last.world_size,
        numbers=np.array(numbers, np.int64),
        iterations=np.array([earliest[number].iterations for number in numbers], np.int64),
        ranks=who,
        peers=(everybody & (2**_PEER_BITS - 1)) + NO_PEER,
        present=present,
        is_correct=is_correct,
        **cells,
    )


def _ends(block: ProbeBlock) -> IntArray:
    """Rank and peer of each entry of a block in one number, ordered by rank, then by peer."""
    peers = NO_PEER if block.peers is None else block.each("peers")
    ends: IntArray = (block.each("ranks") << _PEER_BITS) + (peers - NO_PEER)
    return ends


def _age(block: ProbeBlock) -> tuple[float, float]:
    """Sort key that makes the order of records irrelevant, even of two that began at the same time."""
    return float(np.min(block.started_unix_s)), float(np.max(block.seconds))
