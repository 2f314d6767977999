"""The measurements of one arm, round by round."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.run.column_record import BoolArray, FloatArray, IntArray
from pytest_ddpscale.run.columns import NO_MEASUREMENTS, ArmColumns, Columns, as_slice
from pytest_ddpscale.run.rank_columns import RankColumns
from pytest_ddpscale.run.readings import WAITED_S

TERA, GIGA, GIB = 1e12, 1e9, 2**30
WHOLE = ""  # the place of all ranks that train an arm together


@dataclass(frozen=True, eq=False)
class ArmRounds:
    """Complete rounds of one arm, with the ranks that trained it.

    Values per round have shape (rounds,), values per rank and round (rounds, ranks).

    Attributes:
        measured: the measurements; empty cells where a rank was absent, for example because ranks take turns.
    """

    measured: ArmColumns

    def __len__(self) -> int:
        """Number of rounds."""
        return len(self.measured.numbers)

    @property
    def numbers(self) -> IntArray:
        """Numbers of the rounds, ascending."""
        return self.measured.numbers

    @property
    def ranks(self) -> RankColumns:
        """Rank of each column; each was present in at least one round."""
        return self.measured.ranks

    @property
    def present(self) -> BoolArray:
        """Whether a rank was present, (rounds, ranks)."""
        return np.asarray(self.measured.present)

    @cached_property
    def is_whole(self) -> bool:
        """Whether every rank was present in every round."""
        return bool(self.present.all())

    @cached_property
    def mean_step_s(self) -> FloatArray:
        """Mean step time of each rank's block, in seconds, NaN where it was absent, (rounds, ranks)."""
        return np.asarray(self.measured.seconds / np.where(self.present, self.measured.count, 1))

    @cached_property
    def slowest(self) -> IntArray:
        """Column of the rank whose block took longest; under DDP it sets the pace."""
        return _column_of_most(np.where(self.present, self.mean_step_s, -np.inf))

    @property
    def step_s(self) -> FloatArray:
        """Mean step time of the slowest rank, in seconds."""
        return _at(self.mean_step_s, self.slowest)

    @property
    def waited_s_per_step(self) -> FloatArray:
        """Seconds per step that ranks waited for data, the most of all ranks; NaN with synthetic data."""
        waited_s = self.measured.of_steps(WAITED_S)
        if not waited_s.shape[2]:
            return np.full(len(self), np.nan)
        in_all = np.where(np.isnan(waited_s[:, :, 0]), np.nan, np.nansum(waited_s, axis=2, dtype=np.float64))
        return self._most(in_all / np.where(self.present, self.measured.count, 1))

    @property
    def samples_per_s(self) -> FloatArray:
        """Images each rank trained per second, NaN where it was absent, (rounds, ranks)."""
        return self.measured.per_second

    @cached_property
    def samples_per_s_per_gpu(self) -> FloatArray:
        """Images per second and GPU, at the slowest rank's pace."""
        return _at(self.samples_per_s, self.slowest)

    @cached_property
    def least_busy(self) -> IntArray:
        """Column of the rank with the lowest utilization; -1 if that of any rank is unknown."""
        busy = self.measured.reading("utilization")
        lowest = _column_of_most(np.where(np.isnan(busy), -np.inf, -busy))
        return np.where((np.isnan(busy) & self.present).any(axis=1), -1, lowest)

    @property
    def utilization(self) -> FloatArray:
        """Utilization of the least busy rank; NaN if that of any rank is unknown."""
        return np.where(self.least_busy < 0, np.nan, _at(self.measured.reading("utilization"), self.least_busy))

    @property
    def images_per_joule(self) -> FloatArray:
        """Images per joule of GPU energy, the least of all ranks; NaN if that of any rank is unknown."""
        samples = self.measured.work * self.measured.count
        return -self._most(-samples / _more_than_nothing(self.measured.reading("energy_j")))

    @property
    def peak_memory_bytes(self) -> FloatArray:
        """The most memory of all ranks; NaN if that of any rank is unknown or 0, (rounds,)."""
        return self._most(_more_than_nothing(self.measured.reading("peak_memory_bytes")))

    @property
    def memory_spread(self) -> FloatArray:
        """Maximum minus minimum memory of the ranks, relative to the maximum; NaN if any rank's is unknown."""
        held = _more_than_nothing(self.measured.reading("peak_memory_bytes"))
        most, least = self._most(held), -self._most(-held)
        return (most - least) / most

    @property
    def single_sample_error(self) -> FloatArray:
        """Relative standard error of the step time of an imported single sample.

        The standard deviation of the steps over the square root of their number, as if steps were independent: imported
        files keep no raw steps to estimate their correlation from. NaN for our own rounds.
        """
        error = _at(self.measured.reading("step_stdev_s"), self.slowest) / self.step_s
        error /= np.sqrt(_at(self.measured.count, self.slowest))
        return np.where(self.measured.single_sample, error, np.nan)

    def of(self, rounds: IntArray | BoolArray) -> ArmRounds:
        """Some of the rounds."""
        return ArmRounds(self.measured.of(rounds))

    def _most(self, cells: FloatArray) -> FloatArray:
        """The largest of all ranks; NaN if that of any present rank is unknown, (rounds,)."""
        unknown = np.isnan(cells)
        most = np.max(np.where(unknown, -np.inf, cells), axis=1, initial=-np.inf)
        return np.where((unknown & self.present).any(axis=1), np.nan, most)


