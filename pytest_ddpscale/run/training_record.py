"""Records of whole training runs: one per epoch, one at the end, one from the supervisor."""

from __future__ import annotations

from statistics import fmean
from typing import Annotated

from msgspec import Meta

from pytest_ddpscale.run.records import PeakBytes
from pytest_ddpscale.run.strict_json import Count, Positive, Record, Seconds

Span = Annotated[float, Meta(ge=0, le=1e7)]
Checksum = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class RankEpoch(Record, frozen=True, kw_only=True):
    """One rank's epoch, sent to rank 0.

    Attributes:
        rank: all of the gang have one.
        trained: images that it trained.
        validated: images that it validated, each of them once.
        correct: validated images that were classified correctly.
        compile_s: first step and first validated batch under torch.compile, in seconds; 0 without compilation.
        training_s: seconds of steps, including the wait for the device at the end of the epoch.
        waiting_s: seconds blocked in ``next(loader)`` while training.
        validation_s: seconds of forward passes.
        validation_waiting_s: seconds blocked in ``next(loader)`` while validating.
    """

    rank: Count
    trained: Positive
    validated: Count
    correct: Count
    compile_s: Span
    training_s: Span
    waiting_s: Span
    validation_s: Span
    validation_waiting_s: Span

    @property
    def trained_s(self) -> float:
        """Seconds of training, including compilation and waiting for data."""
        return self.compile_s + self.training_s + self.waiting_s


class TrainedEpoch(Record, frozen=True, kw_only=True, tag_field="kind", tag="trained_epoch"):
    """One epoch.

    Attributes:
        study: id of the training run.
        gang: number of the gang.
        epoch: counted from 0.
        losses: loss of each iteration, mean over the ranks' batches.
        ranks: all of the gang, in order.
    """

    study: str
    gang: Count
    epoch: Count
    losses: Annotated[tuple[float, ...], Meta(min_length=1)]
    ranks: Annotated[tuple[RankEpoch, ...], Meta(min_length=1)]

    @property
    def mean_loss(self) -> float:
        """Mean over the iterations."""
        return fmean(self.losses)

    @property
    def samples_per_s(self) -> float:
        """Training throughput of all ranks at the slowest one's pace, including waiting for data."""
        return sum(one.trained for one in self.ranks) / max(one.trained_s for one in self.ranks)

    @property
    def accuracy(self) -> float:
        """Share of all validated images that were classified correctly, ranks weighted by their images."""
        return sum(one.correct for one in self.ranks) / sum(one.validated for one in self.ranks)

    @property
    def validation_samples_per_s(self) -> float:
        """Validation throughput, computed like `samples_per_s`."""
        longest_s = max(one.validation_s + one.validation_waiting_s for one in self.ranks)
        return sum(one.validated for one in self.ranks) / longest_s


class RankTrained(Record, frozen=True, kw_only=True):
    """The end of a rank's run, sent to rank 0.

    Attributes:
        rank: all of the gang have one.
        allocated_bytes: peak memory allocated by torch's allocator; None on a CPU.
        reserved_bytes: peak memory that it reserved on the device; None on a CPU.
        parameters_checksum: of the bits of all parameters at the end; replicas have to agree.
        skipped_steps: optimizer steps that the loss scaler skipped.
    """

    rank: Count
    allocated_bytes: PeakBytes | None = None
    reserved_bytes: PeakBytes | None = None
    parameters_checksum: Checksum
    skipped_steps: Count = 0


class TrainedRun(Record, frozen=True, kw_only=True, tag_field="kind", tag="trained_run"):
    """The end of a run that trained all epochs or reached its loss.

    Attributes:
        study: id of the training run.
        gang: number of the gang.
        start_up_s: seconds from the supervisor's start of the launch until the first epoch, on rank 0's clock.
        parameters: number of parameters of the model.
        trainable_parameters: number of those that are trained.
        ranks: all of the gang, in order.
    """

    study: str
    gang: Count
    start_up_s: Span
    parameters: Positive
    trainable_parameters: Positive
    ranks: Annotated[tuple[RankTrained, ...], Meta(min_length=1)]


class LaunchTime(Record, frozen=True, kw_only=True, tag_field="kind", tag="launch_time"):
    """Seconds from the start of a launch until the supervisor heard of the run's end, by its clock."""

    study: str
    gang: Count
    seconds: Seconds


OfTraining = TrainedEpoch | TrainedRun | LaunchTime
