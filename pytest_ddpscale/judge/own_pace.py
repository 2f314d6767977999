"""Each rank's own pace under DDP: the time of its forward passes, which wait for nobody.

Under DDP the steps of all ranks take as long as the slowest rank's. In the arm ``each`` every rank trains alone, all at
once, so step times differ there as ranks do; but it takes minutes and is timed in one study only. Forward passes are
timed in every training arm that is not compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pytest_ddpscale.judge.metrics import Groups, merged
from pytest_ddpscale.judge.peers import MINIMUM_ROUNDS, median_over_rounds, relative_logs
from pytest_ddpscale.plan.arm import USUAL, Arm
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.block import FORWARD_S
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.util.arrays import FloatArray, IntArray


def own_pace_s(rounds: ArmRounds) -> FloatArray:
    """Seconds a step that each rank computes without waiting for others, NaN if unknown or absent, (rounds, ranks).

    Those of its forward passes if ranks train together, else of whole steps. A pass takes time: 0 means unknown.
    """
    if rounds.arm.startswith("each@"):
        return rounds.mean_step_s
    forward_s = rounds.reading(FORWARD_S)
    return np.where(forward_s > 0, forward_s, np.nan) / np.maximum(rounds.count, 1)


@dataclass(frozen=True, eq=False)
class OwnPace:
    """The own pace of the ranks of a study's largest DDP arm, of those that have enough rounds.

    Attributes:
        rounds: of that arm.
        earlier: mean of each rank's relative log of its pace in the study before, by host and local rank.
    """

    rounds: ArmRounds
    earlier: Mapping[tuple[str, int], float]

    @cached_property
    def times_s(self) -> FloatArray:
        """`own_pace_s` of the arm, (rounds, ranks)."""
        return own_pace_s(self.rounds)

    @cached_property
    def as_steps(self) -> ArmRounds:
        """The rounds as if forward passes were all that ranks did, which is what rules of slow ranks compare."""
        return as_steps(self.rounds, self.times_s)

    @cached_property
    def of_nodes_s(self) -> FloatArray:
        """The median of each node's ranks, in the order of `by_host`, (rounds, nodes)."""
        return nodes_s(self.times_s, self.rounds)

    @cached_property
    def _relative(self) -> FloatArray:
        return relative_logs(self.times_s)

    @cached_property
    def usual(self) -> Mapping[tuple[str, int], float]:
        """Mean of each rank's relative log over all rounds, by host and local rank; NaN without any."""
        told = ~np.isnan(self._relative)
        total = np.where(told, self._relative, 0.0).sum(axis=0)
        means = np.where(told.any(axis=0), total / np.maximum(told.sum(axis=0), 1), np.nan)
        return dict(zip(self.rounds.ranks.places, means.tolist(), strict=True))

    def before(self, numbers: IntArray, places: Sequence[tuple[str, int]]) -> FloatArray:
        """Mean of ranks' relative logs in the rounds before each of some rounds, (rounds, ranks).

        Before the first round it is that of the study before; NaN where nothing is known.

        Args:
            numbers: of the rounds, (rounds,).
            places: host and local rank of ranks.
        """
        told = ~np.isnan(self._relative)
        empty = np.zeros((1, told.shape[1]))
        count = np.concatenate([empty, np.cumsum(told, axis=0)])
        total = np.concatenate([empty, np.cumsum(np.where(told, self._relative, 0.0), axis=0)])
        means = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        means[0] = [self.earlier.get(place, np.nan) for place in self.rounds.ranks.places]
        means = np.concatenate([means, np.full((len(means), 1), np.nan)], axis=1)  # of ranks without any
        column = {place: number for number, place in enumerate(self.rounds.ranks.places)}
        at = np.array([column.get(place, -1) for place in places], np.int64)
        return np.asarray(means[np.searchsorted(self.rounds.numbers, numbers)][:, at])


def as_steps(rounds: ArmRounds, times_s: FloatArray) -> ArmRounds:
    """Rounds whose steps take these times, (rounds, ranks), for rules that compare steps; ranks without are absent."""
    return replace(rounds, seconds=times_s * rounds.count, readings={})


def pace_arm(study: Study) -> Arm | None:
    """The arm with most ranks that train together and each tell their own pace; None without any."""
    return next(iter(_pace_arms(study)), None)


def _pace_arms(study: Study) -> list[Arm]:
    """Arms whose ranks train together and each tell their own pace, the largest first."""
    arms = [
        arm for arm in study.arms
        if arm.kind == "ddp" and arm.world_size > 1 and arm.placement == "packed" and arm.variant == USUAL
    ]  # fmt: skip
    return sorted(arms, key=lambda arm: -arm.world_size)


def own_pace_of(study: Study, evidence: Evidence, last: int | None = None) -> OwnPace | None:
    """The own pace of a study's ranks; None if it was not read, as of compiled models.

    Args:
        study: in which they train.
        evidence: of the run.
        last: number of the last round that counts; None for all. A requirement whose arms get no more rounds stays as
            it was decided, though the arm with the paces may get further ones.
    """
    return evidence.once(("own pace", study.id, last), lambda: _own_pace(study, evidence, last))


def last_round(found: Groups) -> int | None:
    """Number of the last round of the measured arm; None without any."""
    return int(found.merged[-1].numbers[-1]) if len(found.merged[-1]) else None


def _own_pace(study: Study, evidence: Evidence, last: int | None) -> OwnPace | None:
    found = None
    for arm in _pace_arms(study):
        rounds = until(merged(evidence.columns, study.id, arm, evidence.plan.layout), last)
        times = int((~np.isnan(own_pace_s(rounds)).all(axis=1)).sum())
        if times and (found is None or times >= MINIMUM_ROUNDS):
            found = rounds
        if times >= MINIMUM_ROUNDS:
            break  # larger arms have fewer rounds if a node was lost
    if found is None:
        return None
    rounds, before = found, study_before(study, evidence.plan.studies)
    earlier = None if before is None else own_pace_of(before, evidence)
    return OwnPace(rounds, {} if earlier is None else earlier.usual)


def study_before(study: Study, studies: Sequence[Study]) -> Study | None:
    """The study measured before another, whose ranks tell their own pace; None without any."""
    at = next((number for number, one in enumerate(studies) if one.id == study.id), 0)
    earlier = [one for one in studies[:at] if pace_arm(one) is not None]
    return earlier[-1] if earlier else None


def until(rounds: ArmRounds, last: int | None) -> ArmRounds:
    """The rounds up to a number; all without one."""
    return (
        rounds if last is None or not len(rounds) or rounds.numbers[-1] <= last else rounds.of(rounds.numbers <= last)
    )


def nodes_s(times_s: FloatArray, rounds: ArmRounds) -> FloatArray:
    """The median of each node's ranks, in the order of `by_host`, NaN where a node was absent, (rounds, nodes)."""
    return np.stack([median_over_rounds(times_s[:, at].T) for at in rounds.ranks.by_host.values()], axis=1)


def pace_notes(evidence: Evidence) -> list[str]:
    """A line for each arm without expected readings of forward passes."""
    return [
        f"no own pace in {one.blocks} rank blocks of {one.arm} of {one.study}, the first of rank {one.rank} on "
        f"{one.host}: {one.reason}"
        for one in evidence.unread
        if one.reading == FORWARD_S
    ]
