"""Per-round values of each metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_ddpscale.metrics.rounds import ArmRound
from pytest_ddpscale.results.records import Measurement


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


def efficiency_samples(measured: Rounds, alone: Rounds) -> list[Sample]:
    """Throughput per GPU among many over that of one GPU alone, as a fraction, round by round.

    With the per-GPU batch fixed it is the weak-scaling efficiency; with the global batch fixed, where
    both train the same job, the strong-scaling one: speed-up over number of GPUs.
    """
    return [
        Sample(measured[n].throughput_per_gpu_img_per_s / alone[n].throughput_per_gpu_img_per_s, error)
        for n, error in _paired(measured, alone)
    ]


def strong_speedup_samples(measured: Rounds, alone: Rounds, world_size: int) -> list[Sample]:
    """How many times faster k GPUs train the global batch than one: k times the efficiency."""
    return [Sample(world_size * s.value, s.relative_error) for s in efficiency_samples(measured, alone)]


def generation_ratio_samples(measured: Rounds, reference_img_per_s: float) -> list[Sample]:
    """Throughput per GPU over the reference generation's published one."""
    return [Sample(s.value / reference_img_per_s, s.relative_error) for s in throughput_samples(measured)]


def utilization_samples(measured: Rounds) -> list[Sample]:
    """Utilization of the least busy device, as a fraction; rounds that could not be read are left out."""
    found = [r.least_busy for r in measured.values()]
    return [Sample(r.utilization, _no_error(r)) for r in found if r is not None and r.utilization is not None]


def peak_memory_samples(measured: Rounds) -> list[Sample]:
    """Most memory any rank held, in GiB; rounds in which a rank's is unknown are left out."""
    found = [(r.peak_memory_gib, _no_error(r.slowest)) for r in measured.values()]
    return [Sample(value, error) for value, error in found if value is not None]


def _no_error(measurement: Measurement) -> float | None:
    """An imported value that is all there is stands for itself: nothing tells its error."""
    return 0.0 if measurement.single_sample else None


def _paired(measured: Rounds, alone: Rounds) -> list[tuple[int, float | None]]:
    """Rounds that both arms have, so that what changed between rounds hits both alike, and their error."""
    return [(n, _combined(measured[n], alone[n])) for n in measured if n in alone]


def _combined(one: ArmRound, other: ArmRound) -> float | None:
    """Relative error of a ratio of two independent samples."""
    mine, theirs = one.single_sample_error, other.single_sample_error
    return None if mine is None or theirs is None else math.hypot(mine, theirs)
