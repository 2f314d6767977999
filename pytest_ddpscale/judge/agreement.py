"""Whether all ranks computed the same results, bit for bit.

DDP keeps replicas identical by construction: all start from the same parameters and apply the same averaged
gradients (Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", arXiv
2006.15704). A rank whose parameters differ received other gradients or computed the update differently. A rank
whose own result of a seeded step differs computes differently from the others, which DDP's averaging would hide.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ddpscale.judge.rounds import ArmRounds
from pytest_ddpscale.run.column_record import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Disagreement:
    """A rank whose results differ from those of most ranks.

    Attributes:
        rank: global rank.
        host: host name.
        local_rank: rank on its host.
        device: GPU UUID, or ``cpu``.
        ranks: how many ranks were compared.
        rounds_different: number of rounds in which its parameters differed from those of most ranks.
        rounds: number of rounds with checksums of all ranks.
        seeded_step_differs: whether its own result of the seeded step differs from that of most ranks.
        ambiguous: no result is shared by more than half of the ranks, so it is unknown which is right.
    """

    rank: int
    host: str
    local_rank: int
    device: str
    ranks: int
    rounds_different: int
    rounds: int
    seeded_step_differs: bool
    ambiguous: bool

    @property
    def evidence(self) -> str:
        """The difference in words: ``parameters differ from most of 8 ranks in 2 of 9 rounds``."""
        unlike = f"differ {'between the' if self.ambiguous else 'from most of'} {self.ranks} ranks"
        found = []
        if self.rounds_different:
            found.append(f"parameters {unlike} in {self.rounds_different} of {self.rounds} rounds")
        if self.seeded_step_differs:
            found.append(f"gradients of one seeded step, each computed alone, {unlike}")
        if self.ambiguous:
            found.append("no result is shared by more than half of the ranks, so it is unknown which is right")
        return "; ".join(found)


def agreeing_share(measured: ArmRounds, seeded: Mapping[int, str]) -> FloatArray:
    """Share of ranks in the largest group with equal parameters and an equal seeded step, (rounds,).

    1 if all agree. Two ranks that differ are two groups of one, neither a majority: 0.5. NaN if any rank lacks a
    checksum of either kind: an unknown result does not count as agreement.
    """
    parameters = measured.measured.digest
    own = _seeded_of(measured, seeded)[measured.measured.rank_of_cell]
    is_known = ~((measured.present & ((parameters == 0) | (own == 0))).any(axis=1))
    found = np.where(is_known, 1.0, np.nan)
    for row in np.flatnonzero(is_known & rows_that_differ(measured, seeded)):
        there = measured.present[row]
        of_round = np.unique(parameters[row, there], return_inverse=True)[1] * (len(seeded) + 2) + own[row, there]
        found[row] = _most_alike(of_round)[1] / len(of_round)
    return found


def rows_that_differ(rows: ArmRounds, seeded: Mapping[int, str]) -> BoolArray:
    """Rounds in which results of ranks differ or one is missing, (rounds,); only these can name a rank."""
    own, parameters = _seeded_of(rows, seeded)[rows.measured.rank_of_cell], rows.measured.digest
    first = rows.present.argmax(axis=1)[:, np.newaxis] if parameters.shape[1] else np.zeros((len(rows), 0), np.int64)
    is_alike = (parameters == np.take_along_axis(parameters, first, 1)) & (own == np.take_along_axis(own, first, 1))
    return np.asarray(~(is_alike | ~rows.present).all(axis=1))


def disagreeing_ranks(measured_ddp: ArmRounds, seeded: Mapping[int, str]) -> list[Disagreement]:
    """Ranks that differ from more than half of the ranks, in parameters or in the seeded step, in rank order.

    If no result is shared by more than half, for example with two ranks that differ, all ranks are returned as
    `Disagreement.ambiguous`. Rounds that lack a checksum of parameters are skipped. Seeded steps are compared only
    if all ranks have one.

    Args:
        measured_ddp: rounds of an arm with communication.
        seeded: checksum of the seeded step that each rank computed alone, by rank.
    """
    if not len(measured_ddp):
        return []
    ranks, parameters, present = measured_ddp.ranks, measured_ddp.measured.digest, measured_ddp.present
    latest, own = present[-1], _seeded_of(measured_ddp, seeded)
    if measured_ddp.is_whole and (own == own[0]).all() and (parameters == parameters[:, :1]).all():
        return []  # the fast path of healthy clusters
    odd_seeded, is_open = np.zeros(len(ranks), np.bool_), np.zeros(len(ranks), np.bool_)
    if own[latest].all():
        odd_seeded[latest], seeded_is_open = _unlike_most(own[latest])
        is_open |= odd_seeded & seeded_is_open
    rounds = np.flatnonzero(~(present & (parameters == 0)).any(axis=1))
    different = np.zeros(len(ranks), np.int64)
    for row in rounds:
        odd = np.zeros(len(ranks), np.bool_)
        odd[present[row]], row_is_open = _unlike_most(parameters[row, present[row]])
        different += odd
        is_open |= odd & row_is_open
    return [
        Disagreement(
            int(ranks.numbers[i]), str(ranks.hosts[i]), int(ranks.local_ranks[i]), str(ranks.devices[i]),
            int(latest.sum()), int(different[i]), len(rounds), bool(odd_seeded[i]), bool(is_open[i]),
        )
        for i in np.flatnonzero(_still_there(present) & ((different > 0) | odd_seeded))
    ]  # fmt: skip


def _still_there(present: BoolArray) -> BoolArray:
    """Ranks of the latest round; of any round if all rounds have equally many ranks, because groups may take turns."""
    sizes = present.sum(axis=1)
    return np.asarray(present.any(axis=0) if (sizes == sizes[0]).all() else present[-1])


def ranks_unlike_most(results: Mapping[int, Hashable]) -> set[int]:
    """Ranks whose result differs from that of the majority; empty without a majority.

    Args:
        results: by rank.
    """
    if not results:
        return set()
    odd, is_open = _unlike_most(_numbered(list(results.values())))
    return set() if is_open else {rank for rank, is_odd in zip(results, odd, strict=True) if is_odd}


def _seeded_of(measured: ArmRounds, seeded: Mapping[int, str]) -> IntArray:
    """A number for each rank's result of the seeded step, 0 where there is none, (ranks,)."""
    return _numbered([seeded.get(rank) for rank in measured.ranks.numbers.tolist()])


def _numbered(results: Sequence[Hashable]) -> IntArray:
    """Equal numbers for equal results, 0 for none."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(one, len(numbers) + 1) if one else 0 for one in results], np.int64)


def _unlike_most(results: IntArray) -> tuple[BoolArray, bool]:
    """Which results differ from the majority's, and whether there is no majority; without one, all of them do."""
    result, count = _most_alike(results)
    is_open = 2 * count <= len(results)
    return (results != result) | is_open, is_open


def _most_alike(results: IntArray) -> tuple[int, int]:
    """The most frequent result and its count."""
    if (results == results[0]).all():
        return int(results[0]), len(results)
    values, counts = np.unique(results, return_counts=True)
    return int(values[counts.argmax()]), int(counts.max())
