"""Input of metrics: the values of an arm in each of its rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pytest_ddpscale.judge.agreement import agreeing_share
from pytest_ddpscale.judge.peers import slowest_to_peers
from pytest_ddpscale.judge.rounds import ArmRounds
from pytest_ddpscale.judge.slowness import Slowness
from pytest_ddpscale.judge.step_times import round_percentiles_ms, step_time_cv
from pytest_ddpscale.plan.per_round import PerRound
from pytest_ddpscale.run.column_record import FloatArray


@dataclass(frozen=True)
class ArmSamples:
    """Values of one arm: `pytest_ddpscale.plan.metric.ArmValues`. Rounds without a value are left out.

    Attributes:
        rounds: the complete rounds.
    """

    rounds: ArmRounds

    @property
    def own(self) -> ArmSamples:
        """Without imported rounds."""
        imported = self.rounds.measured.single_sample
        return ArmSamples(self.rounds.of(~imported)) if imported.any() else self

    @property
    def samples_per_s_per_gpu(self) -> PerRound:
        """Images per second and GPU, at the slowest rank's pace; an imported round has the error of its steps."""
        return self._of(self.rounds.samples_per_s_per_gpu, self.rounds.single_sample_error)

    @property
    def step_s(self) -> PerRound:
        """Mean step time of the slowest rank, in seconds."""
        return self._of(self.rounds.step_s, self.rounds.single_sample_error)

    @property
    def slowest_to_peers(self) -> PerRound:
        """Mean step time of the slowest rank over the median of all others'; of at least two ranks."""
        return self._of(slowest_to_peers(self.rounds))

    def step_percentile_ms(self, per_cent: float) -> PerRound:
        """Percentile of the step time over the raw steps of all ranks, in ms.

        Interpolated like `pytest_ddpscale.judge.step_times.percentile`. Imported rounds keep no raw steps.
        """
        return self._of(round_percentiles_ms(self.rounds, per_cent))

    @property
    def step_cv(self) -> PerRound:
        """Standard deviation of the step time over its mean, on the rank where it is largest.

        An imported round keeps a standard deviation instead of its steps; it is used here.
        """
        return self._of(step_time_cv(self.rounds), self._no_error)

    @property
    def utilization(self) -> PerRound:
        """Utilization of the least busy device, 0 … 1."""
        return self._of(self.rounds.utilization, self._no_error)

    @property
    def peak_memory_gib(self) -> PerRound:
        """Most memory any rank held, in GiB."""
        return self._of(self.rounds.peak_memory_gib, self._no_error)

    @property
    def memory_spread(self) -> PerRound:
        """Maximum minus minimum memory of the ranks, relative to the maximum."""
        return self._of(self.rounds.memory_spread, self._no_error)

    @property
    def samples_per_joule(self) -> PerRound:
        """Images per joule of the least efficient GPU."""
        return self._of(self.rounds.images_per_joule)

    def agreeing_share(self, seeded: Mapping[int, str]) -> PerRound:
        """Share of ranks that agree bit for bit in parameters and in `seeded`, the checksums of their seeded step."""
        return self._of(agreeing_share(self.rounds, seeded))

    def typical_samples_per_s(self, slowness: Slowness) -> PerRound:
        """Images per second of a typical rank, for an arm in which ranks take turns.

        Args:
            slowness: step time of ranks over that of a typical one, by place, where known. The throughput of each
                turn is scaled to a typical rank: otherwise slow ranks in the baseline would make scaling look better.
        """
        values = self.rounds.samples_per_s_per_gpu
        if slowness and len(values):
            of_ranks = np.array([slowness.get(place, 1.0) for place in self.rounds.ranks.places])
            turns = self.rounds.measured.rank_of_cell[np.arange(len(values)), self.rounds.slowest]
            values = values * of_ranks[turns]
        return self._of(values, self.rounds.single_sample_error)

    @property
    def _no_error(self) -> FloatArray | None:
        """Error 0 for imported rounds: a single value has no known error and is taken as exact."""
        imported = self.rounds.measured.single_sample
        return np.where(imported, 0.0, np.nan) if imported.any() else None

    def _of(self, values: FloatArray, errors: FloatArray | None = None) -> PerRound:
        """Known values with their relative errors; NaN means unknown for either."""
        there = ~np.isnan(values)
        return PerRound(self.rounds.numbers[there], values[there], None if errors is None else errors[there])


@dataclass(frozen=True)
class MeasuredArms:
    """Input of one metric: `pytest_ddpscale.plan.metric.MetricInput`.

    Attributes:
        measured: complete rounds of the judged arm.
        compared: complete rounds of its baseline; empty without one.
        world_size: ranks of the judged arm.
        slowness: of the ranks, if they take turns in the baseline and it is known.
        flops_per_sample: of the forward and backward pass; None if not counted.
        seeded_checksums: of the seeded step that each rank computed alone, by rank.
        reference: throughput per GPU that another SKU's line publishes, in samples per second; None if the requirement
            names none.
        peak: dense peak of one GPU in the workload's precision, in TFLOPS; None if unknown.
    """

    measured: ArmRounds
    compared: ArmRounds
    world_size: int
    slowness: Slowness = field(default_factory=dict)
    flops_per_sample: float | None = None
    seeded_checksums: Mapping[int, str] = field(default_factory=dict)
    reference: float | None = None
    peak: float | None = None

    @property
    def arm(self) -> ArmSamples:
        """The judged arm."""
        return ArmSamples(self.measured)

    @property
    def baseline(self) -> ArmSamples:
        """The arm it is compared with."""
        return ArmSamples(self.compared)

    @property
    def alone_samples_per_s(self) -> PerRound:
        """Images per second of a typical rank alone."""
        return self.baseline.typical_samples_per_s(self.slowness)

    @property
    def reference_samples_per_s(self) -> float:
        """Published throughput per GPU of the reference."""
        assert self.reference is not None  # checked by the thresholds model
        return self.reference

    @property
    def peak_tflops(self) -> float:
        """Dense peak of one GPU, in TFLOPS."""
        assert self.peak is not None  # likewise
        return self.peak
