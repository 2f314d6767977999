"""Whole training runs: their records, one per epoch, one at the end, one from the supervisor; and what these add up to.

A run is complete only if every planned epoch is there with all its images: otherwise its time and accuracy mean
nothing. Lines that contradict each other or the plan are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated

from msgspec import Meta

from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.training_run import TrainingRun, loss_reached
from pytest_ddpscale.run.records import GangRecord, PeakBytes, StudyEnd, gangs_by_number
from pytest_ddpscale.run.strict_json import Count, Positive, Record, Seconds

MOST_UNEXPLAINED = 0.02  # of the outer clock's time, in either direction
# Spans on rank 0's clock, in order; waiting includes training and validation.
SPANS = ("start_up_s", "compile_s", "training_s", "validation_s", "waiting_s")
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

    @property
    def checksums(self) -> list[str]:
        """Of the parameters of all ranks; only one if they ended with the same."""
        found = [one.parameters_checksum for one in self.ranks]
        return found if len(set(found)) > 1 else found[:1]

    def most_bytes(self, name: str) -> float | None:
        """The largest ``allocated_bytes`` or ``reserved_bytes`` of any rank; None on a CPU."""
        return max((held for one in self.ranks if (held := getattr(one, name)) is not None), default=None)


class LaunchTime(Record, frozen=True, kw_only=True, tag_field="kind", tag="launch_time"):
    """Seconds from the start of a launch until the supervisor heard of the run's end, by its clock."""

    study: str
    gang: Count
    seconds: Seconds


OfTraining = TrainedEpoch | TrainedRun | LaunchTime


@dataclass(frozen=True)
class RunRecords:
    """All lines of one run, in order.

    Attributes:
        run: the planned run.
        epochs: in order.
        end: None if the run is incomplete.
        outer_s: seconds from the start of the launch until the supervisor heard of the end; None if incomplete.
        study_end: how it ended; None if not recorded.
    """

    run: TrainingRun
    epochs: tuple[TrainedEpoch, ...] = ()
    end: TrainedRun | None = None
    outer_s: float | None = None
    study_end: StudyEnd | None = None

    @property
    def is_complete(self) -> bool:
        """Whether it ended regularly, by training all epochs or by reaching its loss."""
        ended = self.study_end is not None and self.study_end.reason in ("rounds", "decided")
        return ended and self.end is not None and self.outer_s is not None

    @property
    def spans_s(self) -> Mapping[str, float]:
        """`SPANS` of a complete run on rank 0's clock, in seconds."""
        assert self.end is not None
        sums = {name: sum(float(getattr(one.ranks[0], name)) for one in self.epochs) for name in SPANS[1:]}
        sums["waiting_s"] += sum(one.ranks[0].validation_waiting_s for one in self.epochs)
        return {"start_up_s": self.end.start_up_s, **sums}

    @property
    def complete_s(self) -> float:
        """Complete time: the sum of `spans_s`."""
        return sum(self.spans_s.values())

    @property
    def unexplained(self) -> float:
        """Share of the outer clock's time outside all spans; negative if spans add up to more."""
        assert self.outer_s is not None
        return 1 - self.complete_s / self.outer_s

    @property
    def losses(self) -> list[float]:
        """Losses of all iterations."""
        return [loss for epoch in self.epochs for loss in epoch.losses]

    @property
    def is_reached(self) -> bool:
        """Whether it reached the loss that was asked for."""
        threshold = self.run.loss_threshold
        return threshold is not None and loss_reached(self.losses, threshold) is not None

    @property
    def skipped_steps(self) -> int:
        """Optimizer steps of a complete run that the loss scaler skipped, on the rank with the most."""
        assert self.end is not None
        return max(one.skipped_steps for one in self.end.ranks)

    @property
    def samples_per_s(self) -> float | None:
        """Mean throughput without the first epoch, in which caches fill and kernels compile; None with one epoch."""
        return fmean(epoch.samples_per_s for epoch in self.epochs[1:]) if len(self.epochs) > 1 else None


def trained_runs(plan: Plan, records: Sequence[object]) -> dict[str, RunRecords]:
    """All runs of a plan, by id.

    Raises:
        ValueError: a line of measurements.jsonl contradicts earlier ones or the plan; the message has its number.
    """
    found, gangs = {run.id: RunRecords(run) for run in plan.training_runs}, gangs_by_number(records)
    for line, record in enumerate(records, 1):
        if isinstance(record, OfTraining | StudyEnd) and record.study in found:
            try:
                found[record.study] = _with(found[record.study], record, gangs)
            except ValueError as error:
                raise ValueError(f"line {line} {error}") from None
        elif isinstance(record, OfTraining):
            raise ValueError(f"line {line} is of {record.study}, which plan.json does not plan")
    return found


def _with(one: RunRecords, record: OfTraining | StudyEnd, gangs: Mapping[int, GangRecord]) -> RunRecords:
    """A run with its next line. Raises ValueError if that contradicts the plan or earlier lines."""
    run = one.run
    if isinstance(record, LaunchTime):
        return replace(one, outer_s=record.seconds)
    if isinstance(record, StudyEnd):
        return replace(one, study_end=record)
    ranks, size = [rank.rank for rank in record.ranks], gangs[record.gang].world_size
    if size != run.world_size or ranks != list(range(size)):
        raise ValueError(f"has ranks {ranks} of {size}; expected 0 to {run.world_size - 1}")
    if isinstance(record, TrainedRun):
        if len(one.epochs) != run.epochs and not one.is_reached:
            raise ValueError(f"ends {run.id} after {len(one.epochs)} epochs; expected {run.epochs}")
        return replace(one, end=record)
    of, samples = f"of epoch {record.epoch} of {run.id}", run.workload.family.samples
    if one.end is not None or record.epoch != len(one.epochs) or record.epoch >= run.epochs:
        raise ValueError(f"is {of}; expected epoch {len(one.epochs)} of {run.epochs}")
    trained, each = [rank.trained for rank in record.ranks], run.iterations * run.workload.batch_size
    if set(trained) != {each}:
        raise ValueError(f"trained {trained} {samples} {of}; expected {each} on each rank")
    validated = sum(rank.validated for rank in record.ranks)
    if validated != run.samples.validation_samples:
        raise ValueError(f"validated {validated} {samples} {of}; expected {run.samples.validation_samples}, each once")
    return replace(one, epochs=(*one.epochs, record))
