"""Records of a whole training run in measurements.jsonl: one per epoch, one at its end, one from the supervisor."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta

from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.records import PeakBytes, Ranks, refuse_twice
from pytest_ddpscale.run.strict_json import Count, Positive, Record, Seconds, each, refuse_other_lengths

LOSS_BYTES = 4  # float32, as it is computed
Span = Annotated[float, Meta(ge=0, le=1e7)]
Checksum = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class RankEpoch(Record, frozen=True, kw_only=True):
    """One rank's part of a `TrainedEpoch`, sent to rank 0; see there."""

    rank: Count
    trained: Count
    validated: Count
    correct: Count
    compile_s: Span
    training_s: Span
    waiting_s: Span
    validation_s: Span
    validation_waiting_s: Span


class TrainedEpoch(Record, frozen=True, kw_only=True, tag_field="kind", tag="trained_epoch"):
    """One epoch. Columns are over ranks; a shared value is stored once.

    Attributes:
        study: id of the training run.
        gang: number of the gang.
        epoch: counted from 0.
        ranks: all of the gang, in order.
        losses: loss of each iteration, mean over the ranks' batches: little-endian float32, in base64.
        trained: images that each rank trained.
        validated: images that each rank validated, each of them once.
        correct: validated images that were classified correctly.
        compile_s: first step and first validated batch under torch.compile, in seconds; 0 without compilation.
        training_s: seconds of steps, including the wait for the device at the end of the epoch.
        waiting_s: seconds blocked in ``next(loader)`` while training.
        validation_s: seconds of forward passes.
        validation_waiting_s: seconds blocked in ``next(loader)`` while validating.
    """

    study: str
    gang: Count
    epoch: Count
    ranks: Ranks
    losses: bytes
    trained: Positive | tuple[Positive, ...]
    validated: Count | tuple[Count, ...]
    correct: Count | tuple[Count, ...]
    compile_s: Span | tuple[Span, ...]
    training_s: Span | tuple[Span, ...]
    waiting_s: Span | tuple[Span, ...]
    validation_s: Span | tuple[Span, ...]
    validation_waiting_s: Span | tuple[Span, ...]

    def __post_init__(self) -> None:
        refuse_twice(self.ranks)
        refuse_other_lengths(self, len(self.ranks), *(name for name in RankEpoch.__struct_fields__ if name != "rank"))
        if not self.losses or len(self.losses) % LOSS_BYTES:
            raise ValueError(f"losses has {len(self.losses)} bytes; expected {LOSS_BYTES} for each iteration")
        for correct, validated in zip(self.of_ranks("correct"), self.of_ranks("validated"), strict=True):
            if correct > validated:
                raise ValueError(f"correct={correct:g} of validated={validated:g}; expected at most as many")

    def of_ranks(self, name: str) -> FloatArray:
        """A column with one value for each rank, (ranks,)."""
        return np.array(each(getattr(self, name), len(self.ranks)), np.float64)

    @property
    def loss_of_iterations(self) -> FloatArray:
        """Mean loss of each iteration, (iterations,)."""
        return np.frombuffer(self.losses, "<f4").astype(np.float64)

    @property
    def samples_per_s(self) -> float:
        """Training throughput of all ranks at the slowest one's pace, including waiting for data."""
        seconds = self.of_ranks("compile_s") + self.of_ranks("training_s") + self.of_ranks("waiting_s")
        return float(self.of_ranks("trained").sum() / seconds.max())

    @property
    def accuracy(self) -> float:
        """Share of all validated images that were classified correctly, ranks weighted by their images."""
        return float(self.of_ranks("correct").sum() / self.of_ranks("validated").sum())

    @property
    def validation_samples_per_s(self) -> float:
        """Validation throughput, computed like `samples_per_s`."""
        seconds = self.of_ranks("validation_s") + self.of_ranks("validation_waiting_s")
        return float(self.of_ranks("validated").sum() / seconds.max())


class RankTrained(Record, frozen=True, kw_only=True):
    """One rank's part of a `TrainedRun`; see there."""

    rank: Count
    allocated_bytes: PeakBytes | None
    reserved_bytes: PeakBytes | None
    parameters_checksum: Checksum


class TrainedRun(Record, frozen=True, kw_only=True, tag_field="kind", tag="trained_run"):
    """The end of a run that trained all epochs or reached its loss. Columns as in `TrainedEpoch`.

    Attributes:
        study: id of the training run.
        gang: number of the gang.
        ranks: all of the gang, in order.
        start_up_s: seconds from the supervisor's start of the launch until the first epoch, on rank 0's clock.
        parameters: number of parameters of the model.
        trainable_parameters: number of those that are trained.
        allocated_bytes: peak memory allocated by torch's allocator; None on a CPU.
        reserved_bytes: peak memory that it reserved on the device; None on a CPU.
        parameters_checksum: of the bits of all parameters at the end; replicas have to agree.
    """

    study: str
    gang: Count
    ranks: Ranks
    start_up_s: Span
    parameters: Positive
    trainable_parameters: Positive
    allocated_bytes: PeakBytes | tuple[PeakBytes | None, ...] | None
    reserved_bytes: PeakBytes | tuple[PeakBytes | None, ...] | None
    parameters_checksum: Checksum | tuple[Checksum, ...]

    def __post_init__(self) -> None:
        refuse_twice(self.ranks)
        refuse_other_lengths(self, len(self.ranks), "allocated_bytes", "reserved_bytes", "parameters_checksum")
        if self.trainable_parameters > self.parameters:
            raise ValueError(f"trainable_parameters={self.trainable_parameters}; expected at most {self.parameters}")

    @property
    def replicas_agree(self) -> bool:
        """Whether all ranks ended with the same parameters."""
        return isinstance(self.parameters_checksum, str)

    def most_bytes(self, name: str) -> float | None:
        """The largest ``allocated_bytes`` or ``reserved_bytes`` of any rank; None on a CPU."""
        return max((value for value in each(getattr(self, name), len(self.ranks)) if value is not None), default=None)


class LaunchTime(Record, frozen=True, kw_only=True, tag_field="kind", tag="launch_time"):
    """Seconds from the start of a launch until the supervisor heard of the run's end, by its clock."""

    study: str
    gang: Count
    seconds: Seconds
