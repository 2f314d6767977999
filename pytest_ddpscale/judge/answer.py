"""The answer to a requirement while it is found; the verdict is made of it once, at the end.

**Whether most are alike:** ranks that computed the same results, bit for bit, and places that fail.

DDP keeps replicas identical by construction: all start from the same parameters and apply the same averaged
gradients (Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", arXiv
2006.15704). A rank whose parameters differ received other gradients or computed the update differently. A rank
whose own result of a seeded step differs computes differently from the others, which DDP's averaging would hide.
If any differ, every passed verdict of their study is void.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np

from pytest_ddpscale.judge.stats import ABSENT, FAILED, IMPOSSIBLE, OPEN, PASSED
from pytest_ddpscale.plan.metric_catalogue import METRICS, REPLICA_AGREEMENT
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import Culprit, Place
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.table import ArmRounds, memoized
from pytest_ddpscale.run.verdicts import WRONG_DATA, AgainstSlowest, Flag, GenerationComparison, Verdict, VerdictOutcome
from pytest_ddpscale.thresholds.cases import AnyCase
from pytest_ddpscale.util.arrays import BoolArray, FloatArray, IntArray

OUTCOMES: dict[int, VerdictOutcome] = {
    PASSED: "passed", FAILED: "failed", OPEN: "inconclusive", IMPOSSIBLE: "error", ABSENT: "not_measured",
}  # fmt: skip


@dataclass(eq=False)
class Answer:
    """What is found of a requirement as a whole; attributes are those of `Verdict`, with reasons instead of sentences.

    Attributes:
        blank: the verdict ``not_measured``.
        reasons: why it has its outcome, the main one first.
        remarks: notes.
    """

    blank: Verdict
    outcome: VerdictOutcome = "not_measured"
    reasons: list[Reason] = field(default_factory=list)
    value: float | None = None
    interval: tuple[float, float] | None = None
    rounds: int = 0
    place: str = ""
    remarks: list[Reason] = field(default_factory=list)
    culprits: list[Culprit] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    correlation: float | None = None
    against_slowest: AgainstSlowest | None = None
    compared: GenerationComparison | None = None

    def say(self, outcome: VerdictOutcome, why: Reason) -> None:
        """The outcome, and the only reason for it."""
        self.outcome, self.reasons = outcome, [why]

    def verdict(self) -> Verdict:
        """The verdict."""
        fields: dict[str, Any] = {
            n: tuple(value) if isinstance(value, list) else value for n, value in vars(self).items()
        }
        why = because("all", *self.reasons) if len(self.reasons) > 1 else next(iter(self.reasons), None)
        del fields["blank"], fields["reasons"]
        return replace(self.blank, because=why, **fields)


def blank_verdict(case: AnyCase, confidence: float) -> Verdict:
    """The verdict ``not_measured`` on a requirement, with the fields of its line in thresholds.yaml."""
    requirement = case.requirement
    return Verdict(
        case.id,
        requirement.metric,
        requirement.subject,
        case.world_size,
        requirement.severity,
        {requirement.definition.bound_key: requirement.bound},
        "not_measured",
        confidence=confidence,
        provisional=requirement.provisional,
        source=requirement.source_text,
        placement=requirement.placement,
        published=requirement.source.measured,
        one_gpu=requirement.one_gpu if requirement.times_one_gpu else None,
        unit=case.unit,
    )


def name_unless_most_fail(
    answer: Answer, culprits: Sequence[Culprit], codes: IntArray, planned: int, noun: str
) -> None:  # fmt: skip
    """Name culprits of failed places; if most fail alike, nobody is certain: a wrong bound must not drain a cluster.

    Neither are they where most are undecided: all may be slow alike, of which the first to fail is no worse than the
    others.

    Args:
        answer: for all places; if most of them fail, those that it names already are not certain either.
        culprits: that are named for these failures.
        codes: `PASSED` …, (places,).
        planned: number of places.
        noun: for them.
    """
    failed, passed = (int((codes == code).sum()) for code in (FAILED, PASSED))
    if 1 < planned < 2 * failed:
        answer.remarks.append(because("most-fail-alike", failed, planned, noun, passed))
        culprits, answer.culprits = [*answer.culprits, *culprits], []
    are_certain = 2 * failed <= planned and 2 * passed >= len(codes)
    answer.culprits += culprits if are_certain else [replace(culprit, is_certain=False) for culprit in culprits]


def add_disagreements(answer: Answer, study: Study, evidence: Evidence) -> None:
    """Results of ranks that differ: then speed is worth nothing, and the requirement cannot pass.

    One disagreement is enough, because it is not random: DDP keeps replicas equal bit for bit. Answers that failed
    anyway are flagged, because speed is not their only problem. Agreement is undecided if most ranks could not repeat
    the seeded step, unless another study compared them: DDP averages what a rank computes wrong, so equal parameters
    alone do not show that each rank computes right.
    """
    odd = disagreements(evidence, study)
    compares = METRICS[answer.blank.metric].compares_results
    steps = evidence.seeded_steps.get(study.id, {})
    if not odd:
        if answer.outcome == "passed" and compares and steps and not evidence.is_repeatable(study.id):
            unrepeated = sum(not step.repeats for step in steps.values()), len(steps), study.id
            # Devices whose own results some study compared, as most of its ranks repeated them.
            repeatable = filter(evidence.is_repeatable, evidence.seeded_steps)
            compared = {place.identity for one in repeatable for place in evidence.seeded_steps[one]}
            if {place.identity for place in steps} <= compared:
                answer.remarks.append(because("repeated-elsewhere", *unrepeated))
            else:
                answer.say("inconclusive", because("unrepeated", *unrepeated))
        return
    reason = because("results-differ", tuple(f"rank {rank} on {culprit.host}" for rank, culprit in odd))
    if compares or answer.outcome == "failed":
        answer.flags.append(WRONG_DATA)
    if compares or answer.outcome == "passed":
        reason = reason if compares else because("speed-does-not-count", reason, REPLICA_AGREEMENT.name)
        answer.say("failed" if compares else "error", reason)
        answer.culprits = [culprit for _, culprit in odd]


@memoized
def disagreements(evidence: Evidence, study: Study) -> list[tuple[int, Culprit]]:
    """Every rank of a study whose parameters or own seeded step differ from its peers', in rank order.

    Ranks that differ from more than half of those that they trained with are certain. If no result is shared by more
    than half, for example with two ranks that differ, all of them are returned and none is certain. Larger groups
    decide first, all ranks of the seeded step before any: of two that differ, a larger group may tell which is wrong.
    Groups that lack a rank or a result are skipped; each rank computed the seeded step alone.
    """
    steps, checksums = evidence.seeded_steps.get(study.id, {}), evidence.seeded_checksums(study.id)
    # By rank and place: number of blocks, of seeded steps, and whether others may be wrong.
    blame = defaultdict[tuple[int, Place], list[int]](lambda: [0, 0, 0])
    ranks = [(step.rank, place) for place, step in steps.items() if step.checksum]
    is_odd = _are_unlike_most(numbered(checksums, [rank for rank, _ in ranks]))
    for who in compress(ranks, is_odd & (not is_odd.all())):
        blame[who][1] += 1
    for arm in sorted(study.arms, key=lambda arm: -arm.world_size):
        measured = evidence.columns.arms.get((study.id, arm.name))
        certain = {who for who, (_, _, doubts) in blame.items() if not doubts}
        if measured is None or arm.kind != "ddp":
            continue
        own = numbered(checksums, measured.ranks.numbers.tolist())
        for row in np.flatnonzero(measured.is_of_work(arm.batch_size)).tolist():
            column = np.flatnonzero(measured.present[row])
            results = np.stack([measured.digest[row, column], own[column]])
            _, first, group = np.unique(measured.groups[row, column], return_index=True, return_inverse=True)
            for number in np.unique(group[(results != results[:, first[group]]).any(axis=0)]).tolist():
                ranks = [measured.ranks.who(at) for at in column[group == number].tolist()]
                is_certain = not certain.isdisjoint(ranks)
                for kind, result in enumerate(results[:, group == number]):
                    is_odd = _are_unlike_most(result)
                    if result.all() and len(ranks) == arm.world_size and not (is_odd.all() and is_certain):
                        for who in compress(ranks, is_odd):
                            blame[who][kind] += 1
                            blame[who][2] |= bool(is_odd.all())
    culprits = list[tuple[int, Culprit]]()
    for (rank, place), (blocks, seeded, doubts) in sorted(blame.items(), key=lambda one: one[0][0]):
        why = because("unlike-others", blocks, bool(seeded), not doubts)
        culprits.append((rank, Culprit("gpu", (place,), why, not doubts, computed_wrong=True)))
    return culprits


def agreeing_share(rows: ArmRounds, own: IntArray) -> FloatArray:
    """Share of ranks in the largest group with equal parameters and an equal seeded step, (rounds, …).

    1 if all agree. Two ranks that differ are two groups of one, neither a majority: 0.5. NaN if any rank lacks a
    checksum of either kind: an unknown result does not count as agreement. `own` has a number for each rank's result of
    the seeded step: `numbered`.
    """
    results, present = np.stack([rows.digest, np.broadcast_to(own, rows.digest.shape)], axis=-1), rows.present
    is_unknown = ((results == 0).any(axis=-1) & present).any(axis=-1) | ~present.any(axis=-1)
    shares = np.where(is_unknown, np.nan, 1.0)
    differs = (results != results[..., :1, :]).any(axis=-1) & present
    for at in map(tuple, np.argwhere(differs.any(axis=-1) & ~is_unknown).tolist()):
        counts = np.unique(results[at][present[at]], axis=0, return_counts=True)[1]
        shares[at] = counts.max() / counts.sum()
    return shares


def numbered(seeded: Mapping[int, str], ranks: Sequence[int]) -> IntArray:
    """Equal numbers for equal results of the seeded step, 0 for none, (ranks,)."""
    numbers = {"": 0}
    return np.array([numbers.setdefault(seeded.get(rank, ""), len(numbers)) for rank in ranks], np.int64)


def _are_unlike_most(results: IntArray) -> BoolArray:
    """Which results are not shared by more than half; all of them if none is."""
    _, number, counts = np.unique(results, return_inverse=True, return_counts=True)
    return 2 * counts[number] <= len(results)
