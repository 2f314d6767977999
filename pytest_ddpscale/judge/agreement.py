"""Whether all ranks computed the same results, bit for bit; if not, every passed verdict of their study is void.

DDP keeps replicas identical by construction: all start from the same parameters and apply the same averaged
gradients (Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", arXiv
2006.15704). A rank whose parameters differ received other gradients or computed the update differently. A rank
whose own result of a seeded step differs computes differently from the others, which DDP's averaging would hide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from pytest_ddpscale.judge.metrics import are_alike, groups, numbered
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.metric_catalogue import METRICS, REPLICA_AGREEMENT
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.run.verdicts import WRONG_DATA, Verdict
from pytest_ddpscale.util.arrays import BoolArray, IntArray


def with_agreement(verdict: Verdict, study: Study, evidence: Evidence) -> Verdict:
    """The verdict, which cannot pass if results of ranks differ: then speed is worth nothing.

    One disagreement is enough, because it is not random: DDP keeps replicas equal bit for bit. Verdicts that failed
    anyway are flagged, because speed is not their only problem.
    """
    odd = evidence.once(("disagreements", study.id), lambda: disagreements(study, evidence))
    if not odd:
        return _without_own_results(verdict, study, evidence)
    first = [f"rank {rank} on {culprit.host}" for rank, culprit in list(odd.items())[:3]]
    reason = f"{', '.join(first)}{' and others' if len(odd) > 3 else ''}: results differ from those of other ranks"
    culprits, flags = tuple(odd.values()), (*verdict.flags, WRONG_DATA)
    if METRICS[verdict.metric].compares_results:
        return replace(verdict, outcome="failed", reason=reason, culprits=culprits, flags=flags)
    if verdict.outcome == "failed":
        return replace(verdict, flags=flags)
    if verdict.outcome != "passed":
        return verdict
    reason = f"{reason} (see {REPLICA_AGREEMENT.name}); speed does not count"
    return replace(verdict, outcome="error", reason=reason, culprits=culprits)


def _without_own_results(verdict: Verdict, study: Study, evidence: Evidence) -> Verdict:
    """Agreement, which is undecided if most ranks could not repeat the seeded step, unless another study compared them.

    DDP averages what a rank computes wrong, so equal parameters alone do not show that each rank computes right.
    """
    steps = evidence.seeded_steps.get(study.id, {})
    if verdict.outcome != "passed" or not METRICS[verdict.metric].compares_results or not steps:
        return verdict
    if evidence.is_repeatable(study.id):
        return verdict
    unrepeated = sum(not step.repeats for step in steps.values())
    reason = f"{unrepeated} of {len(steps)} ranks got another result when they repeated the seeded step of {study.id}"
    alone = {(place.host, place.uuid) for place in steps}
    if alone <= evidence.compared_alone:
        note = (
            f"{reason}: the model has no deterministic kernels; what each rank computes was compared in other studies"
        )
        return replace(verdict, notes=(*verdict.notes, note))
    reason += ", and no other study compared what each rank computes by itself"
    return replace(verdict, outcome="inconclusive", reason=reason)


def disagreements(study: Study, evidence: Evidence) -> dict[int, Culprit]:
    """Every rank of a study whose parameters or own seeded step differ from its peers', in rank order.

    Larger groups decide first: of two ranks that differ, a larger group may tell which is wrong.
    """
    seeded = evidence.seeded_checksums(study.id)
    are_odd, is_open = _unlike_most(numbered([*seeded.values()])) if seeded else ((), True)
    odd = set() if is_open else {rank for rank, is_odd in zip(seeded, are_odd, strict=True) if is_odd}
    by_themselves = {
        step.rank: _culprit(place, len(seeded), seeded_step_differs=True)
        for place, step in evidence.seeded_steps.get(study.id, {}).items()
        if step.rank in odd
    }
    # With several nodes, all ranks together are the largest group.
    found = dict(by_themselves) if evidence.plan.nodes > 1 else {}
    together = [arm for arm in study.arms if arm.kind == "ddp" and arm.world_size > 1]
    for arm in sorted(together, key=lambda arm: -arm.world_size):
        for rounds in _groups_that_differ(study, arm, evidence):
            of_group = disagreeing_ranks(rounds, seeded)
            told_apart = any(rank in found and found[rank].is_certain for rank in of_group)
            sure = {rank: one for rank, one in of_group.items() if one.is_certain or not told_apart}
            found = sure | found
    found = by_themselves | found
    return {rank: found[rank] for rank in sorted(found)}


def _groups_that_differ(study: Study, arm: Arm, evidence: Evidence) -> Iterable[ArmRounds]:
    """Groups of ranks that trained together, as far as their results may differ."""
    found = groups(evidence.columns, study.id, [arm], evidence.plan.layout)
    own = _seeded_of(found.merged[0], evidence.seeded_checksums(study.id))[found.columns[0]]
    differ = ~are_alike(found.arms[0], own).all(axis=0)
    return [found.at(place)[0] for place in np.flatnonzero(differ).tolist()]


def disagreeing_ranks(measured_ddp: ArmRounds, seeded: Mapping[int, str]) -> dict[int, Culprit]:
    """Ranks that differ from more than half of the ranks, in parameters or in the seeded step, in rank order.

    If no result is shared by more than half, for example with two ranks that differ, all ranks are returned and none is
    certain. Rounds that lack a checksum of parameters are skipped. Seeded steps, which each rank computed alone, are
    compared only if all ranks have one.
    """
    if not len(measured_ddp):
        return {}
    ranks, parameters, present = measured_ddp.ranks, measured_ddp.digest, measured_ddp.present
    latest, own = present[-1], _seeded_of(measured_ddp, seeded)
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
    # Ranks of the latest round; of any round if all have equally many ranks, because groups may take turns.
    sizes = present.sum(axis=1)
    still_there = present.any(axis=0) if (sizes == sizes[0]).all() else latest
    found = {}
    for i in np.flatnonzero(still_there & ((different > 0) | odd_seeded)).tolist():
        rank, place = ranks.who(i)
        found[rank] = _culprit(
            place, int(latest.sum()), int(different[i]), len(rounds),
            seeded_step_differs=bool(odd_seeded[i]), is_open=bool(is_open[i]),
        )  # fmt: skip
    return found


def _culprit(
    place: Place, ranks: int, different: int = 0, rounds: int = 0, *, seeded_step_differs: bool,
    is_open: bool = False,
) -> Culprit:  # fmt: skip
    """A rank whose results differ from those of most ranks, in some of the rounds.

    It is open who is right if no result is shared by more than half of the ranks.
    """
    unlike = f"differ {'between the' if is_open else 'from most of'} {ranks} ranks"
    found = [f"parameters {unlike} in {different} of {rounds} rounds"] if different else []
    found += [f"gradients of one seeded step, each computed alone, {unlike}"] if seeded_step_differs else []
    found += ["no result is shared by more than half of the ranks, so it is unknown which is right"] if is_open else []
    evidence = "; ".join(found)
    return Culprit("gpu", (place,), evidence, is_certain=not is_open, computed_wrong=True)


def _seeded_of(measured: ArmRounds, seeded: Mapping[int, str]) -> IntArray:
    """A number for each rank's result of the seeded step, 0 where there is none, (ranks,)."""
    return numbered([seeded.get(rank) for rank in measured.ranks.numbers.tolist()])


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
