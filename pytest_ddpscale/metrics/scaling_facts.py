"""Facts from a scaling study: speed-up, Amdahl's share, time, cost, and how many GPUs to use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.metrics.rounds import ArmRounds, group_rounds
from pytest_ddpscale.plan.study import Arm, Scaling, Study
from pytest_ddpscale.plan.variant import USUAL
from pytest_ddpscale.plan.workload import Workload

SATURATED_GAIN = 0.05  # a doubling that saves a smaller share of the time is not worth it
GOOD_EFFICIENCY = 0.9


@dataclass(frozen=True)
class MeasuredSize:
    """One world size.

    Attributes:
        gpus: ranks that trained together.
        img_per_s: of all ranks together, at the slowest rank's pace, geometric mean over rounds and launches.
        energy_j_per_image: mean of the GPUs; None if any rank's is unknown.
    """

    gpus: int
    img_per_s: float
    energy_j_per_image: float | None = None


@dataclass(frozen=True)
class ScalingSeries:
    """One study and its sizes, ascending."""

    scaling: Scaling
    workload: str
    sizes: tuple[MeasuredSize, ...]

    @property
    def study(self) -> str:
        """``weak/resnet50-fp16``."""
        return f"{self.scaling}/{self.workload}"

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
    return [
        ScalingSeries(scaling, workload.name, mean_of_launches(launches))
        for (scaling, workload), launches in by_study.items()
        if any(launches)
    ]


def _sizes(evidence: Evidence, study: Study) -> tuple[MeasuredSize, ...]:
    """Sizes of one launch."""
    by_size: dict[int, MeasuredSize] = {}
    usual = [arm for arm in study.arms if arm.placement == "packed" and arm.variant == USUAL]
    arms = [arm for arm in usual if arm.kind in ("alone", "ddp")]
    for arm in sorted(arms, key=lambda arm: arm.kind):
        groups = [one for one in group_rounds(evidence.columns, study.id, arm, evidence.plan.layout) if len(one)]
        if groups and arm.world_size not in by_size:
            by_size[arm.world_size] = _measured(arm, groups)
    return tuple(by_size[gpus] for gpus in sorted(by_size))


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


def mean_of_launches(launches: Sequence[Sequence[MeasuredSize]]) -> tuple[MeasuredSize, ...]:
    """Each size's geometric mean over the launches that have all sizes; launches that failed are left out."""
    most = max(map(len, launches))
    whole = [one for one in launches if len(one) == most]
    whole = [one for one in whole if [size.gpus for size in one] == [size.gpus for size in whole[0]]]
    found = []
    for of_size in zip(*whole, strict=True):
        log = math.fsum(math.log(one.img_per_s) for one in of_size) / len(of_size)
        known = [one.energy_j_per_image for one in of_size if one.energy_j_per_image is not None]
        energy = math.fsum(known) / len(known) if len(known) == len(of_size) else None
        found.append(MeasuredSize(of_size[0].gpus, math.exp(log), energy))
    return tuple(found)


@dataclass(frozen=True)
class TrainingJob:
    """A training job: images (above 0), seconds that more GPUs do not shorten, and prices or None."""

    images: float
    fixed_s: float = 0.0
    gpu_hour_price: float | None = None
    kwh_price: float | None = None


@dataclass(frozen=True)
class ScalingFact:
    """One size.

    Attributes:
        gpus: number of ranks.
        img_per_s: of all ranks together.
        speedup: over the smallest size, times that size's GPUs.
        efficiency: `speedup` over `gpus`.
        serial_share: Amdahl's serial fraction from the speed-up by Karp and Flatt (1990); None for one GPU.
        more_img_per_s: throughput above the next smaller size's; None for the smallest.
        gain: of throughput over the next smaller size, per doubling: 0.69 is 69 %; None for the smallest.
        train_s: fixed seconds plus images over throughput, or the measured time.
        saved_share: of the next smaller size's `train_s`; None for the smallest.
        saved_per_doubling: `saved_share`, split evenly over the doublings between the sizes; None for the smallest.
        gpu_cost: GPU-hours times their price; None without a price.
        energy_cost: kWh of the GPUs times their price; None without a price or a measured energy.
    """

    gpus: int
    img_per_s: float
    speedup: float
    efficiency: float
    serial_share: float | None
    more_img_per_s: float | None
    gain: float | None
    train_s: float
    saved_share: float | None
    saved_per_doubling: float | None
    gpu_cost: float | None
    energy_cost: float | None


def scaling_facts(
    sizes: Sequence[MeasuredSize], job: TrainingJob, measured_s: Sequence[float] = ()
) -> list[ScalingFact]:
    """One fact for each size.

    Args:
        sizes: ascending.
        job: to train.
        measured_s: time of each size if whole runs were timed; else it follows from the job.
    """
    found: list[ScalingFact] = []
    for place, size in enumerate(sizes):
        per_gpu = sizes[0].img_per_s / sizes[0].gpus
        speedup = size.img_per_s / per_gpu
        train_s = measured_s[place] if measured_s else job.fixed_s + job.images / size.img_per_s
        before = found[-1] if found else None
        doublings = math.log2(size.gpus / before.gpus) if before else 1.0
        kwh = None if size.energy_j_per_image is None else size.energy_j_per_image * job.images / 3.6e6
        found.append(
            ScalingFact(
                size.gpus,
                size.img_per_s,
                speedup,
                speedup / size.gpus,
                (1 / speedup - 1 / size.gpus) / (1 - 1 / size.gpus) if size.gpus > 1 else None,
                None if before is None else size.img_per_s - before.img_per_s,
                None if before is None else (size.img_per_s / before.img_per_s) ** (1 / doublings) - 1,
                train_s,
                None if before is None else 1 - train_s / before.train_s,
                None if before is None else 1 - (train_s / before.train_s) ** (1 / doublings),
                None if job.gpu_hour_price is None else size.gpus * train_s / 3600 * job.gpu_hour_price,
                None if job.kwh_price is None or kwh is None else kwh * job.kwh_price,
            )
        )
    return found


@dataclass(frozen=True)
class SweetSpots:
    """Number of GPUs for each aim; None if no size meets it, or the deadline or price is missing.

    Attributes:
        deadline: fewest that train within the deadline.
        efficiency: most with an efficiency of at least `GOOD_EFFICIENCY`.
        gpu_cost: cheapest by GPU-hours.
        energy_cost: cheapest by energy.
        saturation: fewest from which a doubling saves less than `SATURATED_GAIN` of the time.
    """

    deadline: int | None
    efficiency: int | None
    gpu_cost: int | None
    energy_cost: int | None
    saturation: int | None


def sweet_spots(facts: Sequence[ScalingFact], deadline_s: float | None) -> SweetSpots:
    """Sweet spots among the measured sizes."""
    in_time = [one.gpus for one in facts if deadline_s is not None and one.train_s <= deadline_s]
    efficient = [one.gpus for one in facts if one.efficiency >= GOOD_EFFICIENCY]
    by_gpu = [(one.gpu_cost, one.gpus) for one in facts if one.gpu_cost is not None]
    by_kwh = [(one.energy_cost, one.gpus) for one in facts if one.energy_cost is not None]
    pairs = itertools.pairwise(facts)
    flat = [one.gpus for one, after in pairs if (after.saved_per_doubling or 0.0) < SATURATED_GAIN]
    return SweetSpots(
        min(in_time, default=None),
        max(efficient, default=None),
        min(by_gpu)[1] if by_gpu else None,
        min(by_kwh)[1] if by_kwh else None,
        min(flat, default=None),
    )