NO_ROUNDS = ArmRounds(NO_MEASUREMENTS)


def _column_of_most(cells: FloatArray) -> IntArray:
    return cells.argmax(axis=1) if cells.size else np.zeros(len(cells), np.int64)


def _at(cells: FloatArray | IntArray, columns: IntArray) -> FloatArray:
    """The value of one column in each round, (rounds,)."""
    return cells[np.arange(len(cells)), columns].astype(np.float64)


def _more_than_nothing(cells: FloatArray) -> FloatArray:
    """The cells with NaN for 0: training always takes energy and memory, so 0 means unknown."""
    return np.where(cells > 0, cells, np.nan)


def rounds_begun(columns: Columns, study_id: str) -> set[int]:
    """Numbers of the rounds in which any rank reported on any arm of a study, complete or not."""
    return {number for arm in columns.of_study(study_id) for number in arm.numbers.tolist()}


def hosts_of(columns: Columns, study_id: str) -> list[str]:
    """Names of all hosts with measurements of a study, in alphabetical order."""
    return columns.once(
        ("hosts", study_id), lambda: sorted({host for arm in columns.of_study(study_id) for host in arm.ranks.by_host})
    )


class Groups(NamedTuple):
    """Complete rounds of groups of ranks that each trained the same arms, in the form of `ArmColumns.side_by_side`.

    The place of a group is its host, or `WHOLE` if it is the only one.
    """

    places: tuple[str, ...]
    arms: tuple[ArmRounds, ...]

    def at(self, place: int) -> tuple[ArmRounds, ...]:
        """Rounds of one place, with its ranks alone, of each arm."""
        found = []
        for rows in (one.measured for one in self.arms):
            size, here = rows.present.shape[1], rows.of(rows.node == place)
            ranks = here.ranks.of(slice(place * size, (place + 1) * size))
            numbers = here.numbers // len(self.places)
            found.append(_without_absent(replace(here, ranks=ranks, numbers=numbers, node=np.zeros_like(here.node))))
        return tuple(found)


