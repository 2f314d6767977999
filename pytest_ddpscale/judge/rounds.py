"""The measurements of one arm, round by round."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.run.column_record import BoolArray, FloatArray, IntArray
from pytest_ddpscale.run.columns import NO_MEASUREMENTS, OF_A_ROW, ArmColumns, Columns, as_slice, combined
from pytest_ddpscale.run.rank_columns import RankColumns, ranks_side_by_side
from pytest_ddpscale.run.readings import WAITED_S

GIB = 2**30


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
        return self.measured.present

    @cached_property
    def is_whole(self) -> bool:
        """Whether every rank was present in every round."""
        return bool(self.present.all())

    @cached_property
    def mean_step_s(self) -> FloatArray:
        """Mean step time of each rank's block, in seconds, NaN where it was absent, (rounds, ranks)."""
        return self.measured.seconds / np.where(self.present, self.measured.count, 1)

    @cached_property
    def slowest(self) -> IntArray:
        """Column of the rank whose block took longest; under DDP it sets the pace."""
        return _column_of_most(np.where(self.present, self.mean_step_s, -np.inf))

    @property
    def _samples(self) -> FloatArray:
        """Samples that each rank trained, (rounds, ranks)."""
        return self.measured.work * self.measured.count

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
        share = in_all / np.where(self.present, self.measured.count, 1)
        return np.where(
            self._is_known(share), np.max(np.where(np.isnan(share), 0.0, share), axis=1, initial=0.0), np.nan
        )

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
        return np.where(self._is_known(busy), lowest, -1)

    @property
    def utilization(self) -> FloatArray:
        """Utilization of the least busy rank; NaN if that of any rank is unknown."""
        return np.where(self.least_busy < 0, np.nan, _at(self.measured.reading("utilization"), self.least_busy))

    @property
    def images_per_joule(self) -> FloatArray:
        """Images per joule of GPU energy, the least of all ranks; NaN if that of any rank is unknown."""
        per_joule = self._samples / _more_than_nothing(self.measured.reading("energy_j"))
        least = np.min(np.where(np.isnan(per_joule), np.inf, per_joule), axis=1, initial=np.inf)
        return np.where(self._is_known(per_joule), least, np.nan)

    @property
    def peak_memory_gib(self) -> FloatArray:
        """Most memory any rank held, in GiB; NaN if any rank's is unknown."""
        return self._held_bytes[0] / GIB

    @property
    def memory_spread(self) -> FloatArray:
        """Maximum minus minimum memory of the ranks, relative to the maximum; NaN if any rank's is unknown."""
        most, least = self._held_bytes
        return (most - least) / most

    @cached_property
    def _held_bytes(self) -> tuple[FloatArray, FloatArray]:
        """Maximum and minimum memory of the ranks, in bytes; NaN if any rank's is unknown."""
        held = _more_than_nothing(self.measured.reading("peak_memory_bytes"))
        is_known = self._is_known(held)
        most = np.max(np.where(np.isnan(held), -np.inf, held), axis=1, initial=-np.inf)
        least = np.min(np.where(np.isnan(held), np.inf, held), axis=1, initial=np.inf)
        return np.where(is_known, most, np.nan), np.where(is_known, least, np.nan)

    @property
    def single_sample_error(self) -> FloatArray | None:
        """Relative standard error of the step time of an imported single sample.

        The standard deviation of the steps over the square root of their number, as if steps were
        independent: imported files keep no raw steps to estimate their correlation from.
        NaN for measured rounds, whose error comes from the rounds; None without imported rounds.
        """
        if not self.measured.single_sample.any():
            return None
        error = _at(self.measured.reading("step_stdev_s"), self.slowest) / self.step_s
        error /= np.sqrt(_at(self.measured.count, self.slowest))
        return np.where(self.measured.single_sample, error, np.nan)

    def of(self, rounds: IntArray | BoolArray) -> ArmRounds:
        """Some of the rounds."""
        return ArmRounds(self.measured.of(rounds))

    def _is_known(self, cells: FloatArray) -> BoolArray:
        """Whether every present rank has a value, (rounds,)."""
        unknown = np.isnan(cells) & self.present
        return np.asarray(~unknown.any(axis=1))


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


def arm_rounds(columns: Columns, study_id: str, arm: Arm, ranks: Collection[int] | None = None) -> ArmRounds:
    """All complete rounds of one group of ranks of an arm.

    Rounds in which a rank is missing are left out, because its pace is unknown. So are blocks with another batch size
    than the arm's, which do other work.

    Args:
        columns: all measurements.
        study_id: the study.
        arm: the arm.
        ranks: the group; other groups are ignored. None for one group of consecutive ranks in each round, for example
            groups that take turns on a node; an extra rank makes a round unusable.
    """
    key = ("arm_rounds", study_id, arm, None if ranks is None else tuple(ranks))
    if key not in columns.kept:
        columns.kept[key] = _arm_rounds(columns, study_id, arm, ranks)
    found: ArmRounds = columns.kept[key]
    return found


