"""Facts from the sizes of a scaling study: speed-up, Amdahl's share, time, cost, and how many GPUs to use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddpscale.run.table import ArmRounds

SATURATED_GAIN = 0.05  # a doubling that saves a smaller share of the time is not worth it
GOOD_EFFICIENCY = 0.9


@dataclass(frozen=True)
class MeasuredSize:
    """One world size.

    Attributes:
        gpus: ranks that trained together.
        samples_per_s: of all ranks together, at the slowest rank's pace.
        energy_j_per_sample: mean of the GPUs; None if any rank's is unknown.
        efficiency: judged or estimated round by round; None to take that of the `samples_per_s`.
    """

    gpus: int
    samples_per_s: float
    energy_j_per_sample: float | None = None
    efficiency: float | None = None


def energy_j_per_sample(groups: ArmRounds) -> float | None:
    """Joules per image over all blocks of an arm; None if unknown."""
    cells = groups.present
    energy = float(groups.reading("energy_j")[cells].sum())
    images = float((groups.work * groups.count)[cells].sum())
    return energy / images if math.isfinite(energy) and energy > 0 else None


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
        samples_per_s: of all ranks together.
        speedup: efficiency times `gpus` where that is known; else over the smallest size, times that size's GPUs.
        efficiency: `speedup` over `gpus`.
        serial_share: Amdahl's serial fraction from the speed-up by Karp and Flatt (1990); None for one GPU.
        more_samples_per_s: throughput above the next smaller size's; None for the smallest.
        gain: of throughput over the next smaller size, per doubling: 0.69 is 69 %; None for the smallest.
        train_s: fixed seconds plus images over throughput, or the measured time.
        saved_share: of the next smaller size's `train_s`; None for the smallest.
        saved_per_doubling: `saved_share`, split evenly over the doublings between the sizes; None for the smallest.
        gpu_cost: GPU-hours times their price; None without a price.
        energy_cost: kWh of the GPUs times their price; None without a price or a measured energy.
    """

    gpus: int
    samples_per_s: float
    speedup: float
    efficiency: float
    serial_share: float | None
    more_samples_per_s: float | None
    gain: float | None
    train_s: float
    saved_share: float | None
    saved_per_doubling: float | None
    gpu_cost: float | None
    energy_cost: float | None


def scaling_facts(
    sizes: Sequence[MeasuredSize], job: TrainingJob, measured_s: Sequence[float] = ()
) -> list[ScalingFact]:
    """One fact for each size, ascending; `measured_s` is each size's time if whole runs were timed."""
    found: list[ScalingFact] = []
    for place, size in enumerate(sizes):
        per_gpu = sizes[0].samples_per_s / sizes[0].gpus
        speedup = size.samples_per_s / per_gpu if size.efficiency is None else size.efficiency * size.gpus
        efficiency = speedup / size.gpus if size.efficiency is None else size.efficiency
        train_s = measured_s[place] if measured_s else job.fixed_s + job.images / size.samples_per_s
        before = found[-1] if found else None
        doublings = math.log2(size.gpus / before.gpus) if before else 1.0
        kwh = None if size.energy_j_per_sample is None else size.energy_j_per_sample * job.images / 3.6e6
        found.append(
            ScalingFact(
                size.gpus, size.samples_per_s, speedup, efficiency,
                (1 / speedup - 1 / size.gpus) / (1 - 1 / size.gpus) if size.gpus > 1 else None,
                None if before is None else size.samples_per_s - before.samples_per_s,
                None if before is None else (size.samples_per_s / before.samples_per_s) ** (1 / doublings) - 1,
                train_s,
                None if before is None else 1 - train_s / before.train_s,
                None if before is None else 1 - (train_s / before.train_s) ** (1 / doublings),
                None if job.gpu_hour_price is None else size.gpus * train_s / 3600 * job.gpu_hour_price,
                None if job.kwh_price is None or kwh is None else kwh * job.kwh_price,
            )
        )  # fmt: skip
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
    cheapest, thriftiest = (min(costs)[1] if costs else None for costs in (by_gpu, by_kwh))
    return SweetSpots(
        min(in_time, default=None), max(efficient, default=None), cheapest, thriftiest, min(flat, default=None)
    )
