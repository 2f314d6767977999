"""GPUs whose own errors ended ranks: the GPU, or software that fails on it?

An error such as an illegal memory access may come from a broken GPU or from a wrong kernel, which fails on all ranks
that run it, or on one by chance. So a GPU is at fault for certain if its errors ended its rank in two gangs or more
(three with two ranks, of which chance hits the same one twice in half of the cases), in each of which peers did the
same work without such an error, and in every gang that GPU errors ended on its node. After one gang, or if it worked
alone, it is a suspect. If half of the ranks or more fail alike, none of them is accused; with two ranks,
one may be. An error of NVLink leaves its GPU a suspect however often it comes, because the other end may be at fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.records import GpuErrors, RankGpuError
from pytest_ddpscale.run.verdicts import Verdict

GANGS_FOR_CERTAIN, GANGS_FOR_CERTAIN_OF_TWO = 2, 3


@dataclass(frozen=True)
class GpuError:
    """A GPU whose errors ended its rank.

    Attributes:
        place: of the rank.
        text: what happened and what to do, in a sentence.
        studies: that have no result because of it.
        is_certain: whether the GPU is at fault.
    """

    place: Place
    text: str
    studies: frozenset[str]
    is_certain: bool

    @property
    def culprit(self) -> Culprit:
        """The GPU as a culprit."""
        return Culprit("gpu", (self.place,), self.text, is_certain=self.is_certain)


def gpu_errors_in(evidence: Evidence) -> Sequence[GpuError]:
    """The GPUs whose errors ended ranks of a run, those at fault first."""
    return evidence.once("gpu errors", lambda: find_gpu_errors(evidence.gpu_errors, evidence.ranks_of_errors))


def with_gpu_errors(verdict: Verdict, study_id: str, evidence: Evidence) -> Verdict:
    """A verdict on a study without a result, with the GPUs whose errors are the reason."""
    if verdict.outcome != "error" or verdict.culprits or not evidence.gpu_errors:
        return verdict
    return replace(verdict, culprits=tuple(one.culprit for one in gpu_errors_in(evidence) if study_id in one.studies))


def find_gpu_errors(told: Sequence[GpuErrors], ranks: Sequence[Place]) -> list[GpuError]:
    """The GPUs, those at fault first.

    Args:
        told: of all gangs.
        ranks: places of ranks, later ones of the same rank instead of earlier ones.
    """
    places = {place.of_rank: place for place in ranks}
    devices = {(place.host, place.uuid): place for place in ranks if place.uuid}
    gangs_on: dict[str, set[int]] = defaultdict(set)
    by_gpu: dict[Place, list[tuple[GpuErrors, RankGpuError]]] = defaultdict(list)
    for gang in told:
        for one in gang.errors:
            gangs_on[one.place.host].add(gang.gang)
        for one in gang.errors if _are_few(gang) else ():
            place = devices.get((one.place.host, one.place.uuid)) or places.get(one.place.of_rank)
            by_gpu[place or one.place].append((gang, one))
    found = [_judged(place, own, len(gangs_on[place.host])) for place, own in by_gpu.items()]
    return sorted(found, key=lambda one: not one.is_certain)


def _are_few(gang: GpuErrors) -> bool:
    """Whether fewer than half of the ranks failed, or one of two; a rank alone has no peer to compare with."""
    count = len(gang.errors)
    return count == 1 or 2 * count < gang.ranks


def _judged(place: Place, own: Sequence[tuple[GpuErrors, RankGpuError]], gangs_there: int) -> GpuError:
    compared = {gang.gang for gang, one in own if one.peers >= max(1, len(gang.errors)) and not _is_of_link(one)}
    needed = GANGS_FOR_CERTAIN_OF_TWO if min(gang.ranks for gang, _ in own) == 2 else GANGS_FOR_CERTAIN
    is_certain = needed <= len(compared) == gangs_there
    gangs = len({gang.gang for gang, _ in own})
    errors = dict.fromkeys(one.error for _, one in own)
    text = f"{' and '.join(list(errors)[:2])} ended its rank in {gangs} {'gang' if gangs == 1 else 'gangs'}"
    if is_certain:
        text += ", while its peers did the same work without such an error"
    else:
        why = f"{_why_open(len(compared), gangs, needed)}, so the software may be at fault"
        text += f" ({'either end of the link may be at fault' if all(_is_of_link(one) for _, one in own) else why})"
    return GpuError(
        place, f"{text}; look for its Xid: `dmesg | grep -i xid` on {place.host}", _studies(own), is_certain
    )


def _is_of_link(one: RankGpuError) -> bool:
    """CUDA 220 and 226, which a GPU also has for a fault of a peer whose memory it reads."""
    return "nvlink" in one.error.lower()


def _why_open(compared: int, gangs: int, needed: int) -> str:
    if gangs < needed:
        return "not in a second one" if gangs < GANGS_FOR_CERTAIN else "not in a third one, and there are two ranks"
    return "no peer did the same work" if not compared else "other GPUs failed as well, or no peer did the same work"


def _studies(own: Iterable[tuple[GpuErrors, RankGpuError]]) -> frozenset[str]:
    return frozenset(study for gang, _ in own for study in gang.studies)