def _arm_rounds(columns: Columns, study_id: str, arm: Arm, ranks: Collection[int] | None) -> ArmRounds:
    measured = columns.arms.get((study_id, arm.name))
    if measured is None:
        return NO_ROUNDS
    if ranks is not None:
        measured = measured.of(slice(None), np.isin(measured.ranks.numbers, np.fromiter(ranks, np.int64)))
    is_of_neighbours = ranks is None or len(ranks) != arm.world_size
    return _complete(measured, arm, _is_one_group(measured, arm) if is_of_neighbours else _is_whole(measured, arm))


def _complete(measured: ArmColumns, arm: Arm, is_complete: BoolArray) -> ArmRounds:
    """Complete rounds with the batch size of the arm, without ranks that are absent from all of them."""
    is_complete = is_complete & measured.is_of_work(arm.batch_size)
    found = measured if is_complete.all() else measured.of(is_complete)
    there = np.any(found.present, axis=0)
    return ArmRounds(found if there.all() else found.of(slice(None), there))


def _is_whole(measured: ArmColumns, arm: Arm) -> BoolArray:
    """Whether as many ranks were present as the arm has, (rounds,)."""
    return np.asarray(measured.present.sum(axis=1) == arm.world_size)


def _is_one_group(measured: ArmColumns, arm: Arm) -> BoolArray:
    """Whether as many consecutive ranks were present as the arm has, (rounds,); validation checks which were due."""
    present, size = measured.present, arm.world_size
    if not present.shape[1]:
        return np.zeros(len(present), np.bool_)
    numbers, first = measured.ranks.numbers, present.argmax(axis=1)
    last = present.shape[1] - 1 - present[:, ::-1].argmax(axis=1)
    return np.asarray(_is_whole(measured, arm) & (numbers[last] - numbers[first] == size - 1))


def hosts_of(columns: Columns, study_id: str) -> list[str]:
    """Names of all hosts with measurements of a study, in alphabetical order."""
    key = ("hosts", study_id)
    if key not in columns.kept:
        columns.kept[key] = sorted({host for arm in columns.of_study(study_id) for host in arm.ranks.by_host})
    found: list[str] = columns.kept[key]
    return found


def node_rounds(columns: Columns, study_id: str, arm: Arm, host: str) -> ArmRounds:
    """Complete rounds of one host, of an arm that fits a node."""
    key = ("node_rounds", study_id, arm, host)
    if key not in columns.kept:
        columns.kept[key] = _node_rounds(columns, study_id, arm, host)
    found: ArmRounds = columns.kept[key]
    return found


def _node_rounds(columns: Columns, study_id: str, arm: Arm, host: str) -> ArmRounds:
    at = _columns_by_host(columns, study_id, arm).get(host)
    if at is None:
        return NO_ROUNDS
    measured = columns.arms[study_id, arm.name].of(slice(None), as_slice(at))
    return _complete(measured, arm, _is_one_group(measured, arm))


class RowsOfNodes(NamedTuple):
    """Complete rounds of nodes that each trained the same arms alone, in the form of `ArmColumns.side_by_side`.

    Attributes:
        hosts: host of each node.
        arms: the rounds of each requested arm.
    """

    hosts: tuple[str, ...]
    arms: tuple[ArmRounds, ...]


def rows_of_nodes(columns: Columns, study_id: str, arms: Sequence[Arm]) -> list[RowsOfNodes]:
    """Rows of all hosts that measured these arms, each of which fits a node; one group per number of ranks."""
    key = ("rows_of_nodes", study_id, tuple(arms))
    if key not in columns.kept:
        columns.kept[key] = _rows_of_nodes(columns, study_id, arms)
    found: list[RowsOfNodes] = columns.kept[key]
    return found


def _rows_of_nodes(columns: Columns, study_id: str, arms: Sequence[Arm]) -> list[RowsOfNodes]:
    by_host = [_columns_by_host(columns, study_id, arm) for arm in arms]
    alike: dict[tuple[int, ...], list[str]] = {}
    for host in sorted(by_host[0], key=lambda host: int(by_host[0][host][0])):  # rank order avoids copies
        if all(host in theirs for theirs in by_host):
            alike.setdefault(tuple(len(theirs[host]) for theirs in by_host), []).append(host)
    return [
        RowsOfNodes(tuple(hosts), tuple(_rows(columns, study_id, arm, tuple(hosts)) for arm in arms))
        for hosts in alike.values()
    ]


def _rows(columns: Columns, study_id: str, arm: Arm, hosts: tuple[str, ...]) -> ArmRounds:
    key = ("rows", study_id, arm, hosts)
    if key not in columns.kept:
        by_host = _columns_by_host(columns, study_id, arm)
        rows = columns.arms[study_id, arm.name].side_by_side(np.stack([by_host[host] for host in hosts]))
        is_complete = _is_whole(rows, arm) & rows.is_of_work(arm.batch_size)
        columns.kept[key] = ArmRounds(rows if is_complete.all() else rows.of(is_complete))
    found: ArmRounds = columns.kept[key]
    return found


