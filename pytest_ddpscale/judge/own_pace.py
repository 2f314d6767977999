"""Each rank's own pace under DDP: the time of its forward passes, which wait for nobody, and a check of it.

Under DDP the steps of all ranks take as long as the slowest rank's. In the arm ``each`` every rank trains alone, all at
once, so step times differ there as ranks do; but it takes minutes and is timed in one study only. Forward passes are
timed in every training arm that is not compiled. Where a study has both they must agree: each rank's forward passes
over the median rank's, and its steps alone over the median rank's, in the same rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pytest_ddpscale.judge.peers import averages_of, median_over_rounds, relative_logs
from pytest_ddpscale.judge.rounds import ArmRounds, merged
from pytest_ddpscale.judge.stragglers import MINIMUM_ROUNDS
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.readings import FORWARD_S
from pytest_ddpscale.util.listing import first_few

MOST_APART = 0.01  # relative: between a rank's pace by its forward passes and by its steps alone


def forward_step_s(rounds: ArmRounds) -> FloatArray:
    """Seconds of each rank's forward passes per step, (rounds, ranks); NaN where it was absent or has no reading.

    A forward pass takes time, so a reading of 0 means unknown.
    """
    forward_s = rounds.measured.reading(FORWARD_S)
    known = rounds.present & (forward_s > 0)
    return np.where(known, forward_s, np.nan) / np.where(known, rounds.measured.count, 1)


def pace_notes(evidence: Evidence) -> list[str]:
    """A line on ranks whose own pace is another one by their forward passes than by their steps alone, for each study
    that times both, and a line for each arm without expected readings of forward passes."""
    differ = (note for study in evidence.plan.studies for note in _disagreements(study, evidence))
    unread = (
        f"no own pace in {one.blocks} rank blocks of {one.arm} of {one.study}, the first of rank {one.rank} on "
        f"{one.host}: {one.reason}"
        for one in evidence.unread
        if one.reading == FORWARD_S
    )
    return [*differ, *unread]


def _disagreements(study: Study, evidence: Evidence) -> Iterator[str]:
    for each in study.arms:
        ddp = next((arm for arm in study.arms if arm.kind == "ddp" and _is_same_training(arm, each)), None)
        if each.kind != "each" or ddp is None:
            continue
        steps, passes = (merged(evidence.columns, study.id, arm, evidence.plan.layout) for arm in (each, ddp))
        if apart := _apart(steps, passes):
            yield (
                f"own pace uncertain in {study.id}, by forward passes in {ddp.name} and by steps in {each.name}: "
                f"{first_few(apart, separator='; ')}"
            )


def _is_same_training(arm: Arm, other: Arm) -> bool:
    """Whether as many ranks train the same batches with the same settings."""
    names = ("world_size", "batch_size", "placement", "variant")
    return all(getattr(arm, name) == getattr(other, name) for name in names)


def _apart(steps: ArmRounds, passes: ArmRounds) -> list[str]:
    """Ranks with two clearly different paces, both in words, the largest difference first.

    Args:
        steps: in which each rank trains alone.
        passes: with the ranks' forward passes.
    """
    _, rows, other_rows = np.intersect1d(steps.numbers, passes.numbers, return_indices=True)
    column = {place: i for i, place in enumerate(passes.ranks.places)}
    at = np.array([i for i, place in enumerate(steps.ranks.places) if place in column], np.int64)
    others = np.array([column[steps.ranks.places[i]] for i in at], np.int64)
    step_s, pass_s = steps.mean_step_s[rows][:, at], forward_step_s(passes)[other_rows][:, others]
    enough = np.flatnonzero((~np.isnan(step_s) & ~np.isnan(pass_s)).sum(axis=0) >= MINIMUM_ROUNDS)
    if len(enough) < 2:
        return []
    by_steps, by_passes = relative_logs(step_s[:, enough]), relative_logs(pass_s[:, enough])
    differences, reaches = averages_of(by_passes - by_steps)
    clear = np.flatnonzero(np.abs(differences) - reaches > math.log1p(MOST_APART))
    usual = np.exp([median_over_rounds(by_passes), median_over_rounds(by_steps)])
    found = []
    for i in clear[np.argsort(-np.abs(differences[clear]), kind="stable")].tolist():
        rank, host, *_ = steps.ranks.who(at[enough[i]])
        found.append(f"rank {rank} on {host} {usual[0, i]:.3f}× and {usual[1, i]:.3f}× the median rank")
    return found
