"""Per-round values of each metric."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pytest_ddpscale.metrics.agreement import agreeing_share
from pytest_ddpscale.metrics.peers import slowest_to_peers
from pytest_ddpscale.metrics.rounds import ArmRound, Rounds
from pytest_ddpscale.metrics.slowness import Place, Slowness, place_of
from pytest_ddpscale.metrics.step_times import round_percentile_ms, step_time_cv
from pytest_ddpscale.results.records import Measurement

NOBODY_SLOW: Mapping[Place, float] = MappingProxyType({})


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


def throughput_samples(measured: Rounds) -> list[Sample]:
    """Images per second and GPU, in each round."""
    return [Sample(r.throughput_per_gpu_img_per_s, r.single_sample_error) for r in measured.values()]


def efficiency_samples(measured: Rounds, alone: Rounds, slowness: Slowness = NOBODY_SLOW) -> list[Sample]:
    """Throughput per GPU among many over that of one GPU alone, as a fraction, round by round.

    With the per-GPU batch fixed it is the weak-scaling efficiency; with the global batch fixed, where
    both train the same job, the strong-scaling one: speed-up over number of GPUs.

    Args:
        measured: rounds of all ranks together.
        alone: of one rank at a time.
        slowness: how many times slower ranks are than a typical one, by their place, as far as that is known. A rank
            alone counts as a typical one: else many would look better for each slow rank that has its turn.
    """
    return [
        Sample(measured[n].throughput_per_gpu_img_per_s / _typical_img_per_s(alone[n], slowness), error)
        for n, error in _paired(measured, alone)
    ]


def _typical_img_per_s(alone: ArmRound, slowness: Slowness) -> float:
    return alone.throughput_per_gpu_img_per_s * slowness.get(place_of(alone.slowest), 1.0)


def strong_speedup_samples(
    measured: Rounds, alone: Rounds, world_size: int, slowness: Slowness = NOBODY_SLOW
) -> list[Sample]:
    """How many times faster k GPUs train the global batch than one: k times the efficiency."""
    return [Sample(world_size * s.value, s.relative_error) for s in efficiency_samples(measured, alone, slowness)]


def generation_ratio_samples(measured: Rounds, reference_img_per_s: float) -> list[Sample]:
    """Throughput per GPU over the reference generation's published one."""
    return [Sample(s.value / reference_img_per_s, s.relative_error) for s in throughput_samples(measured)]


def model_flops_utilization_samples(measured: Rounds, flops_per_image: float, peak_tflops: float) -> list[Sample]:
    """Operations the model needs per second and GPU over the data sheet's peak, as a fraction.

    Model FLOPs utilization as in PaLM (Chowdhery et al., arXiv 2204.02311, appendix B): what the forward and
    backward pass need, whatever the hardware computed in addition.

    Args:
        measured: rounds of the arm.
        flops_per_image: of the forward and backward pass, multiplications and additions counted apart.
        peak_tflops: of one GPU in the workload's precision, dense, in 10¹² operations per second.
    """
    per_image = flops_per_image / (peak_tflops * 1e12)
    return [Sample(s.value * per_image, s.relative_error) for s in throughput_samples(measured)]


def exposed_communication_samples(measured: Rounds, no_sync: Rounds) -> list[Sample]:
    """Share of a step under DDP that the same computation without communication does not take.

    1 - t(no_sync)/t(ddp), mean step time of the slowest rank each. Noise makes it slightly negative where
    communication is hidden altogether.
    """
    return [Sample(1 - no_sync[n].step_s / measured[n].step_s) for n in _own_rounds(measured, no_sync)]


def ddp_overhead_samples(measured: Rounds, alone: Rounds) -> list[Sample]:
    """How much longer a step of one GPU takes under DDP than without it: t(ddp@1)/t(alone) - 1, maybe negative."""
    return [Sample(measured[n].step_s / alone[n].step_s - 1) for n in _own_rounds(measured, alone)]


def rank_uniformity_samples(measured_each: Rounds) -> list[Sample]:
    """Mean step time of the slowest rank over the median of all others', each computing by itself.

    Imported rounds are left out: nothing tells the error of the slowest of many.
    """
    return [Sample(slowest_to_peers(r)) for r in measured_each.values() if not r.slowest.single_sample]


def step_time_p95_samples(measured: Rounds) -> list[Sample]:
    """95th percentile of the step time over the raw steps of all ranks in a round, in ms.

    As `pytest_ddpscale.metrics.step_times.percentile` interpolates it. Rounds without raw steps, such as
    imported ones, are left out.
    """
    return _known((round_percentile_ms(r, 95), None) for r in measured.values())


def step_time_cv_samples(measured: Rounds) -> list[Sample]:
    """Standard deviation of the step time over its mean, on the rank where it is largest.

    An imported round has it from the standard deviation that it keeps in place of its steps.
    """
    return _known((step_time_cv(r), _no_error(r.slowest)) for r in measured.values())


def utilization_samples(measured: Rounds) -> list[Sample]:
    """Utilization of the least busy device, as a fraction; rounds that could not be read are left out."""
    found = [r.least_busy for r in measured.values()]
    return [Sample(r.utilization, _no_error(r)) for r in found if r is not None and r.utilization is not None]


def peak_memory_samples(measured: Rounds) -> list[Sample]:
    """Most memory any rank held, in GiB; rounds in which a rank's is unknown are left out."""
    return _known((r.peak_memory_gib, _no_error(r.slowest)) for r in measured.values())


def memory_spread_samples(measured: Rounds) -> list[Sample]:
    """Most less least memory that ranks held, relative to the most; left out where a rank's is unknown."""
    return _known((r.memory_spread, _no_error(r.slowest)) for r in measured.values())


def images_per_joule_samples(measured: Rounds) -> list[Sample]:
    """Images per joule of the GPU that got fewest; rounds in which any GPU's energy is unknown are left out."""
    return _known((r.images_per_joule, None) for r in measured.values())


def agreement_samples(measured_ddp: Rounds, seeded: Mapping[int, str]) -> list[Sample]:
    """Share of ranks that agree bit for bit; rounds in which a rank's checksum is missing are left out.

    One round below 1 is a disagreement, however many rounds are 1: their mean says nothing.

    Args:
        measured_ddp: rounds of an arm with communication.
        seeded: checksum of the step that each rank computed by itself, by rank.
    """
    return _known((agreeing_share(r, seeded), None) for r in measured_ddp.values())


def _known(found: Iterable[tuple[float | None, float | None]]) -> list[Sample]:
    """Samples of the values, with their errors, that could be read."""
    return [Sample(value, error) for value, error in found if value is not None]


def _own_rounds(measured: Rounds, baseline: Rounds) -> list[int]:
    """Rounds that both arms have; without imported ones, whose single samples say too little about a difference."""
    return [n for n, _ in _paired(measured, baseline) if not measured[n].slowest.single_sample]


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