def _columns_by_host(columns: Columns, study_id: str, arm: Arm) -> dict[str, IntArray]:
    """Columns of the ranks that trained an arm, by host."""
    measured = columns.arms.get((study_id, arm.name))
    return {} if measured is None else dict(measured.ranks.by_host)


def on_hosts(rounds: ArmRounds, hosts: Collection[str]) -> ArmRounds:
    """The same rounds with only the ranks on these hosts."""
    by_host = rounds.ranks.by_host
    if all(host in hosts for host in by_host):
        return rounds
    theirs = [np.zeros(0, np.int64), *(by_host[host] for host in hosts if host in by_host)]
    measured = rounds.measured.of(slice(None), as_slice(np.sort(np.concatenate(theirs))))
    return ArmRounds(measured.of(np.any(measured.present, axis=1)))


def group_rounds(columns: Columns, study_id: str, arm: Arm, layout: Layout) -> Sequence[ArmRounds]:
    """Complete rounds of each group of ranks that trained the arm at the same time, the group of rank 0 first."""
    if layout.nodes == 1:
        return [arm_rounds(columns, study_id, arm)]
    if not layout.fits_node(arm):
        return [arm_rounds(columns, study_id, arm, layout.groups(arm)[0])]
    measured = columns.arms.get((study_id, arm.name))
    if measured is None:
        return []
    by_host = {host: int(measured.ranks.numbers[at].min()) for host, at in measured.ranks.by_host.items()}
    return [node_rounds(columns, study_id, arm, host) for host in sorted(by_host, key=lambda host: by_host[host])]


def all_groups(columns: Columns, study_id: str, arm: Arm, layout: Layout) -> ArmRounds:
    """Rounds of all groups of ranks that trained the arm, merged: each round has the groups that are complete in it."""
    key = ("all_groups", study_id, arm, layout)
    if key not in columns.kept:
        columns.kept[key] = _all_groups(columns, study_id, arm, layout)
    found: ArmRounds = columns.kept[key]
    return found


def _all_groups(columns: Columns, study_id: str, arm: Arm, layout: Layout) -> ArmRounds:
    measured = columns.arms.get((study_id, arm.name))
    if measured is not None and layout.nodes > 1 and layout.fits_node(arm):
        complete = sum(int(rows.arms[0].present.sum()) for rows in rows_of_nodes(columns, study_id, [arm]))
        if complete == measured.present.sum():
            return ArmRounds(measured)
    return together(group_rounds(columns, study_id, arm, layout))


def together(groups: Iterable[ArmRounds]) -> ArmRounds:
    """Rounds of several groups, merged: each round has the ranks of all groups that are complete in it."""
    found = [group.measured for group in groups if len(group)]
    if len(found) < 2:
        return ArmRounds(found[0]) if found else NO_ROUNDS
    found.sort(key=lambda group: int(group.ranks.numbers[0]))
    return ArmRounds(_side_by_side(found, np.unique(np.concatenate([group.numbers for group in found]))))


def one_after_another(launches: Iterable[ArmRounds]) -> ArmRounds:
    """Rounds of several launches in sequence, renumbered; launches whose ranks differ from the first's are left out."""
    found = [launch.measured for launch in launches if len(launch)]
    same = [one for one in found if one.ranks.is_same(found[0].ranks)]
    if len(same) < 2:
        return ArmRounds(same[0]) if same else NO_ROUNDS

    def in_sequence(several: Sequence[Any]) -> Any:
        most = max(one.shape[-1] for one in several)
        padded = (np.pad(one, ((0, 0), (0, 0), (0, most - one.shape[2])), constant_values=np.nan) for one in several)
        return np.concatenate(list(padded) if several[0].ndim == 3 else several)

    of_rows = {name: in_sequence([getattr(one, name) for one in same]) for name in OF_A_ROW}
    of_rows["numbers"] = np.arange(len(of_rows["numbers"]))
    return ArmRounds(combined(same, in_sequence, **of_rows))


def _side_by_side(groups: Sequence[ArmColumns], numbers: IntArray) -> ArmColumns:
    """Columns of several groups of one arm, merged, with all rounds that any of them has."""
    ends = np.cumsum([len(group.ranks) for group in groups])
    rows = [np.searchsorted(numbers, group.numbers) for group in groups]

    def merged(several: Sequence[Any]) -> Any:
        most = [max(one.shape[2] for one in several)] if several[0].ndim == 3 else []
        found: Any = np.full(
            (len(numbers), ends[-1], *most), np.nan if several[0].dtype.kind == "f" else 0, several[0].dtype
        )
        for at, end, one in zip(rows, ends.tolist(), several, strict=True):
            where = (at, slice(end - one.shape[1], end), *map(slice, one.shape[2:]))
            found[where] = one
        return found

    of_rows = {name: np.zeros(len(numbers), np.int64) for name in OF_A_ROW}
    for at, group in zip(rows, groups, strict=True):
        for name, values in of_rows.items():
            values[at] = getattr(group, name)
    return combined(groups, merged, ranks=ranks_side_by_side([group.ranks for group in groups]), **of_rows)
