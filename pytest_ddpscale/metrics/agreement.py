"""Whether all ranks computed the same, bit for bit.

DDP keeps replicas identical by construction: all start from the same parameters and apply the same averaged
gradients (Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", arXiv
2006.15704). A rank whose parameters differ got other gradients, or computed the update otherwise. A rank
whose own result of a seeded step differs computes otherwise than the others, which DDP would average away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from pytest_ddpscale.metrics.rounds import ArmRound, Rounds
from pytest_ddpscale.results.records import Measurement


@dataclass(frozen=True)
class Disagreement:
    """A rank that computed otherwise than most.

    Attributes:
        rank: global rank.
        host: host name.
        local_rank: rank on its host.
        device: GPU UUID, or ``cpu``.
        ranks: how many ranks were compared.
        rounds_different: in how many rounds its parameters were not those of most ranks.
        rounds: how many rounds had the checksums of all ranks.
        seeded_step_differs: whether its own result of the seeded step is not that of most ranks.
        ambiguous: no result is that of more than half of the ranks, so that nobody can say who is right.
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
        """What was seen: ``parameters unlike most of 8 ranks in 2 of 9 rounds``."""
        unlike = f"differ between the {self.ranks} ranks" if self.ambiguous else f"unlike most of {self.ranks} ranks"
        found = []
        if self.rounds_different:
            found.append(f"parameters {unlike} in {self.rounds_different} of {self.rounds} rounds")
        if self.seeded_step_differs:
            found.append(f"gradients of one seeded step, each computed alone, {unlike}")
        if self.ambiguous:
            found.append("no result is that of more than half, so that it cannot be told who is right")
        return "; ".join(found)


def agreeing_share(arm_round: ArmRound, seeded: Mapping[int, str]) -> float | None:
    """Share of ranks in the largest group whose parameters and seeded step are equal to each other's.

    1 if all agree. Two ranks that differ are two groups of one, neither of them a majority: 0.5.

    Returns:
        None if any rank's checksum of either kind is missing: what is not known does not agree.
    """
    if not _is_complete(arm_round, seeded):
        return None
    pairs = Counter((rank.parameters_checksum, seeded[rank.rank]) for rank in arm_round.ranks)
    return max(pairs.values()) / len(arm_round.ranks)


def disagreeing_ranks(measured_ddp: Rounds, seeded: Mapping[int, str]) -> list[Disagreement]:
    """Ranks that are unlike more than half of the ranks, in parameters or in the seeded step, in rank order.

    Where no result is that of more than half, as with two ranks that differ, all ranks are named, as
    `Disagreement.ambiguous`. Rounds in which a checksum of parameters is missing are left out; so are seeded steps
    unless those of all ranks are there.

    Args:
        measured_ddp: rounds of an arm with communication.
        seeded: checksum of the step that each rank computed by itself, by rank.
    """
    if not measured_ddp:
        return []
    latest = measured_ddp[max(measured_ddp)].ranks
    rounds = [measured_ddp[n] for n in sorted(measured_ddp) if _has_checksums(measured_ddp[n])]
    theirs = {rank.rank: seeded[rank.rank] for rank in latest if seeded.get(rank.rank)}
    odd_seeded, seeded_is_open = _unlike_most(theirs) if len(theirs) == len(latest) else (set(), False)
    parameters = [_unlike_most({rank.rank: rank.parameters_checksum for rank in r.ranks}) for r in rounds]
    open_ranks = {rank for odd, is_open in parameters if is_open for rank in odd}
    different = Counter(rank for odd, _ in parameters for rank in odd)
    return [
        _disagreement(
            rank, len(latest), different[rank.rank], len(rounds), rank.rank in odd_seeded,
            ambiguous=rank.rank in open_ranks or (seeded_is_open and rank.rank in odd_seeded),
        )
        for rank in latest
        if different[rank.rank] or rank.rank in odd_seeded
    ]  # fmt: skip


def _is_complete(arm_round: ArmRound, seeded: Mapping[int, str]) -> bool:
    return _has_checksums(arm_round) and all(seeded.get(rank.rank) for rank in arm_round.ranks)


def _has_checksums(arm_round: ArmRound) -> bool:
    return all(rank.parameters_checksum for rank in arm_round.ranks)


def ranks_unlike_most(results: Mapping[int, Hashable]) -> set[int]:
    """Ranks whose result is not the one that more than half have; nobody if there is none such.

    Args:
        results: by rank.
    """
    odd, is_open = _unlike_most(results) if results else (set(), True)
    return set() if is_open else odd


def _unlike_most(results: Mapping[int, Hashable]) -> tuple[set[int], bool]:
    """Ranks without the result that more than half have, and whether there is none such: then it is all ranks."""
    result, count = Counter(results.values()).most_common(1)[0]
    is_open = 2 * count <= len(results)
    return {rank for rank, theirs in results.items() if is_open or theirs != result}, is_open


def _disagreement(
    rank: Measurement, ranks: int, different: int, rounds: int, seeded_differs: bool, *, ambiguous: bool
) -> Disagreement:
    return Disagreement(
        rank.rank, rank.host, rank.local_rank, rank.device, ranks, different, rounds, seeded_differs, ambiguous
    )
