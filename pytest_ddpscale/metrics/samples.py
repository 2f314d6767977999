"""Per-round values of each metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_ddpscale.metrics.rounds import ArmRound


@dataclass(frozen=True)
class Sample:
    """A metric's value in one round.

    Attributes:
        value: in the metric's unit.
        relative_error: standard error relative to the value, where one long imported sample is all
            there is; None for a round of our own.
    """

    value: float
    relative_error: float | None = None


Rounds = Mapping[int, ArmRound]


def throughput_samples(measured: Rounds) -> list[Sample]:
    """Images per second and GPU, in each round."""
    return [Sample(r.throughput_per_gpu_img_per_s, r.single_sample_error) for r in measured.values()]


def weak_efficiency_samples(measured: Rounds, alone: Rounds) -> list[Sample]:
    """Throughput per GPU under DDP over that of one GPU alone, as a fraction, round by round."""
    return _ratios(measured, alone, lambda many, one: many.throughput_per_gpu_img_per_s / one.throughput_per_gpu_img_per_s)


def strong_speedup_samples(measured: Rounds, alone: Rounds, world_size: int) -> list[Sample]:
    """How many times faster k GPUs train the global batch than one: total over single throughput."""
    return _ratios(
        measured,
        alone,
        lambda many, one: world_size * many.throughput_per_gpu_img_per_s / one.throughput_per_gpu_img_per_s,
    )


def strong_efficiency_samples(measured: Rounds, alone: Rounds) -> list[Sample]:
    """Strong-scaling speed-up over the number of GPUs, as a fraction."""
    return strong_speedup_samples(measured, alone, world_size=1)


def generation_ratio_samples(measured: Rounds, reference_img_per_s: float) -> list[Sample]:
    """Throughput per GPU over the reference generation's published one."""
    return [Sample(s.value / reference_img_per_s, s.relative_error) for s in throughput_samples(measured)]


def utilization_samples(measured: Rounds) -> list[Sample]:
    """Utilization of the least busy device, as a fraction; rounds that could not be read are left out."""
    values = [r.least_busy.utilization for r in measured.values() if r.least_busy is not None]
    return [Sample(value) for value in values if value is not None]


def peak_memory_samples(measured: Rounds) -> list[Sample]:
    """Most memory any rank held, in GiB."""
    values = [r.peak_memory_gib for r in measured.values()]
    return [Sample(value) for value in values if value is not None]


def _ratios(measured: Rounds, alone: Rounds, ratio: Callable[[ArmRound, ArmRound], float]) -> list[Sample]:
    """Ratios within a round, so that what changed between rounds hits both arms alike."""
    common = [(measured[n], alone[n]) for n in measured if n in alone]
    return [Sample(ratio(many, one), _combined(many, one)) for many, one in common]


def _combined(one: ArmRound, other: ArmRound) -> float | None:
    """Relative error of a ratio of two independent samples."""
    mine, theirs = one.single_sample_error, other.single_sample_error
    return None if mine is None or theirs is None else math.hypot(mine, theirs)
