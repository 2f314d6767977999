"""Throughput at each world size that a run trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.metrics.rounds import ArmRounds, group_rounds
from pytest_ddpscale.plan.study import Arm, Scaling, Study
from pytest_ddpscale.plan.variant import USUAL
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.stats.correlation import lag_one_correlations

FEWEST_ROUNDS = 4  # needed to estimate an error and the correlation of successive rounds


@dataclass(frozen=True)
class MeasuredSize:
    """One world size.

    Attributes:
        gpus: ranks that trained together.
        img_per_s: of all ranks together, at the slowest rank's pace, geometric mean over rounds and launches.
        energy_j_per_image: mean of the GPUs; None if any rank's is unknown.
        error: relative standard error of `img_per_s` from the rounds (`round_errors`) or from the launches
            (`mean_of_launches`); None with too few rounds, as for an imported sample.
    """

    gpus: int
    img_per_s: float
    energy_j_per_image: float | None = None
    error: float | None = None


@dataclass(frozen=True)
class ScalingSeries:
    """One study: its sizes, ascending, and the number of GPUs per node."""

    scaling: Scaling
    workload: str
    gpus_per_node: int
    sizes: tuple[MeasuredSize, ...]

    @property
    def has_one_gpu(self) -> bool:
        """Whether one GPU was measured; otherwise efficiency is relative to the smallest size."""
        return bool(self.sizes) and self.sizes[0].gpus == 1


def scaling_series(evidence: Evidence) -> list[ScalingSeries]:
    """A series for each study with a measured round, in the plan's order; the mean of several launches.

    One rank is the arm ``alone``, or ``ddp@1`` without such an arm. Sizes that each node measures by itself are means
    over all nodes, because one slow node is not a property of a size.
    """
    by_study: dict[tuple[Scaling, Workload], list[tuple[MeasuredSize, ...]]] = {}
    for launch in evidence.launches:
        for study in launch.plan.studies:
            by_study.setdefault((study.scaling, study.workload), []).append(_sizes(launch, study))
    per_node = evidence.plan.layout.ranks_per_node
    return [
        ScalingSeries(scaling, workload.name, per_node, mean_of_launches(launches))
        for (scaling, workload), launches in by_study.items()
        if any(launches)
    ]


def _sizes(evidence: Evidence, study: Study) -> tuple[MeasuredSize, ...]:
    """Sizes of one launch."""
    by_size: dict[int, MeasuredSize] = {}
    rounds: dict[int, dict[int, float]] = {}
    usual = [arm for arm in study.arms if arm.placement == "packed" and arm.variant == USUAL]
    arms = [arm for arm in usual if arm.kind in ("alone", "ddp")]
    for arm in sorted(arms, key=lambda arm: arm.kind):
        groups = [one for one in group_rounds(evidence.columns, study.id, arm, evidence.plan.layout) if len(one)]
        if groups and arm.world_size not in by_size:
            rounds[arm.world_size] = _of_rounds(groups)
            by_size[arm.world_size] = _measured(arm, groups)
    errors = round_errors(rounds)
    return tuple(replace(by_size[gpus], error=errors[gpus]) for gpus in sorted(by_size))


def mean_of_launches(launches: Sequence[Sequence[MeasuredSize]]) -> tuple[MeasuredSize, ...]:
    """Each size's geometric mean over the launches that have all sizes; launches that failed are left out.

    The error is that of the rounds of all launches, or the difference between launches if that is larger: the standard
    deviation of their values without the part that all sizes share in a launch, pooled over the sizes, with
    (sizes - 1) (launches - 1) degrees of freedom, over the root of the number of launches.
    """
    most = max(map(len, launches))
    whole = [one for one in launches if len(one) == most]
    whole = [one for one in whole if [size.gpus for size in one] == [size.gpus for size in whole[0]]]
    logs = np.log([[size.img_per_s for size in one] for one in whole])
    number = len(whole)
    between = 0.0
    if number > 1 and most > 1:
        own = logs - logs.mean(axis=1, keepdims=True)
        deviations = own - own.mean(axis=0)
        between = math.sqrt(float((deviations**2).sum()) / ((most - 1) * (number - 1)) / number)
    found = []
    for of_size, mean in zip(zip(*whole, strict=True), logs.mean(axis=0).tolist(), strict=True):
        energy = _mean([one.energy_j_per_image for one in of_size])
        found.append(MeasuredSize(of_size[0].gpus, math.exp(mean), energy, _error(of_size, between)))
    return tuple(found)


def _error(of_size: Sequence[MeasuredSize], between: float) -> float | None:
    """Error of the mean of a size's launches; None if any launch's error is unknown."""
    squares = _mean([None if one.error is None else one.error**2 for one in of_size])
    return None if squares is None else max(math.sqrt(squares / len(of_size)), between)


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if any value is unknown."""
    known = [one for one in values if one is not None]
    return math.fsum(known) / len(known) if len(known) == len(values) else None