def last_round(found: Sequence[Groups]) -> int | None:
    """Number of the last round of the measured arm, which is the last of each group's; None without any."""
    ends = [int(one.arms[-1].numbers[-1]) // len(one.places) for one in found if len(one.arms[-1])]
    return max(ends, default=None)


def groups(columns: Columns, study_id: str, arms: Sequence[Arm], layout: Layout) -> list[Groups]:
    """Complete rounds of the groups of ranks that trained some arms; places with equally many ranks are together.

    Each of several nodes is a place if all these arms fit a node; otherwise the only place has the ranks of each arm's
    group with rank 0. Rounds in which a rank is missing are left out, because its pace is unknown. So are blocks with
    another batch size than the arm's, which do other work.
    """
    key = ("groups", study_id, tuple(arms), layout)
    return columns.once(key, lambda: _groups(columns, study_id, arms, layout))


def _groups(columns: Columns, study_id: str, arms: Sequence[Arm], layout: Layout) -> list[Groups]:
    of_arms = [_measured(columns, study_id, arm) for arm in arms]
    if not layout.judged_by_node(arms):
        at = [_with_rank_0(measured, arm, layout) for measured, arm in zip(of_arms, arms, strict=True)]
        whole = (_rows(one, arm, [at_one]) for one, arm, at_one in zip(of_arms, arms, at, strict=True))
        return [Groups((WHOLE,), tuple(_without_absent(rows.measured) for rows in whole))]
    nowhere = np.zeros(0, np.int64)
    alike: dict[tuple[int, ...], dict[str, list[IntArray]]] = {}
    first = {host: int(one.ranks.numbers[at[0]]) for one in of_arms for host, at in one.ranks.by_host.items()}
    for host in sorted(first, key=lambda host: first[host]):  # the order of the columns avoids copies
        at = [measured.ranks.by_host.get(host, nowhere) for measured in of_arms]
        alike.setdefault(tuple(map(len, at)), {})[host] = at
    found = []
    for hosts in alike.values():
        rows = []
        for number, (measured, arm) in enumerate(zip(of_arms, arms, strict=True)):
            places = [at[number] for at in hosts.values()]
            make = partial(_rows, measured, arm, places)
            rows.append(columns.once(("rows", study_id, arm, tuple(hosts)), make))
        found.append(Groups(tuple(hosts), tuple(rows)))
    return found


def _measured(columns: Columns, study_id: str, arm: Arm) -> ArmColumns:
    return columns.arms.get((study_id, arm.name), NO_ROUNDS.measured)


def _with_rank_0(measured: ArmColumns, arm: Arm, layout: Layout) -> IntArray:
    """Columns of the group with rank 0, or of the first node if groups take turns there."""
    if layout.nodes == 1 or arm.world_size > layout.world_size:
        return np.arange(len(measured.ranks))
    ranks = range(layout.ranks_per_node) if layout.takes_turns(arm) else layout.groups(arm)[0]
    return np.flatnonzero(np.isin(measured.ranks.numbers, np.fromiter(ranks, np.int64)))


def _rows(measured: ArmColumns, arm: Arm, places: Sequence[IntArray]) -> ArmRounds:
    """Complete rounds of each place, side by side; `places` are the columns of each, which are equally many."""
    at = np.stack(places)
    is_complete, rows = _are_complete(measured, arm, at).ravel(), measured.side_by_side(at)
    return ArmRounds(rows if is_complete.all() else rows.of(is_complete))


def _are_complete(measured: ArmColumns, arm: Arm, places: IntArray) -> BoolArray:
    """Whether as many ranks were present as the arm has, consecutive if it is packed, (rounds, places).

    Validation checks which of the groups that take turns was due.
    """
    present, numbers = measured.present[:, places], measured.ranks.numbers[places]
    is_complete = (present.sum(axis=2) == arm.world_size) & measured.is_of_work(arm.batch_size)[:, np.newaxis]
    if arm.placement == "packed":
        last = np.max(np.where(present, numbers, -1), axis=2, initial=-1)
        first = np.min(np.where(present, numbers, last[:, :, np.newaxis]), axis=2, initial=np.iinfo(np.int64).max)
        is_complete &= last - first == arm.world_size - 1
    return np.asarray(is_complete)


def _without_absent(measured: ArmColumns) -> ArmRounds:
    """Rounds without ranks that are absent from all of them."""
    there = np.any(measured.present, axis=0)
    return ArmRounds(measured if there.all() else measured.of(slice(None), there))


def merged(columns: Columns, study_id: str, arm: Arm, layout: Layout) -> ArmRounds:
    """Rounds of all groups of ranks that trained the arm: each round has the groups that are complete in it."""
    if not layout.judged_by_node([arm]):
        return groups(columns, study_id, [arm], layout)[0].arms[0]
    key = ("merged", study_id, arm, layout)
    return columns.once(key, lambda: _merged(_measured(columns, study_id, arm), arm))


def _merged(measured: ArmColumns, arm: Arm) -> ArmRounds:
    counts = np.zeros(measured.present.shape, np.bool_)
    by_host = list(measured.ranks.by_host.values())
    for size in sorted(set(map(len, by_host))):
        places = np.stack([at for at in by_host if len(at) == size])
        counts[:, places] = measured.present[:, places] & _are_complete(measured, arm, places)[:, :, np.newaxis]
    if (counts == measured.present).all():
        return ArmRounds(measured)

    def kept(cells: Any) -> Any:
        nothing = cells.dtype.type(np.nan if cells.dtype.kind == "f" else 0)
        return np.where(counts if cells.ndim == 2 else counts[:, :, np.newaxis], cells, nothing)

    return _without_absent(measured.changed(kept).of(np.any(counts, axis=1)))


def on_hosts(rounds: ArmRounds, hosts: Collection[str]) -> ArmRounds:
    """The same rounds with only the ranks on these hosts."""
    by_host = rounds.ranks.by_host
    if all(host in hosts for host in by_host):
        return rounds
    theirs = [np.zeros(0, np.int64), *(by_host[host] for host in hosts if host in by_host)]
    measured = rounds.measured.of(slice(None), as_slice(np.sort(np.concatenate(theirs))))
    return ArmRounds(measured.of(np.any(measured.present, axis=1)))
