"""Probes with wrong results, which fail whatever their speed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pytest_ddpscale.judge.probe_culprits import shared_end
from pytest_ddpscale.judge.values import JudgedPlace, place_of
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.run.verdicts import WRONG_DATA, Verdict
from pytest_ddpscale.util.listing import first_few


class _Result(NamedTuple):
    """One rank in one block; `peers` are the ranks that it worked with, itself included."""

    round: int
    rank: int
    device: Place
    peers: tuple[int, ...]
    is_correct: bool

    @property
    def host(self) -> str:
        return self.device.host


def _rank_by_rank(probed: ArmRounds) -> list[_Result]:
    found = []
    for row, number in enumerate(probed.numbers.tolist()):
        there, groups = np.flatnonzero(probed.present[row]), probed.groups[row]
        peers: dict[int, list[int]] = defaultdict(list)
        for column in there.tolist():
            peers[int(groups[column])].append(int(probed.ranks.numbers[column]))
        for column in there.tolist():
            rank, place = probed.ranks.who(column)
            with_it, is_correct = tuple(peers[int(groups[column])]), not probed.wrong[row, column]
            found.append(_Result(number, rank, place, with_it, is_correct))
    return found


def with_wrong_data(verdict: Verdict, probe: Arm, probed: ArmRounds) -> Verdict:
    """The verdict on speed, failed if any result was wrong, in complete rounds or not: results are not random.

    A device that works alone is at fault. In a collective a rank that sees wrong data is only a witness, because others
    may have sent it. Then the node that all ranks of the group are on is certainly at fault, and no GPU is.
    """
    if not probed.wrong.any():
        return verdict
    measured = _rank_by_rank(probed)
    wrong = [one for one in measured if not one.is_correct]
    if probe.operation.kind == "send-recv":
        named = _of_pairs(probe, wrong, measured)
    elif probe.operation.is_single_device:
        named = _of_witnesses(wrong, measured, _did(probe), is_certain=True)
    else:
        named = _of_group(probe, wrong, measured)
    culprits = tuple(replace(one, computed_wrong=True) for one in named)
    accused = {culprit.identity for culprit in culprits}
    others = tuple(culprit for culprit in verdict.culprits if culprit.identity not in accused)
    names = list(dict.fromkeys(f"{one.device.number} of {one.host}" for one in wrong))
    reason = f"{_did(probe)} wrong data, as seen by {first_few(names)} ({_rounds(wrong, measured)})"
    if verdict.outcome in ("failed", "error"):
        reason += f"; also: {verdict.reason}"
    flags = (*verdict.flags, WRONG_DATA)
    return replace(verdict, outcome="failed", reason=reason, culprits=(*culprits, *others), flags=flags)


def unasked_wrong_data(evidence: Evidence, asked: Collection[str]) -> list[str]:
    """Probes with wrong results on which the run judges nothing, one sentence each: the result counts all the same.

    A run measures such probes for the load that node checks need, or was measured with another thresholds file.

    Args:
        evidence: of the run.
        asked: names of the probes that its requirements are about, at each world size (`Arm.name`).
    """
    found = []
    for probed in evidence.probes:
        if probed.arm not in asked and probed.wrong.any():
            rows, columns = np.nonzero(probed.wrong)
            places = dict.fromkeys(probed.ranks.who(int(column))[1] for column in columns)
            names = first_few([f"{one.number} of {one.host}" for one in places])
            rounds = f"{len(set(rows.tolist()))} of {len(probed.numbers)} rounds"
            found.append(f"wrong data in the probe {probed.arm}, as seen by {names} ({rounds})")
    return found


def _of_witnesses(
    wrong: Sequence[_Result], measured: Sequence[_Result], verb: str, *, is_certain: bool
) -> Iterable[Culprit]:
    for where in dict.fromkeys(one.device for one in wrong):
        own = [one for one in wrong if one.device == where]
        rounds = _rounds(own, [one for one in measured if one.device == where])
        yield Culprit("gpu", (where,), f"{verb} wrong data in {rounds}", is_certain=is_certain)


def _of_group(probe: Arm, wrong: Sequence[_Result], measured: Sequence[_Result]) -> Iterable[Culprit]:
    """The node first, if the whole group is on it, then all witnesses."""
    ranks_of: dict[str, set[int]] = defaultdict(set)
    for one in measured:
        ranks_of[one.host].add(one.rank)
    # If every host has a whole group, each group is on one host.
    fit_hosts = all(len(own) >= probe.world_size for own in ranks_of.values())
    for host in dict.fromkeys(one.host for one in wrong) if fit_hosts else ():
        own = [one for one in wrong if one.host == host]
        there = [one for one in measured if one.host == host]
        saw, ranks = (len({one.device for one in some}) for some in (own, there))
        evidence = f"{_did(probe)} wrong data in {_rounds(own, there)}, seen by {saw} of {ranks} ranks"
        yield Culprit("node", (Place(host),), evidence)
    yield from _of_witnesses(wrong, measured, "saw", is_certain=False)


def _of_pairs(probe: Arm, wrong: Sequence[_Result], measured: Sequence[_Result]) -> Iterable[Culprit]:
    """The links of each host, or the GPU that they share."""
    links: dict[str, dict[JudgedPlace, list[_Result]]] = defaultdict(lambda: defaultdict(list))
    for one in wrong:
        ends = [next(other for other in measured if other.rank == rank) for rank in one.peers]
        if len(ends) == 1:  # the other one is unknown
            yield Culprit("gpu", (one.device,), f"saw wrong data in round {one.round}", is_certain=False)
        else:
            link = place_of(probe, one.peers, [end.device for end in ends])
            links[link.host][link].append(one)
    for theirs in links.values():
        shared = shared_end(list(theirs))
        if shared is not None:
            evidence = f"{_did(probe)} wrong data with {len(theirs)} others: the GPU is at fault, not its links"
            yield Culprit("gpu", (shared,), evidence)
            continue
        for link, own in theirs.items():
            both = [one for one in measured if one.peers == link.ranks]
            evidence = f"{_did(probe)} wrong data in {_rounds(own, both)}"
            yield Culprit("link", link.ends, evidence, is_certain=not link.is_between_nodes)


def _did(probe: Arm) -> str:
    return "computed" if probe.operation.kind == "matmul" else "moved"


def _rounds(some: Iterable[_Result], of: Iterable[_Result]) -> str:
    """``2 of 8 rounds``."""
    return f"{len({one.round for one in some})} of {len({one.round for one in of})} rounds"