def round_errors(rounds: Mapping[int, Mapping[int, float]]) -> dict[int, float | None]:
    """Standard error of each size's mean, such that the errors of two sizes combine to the error of their ratio.

    The part that all sizes share in a round cancels in ratios, so each round's mean over the sizes is subtracted first;
    with k sizes that leaves (k - 1) / k of the variance. Correlated rounds carry less information: the error grows by
    sqrt((1 + r) / (1 - r)) with their mean lag-one correlation r, if that is above 0.

    Args:
        rounds: logarithm of the throughput by size and number of the round.

    Returns:
        None for each size if fewer than `FEWEST_ROUNDS` rounds have all sizes, or if there is only one size.
    """
    common = sorted(set.intersection(*(set(of_size) for of_size in rounds.values()))) if rounds else []
    if len(rounds) < 2 or len(common) < FEWEST_ROUNDS:
        return dict.fromkeys(rounds)
    logs = np.array([[of_size[number] for number in common] for of_size in rounds.values()])
    own = logs - logs.mean(axis=0)
    known = [one for one in lag_one_correlations(own).tolist() if math.isfinite(one)]
    alike = max(0.0, math.fsum(known) / len(known)) if known else 0.0
    deviations = own.std(axis=1, ddof=1) * math.sqrt(len(rounds) / (len(rounds) - 1) * (1 + alike) / (1 - alike))
    return {
        gpus: deviation / math.sqrt(len(of_size))
        for (gpus, of_size), deviation in zip(rounds.items(), deviations.tolist(), strict=True)
    }


def _of_rounds(groups: Sequence[ArmRounds]) -> dict[int, float]:
    """Logarithm of the throughput in each round, as the mean over the groups with that round."""
    by_round: dict[int, list[float]] = {}
    for one in groups:
        for number, rate in zip(one.numbers.tolist(), one.img_per_s_per_gpu.tolist(), strict=True):
            by_round.setdefault(number, []).append(math.log(rate))
    return {number: math.fsum(logs) / len(logs) for number, logs in by_round.items()}


def _measured(arm: Arm, groups: Sequence[ArmRounds]) -> MeasuredSize:
    logs = [math.log(value) for one in groups for value in one.img_per_s_per_gpu.tolist()]
    return MeasuredSize(arm.world_size, arm.world_size * math.exp(math.fsum(logs) / len(logs)), _energy(groups))


def _energy(groups: Sequence[ArmRounds]) -> float | None:
    """Joules per image over all blocks; None if unknown."""
    energy, images = 0.0, 0.0
    for one in groups:
        cells = one.present
        energy += float(one.measured.energy_j[cells].sum())
        images += float((one.measured.batch_size[:, None] * one.measured.steps)[cells].sum())
    return energy / images if math.isfinite(energy) and energy > 0 else None
