"""Whole training runs: their records, one per epoch, one at the end, one from the supervisor; and what these add up to.

A run is complete only if every planned epoch is there with all its images: otherwise its time and accuracy mean
nothing. Lines that contradict each other or the plan are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import numpy as np
from msgspec import Meta

from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.training_run import TrainingRun, loss_reached
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.records import GangRecord, PeakBytes, StudyEnd, gangs_by_number
from pytest_ddpscale.run.strict_json import Count, Positive, Record, Seconds

LOSS_BYTES = 4  # float32, as it is computed
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

    def __post_init__(self) -> None:
        if self.correct > self.validated:
            raise ValueError(f"correct={self.correct} of validated={self.validated}; expected at most as many")


class TrainedEpoch(Record, frozen=True, kw_only=True, tag_field="kind", tag="trained_epoch"):
    """One epoch.

    Attributes:
        study: id of the training run.
        gang: number of the gang.
        epoch: counted from 0.
        losses: loss of each iteration, mean over the ranks' batches: little-endian float32, in base64.
        ranks: all of the gang, in order.
    """

    study: str
    gang: Count
    epoch: Count
    losses: bytes
    ranks: Annotated[tuple[RankEpoch, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        if not self.losses or len(self.losses) % LOSS_BYTES:
            raise ValueError(f"losses has {len(self.losses)} bytes; expected {LOSS_BYTES} for each iteration")

    def of_ranks(self, *names: str) -> FloatArray:
        """The sum of some quantities of each rank, (ranks,)."""
        return np.array([sum(getattr(one, name) for name in names) for one in self.ranks], np.float64)

    @property
    def loss_of_iterations(self) -> FloatArray:
        """Mean loss of each iteration, (iterations,)."""
        return np.frombuffer(self.losses, "<f4").astype(np.float64)

    @property
    def samples_per_s(self) -> float:
        """Training throughput of all ranks at the slowest one's pace, including waiting for data."""
        return float(self.of_ranks("trained").sum() / self.of_ranks("compile_s", "training_s", "waiting_s").max())

    @property
    def accuracy(self) -> float:
        """Share of all validated images that were classified correctly, ranks weighted by their images."""
        return float(self.of_ranks("correct").sum() / self.of_ranks("validated").sum())

    @property
    def validation_samples_per_s(self) -> float:
        """Validation throughput, computed like `samples_per_s`."""
        return float(self.of_ranks("validated").sum() / self.of_ranks("validation_s", "validation_waiting_s").max())


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

    def __post_init__(self) -> None:
        if self.trainable_parameters > self.parameters:
            raise ValueError(f"trainable_parameters={self.trainable_parameters}; expected at most {self.parameters}")

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
        return [float(loss) for epoch in self.epochs for loss in epoch.loss_of_iterations]

    @property
    def skipped_steps(self) -> int:
        """Optimizer steps of a complete run that the loss scaler skipped, on the rank with the most."""
        assert self.end is not None
        return max(one.skipped_steps for one in self.end.ranks)

    @property
    def samples_per_s(self) -> float | None:
        """Mean throughput without the first epoch, in which caches fill and kernels compile; None with one epoch."""
        later = [epoch.samples_per_s for epoch in self.epochs[1:]]
        return sum(later) / len(later) if later else None


T = TypeVar("T", TrainedEpoch, TrainedRun, LaunchTime, StudyEnd)


def trained_runs(plan: Plan, records: Sequence[object]) -> dict[str, RunRecords]:
    """All runs of a plan, by id.

    Raises:
        ValueError: a line of measurements.jsonl contradicts others or the plan; the message has its number.
    """
    found: dict[str, RunRecords] = {}
    gangs, lines = gangs_by_number(records), list(enumerate(records, 1))

    def said(kind: type[T], study: str) -> list[tuple[int, T]]:
        return [(line, one) for line, one in lines if isinstance(one, kind) and one.study == study]

    for run in plan.training_runs:
        epochs, ends, outers = said(TrainedEpoch, run.id), said(TrainedRun, run.id), said(LaunchTime, run.id)
        for what, again in (("ends {}, which line {} ended", ends), ("times {}, which line {} timed", outers)):
            if len(again) > 1:
                raise ValueError(f"line {again[1][0]} {what.format(run.id, again[0][0])}")
        one = RunRecords(
            run, tuple(epoch for _, epoch in epochs), ends[0][1] if ends else None,
            outers[0][1].seconds if outers else None, next((end for _, end in reversed(said(StudyEnd, run.id))), None),
        )  # fmt: skip
        for line, problem in _problems(one, epochs, ends, outers, gangs):
            raise ValueError(f"line {line} {problem}")
        found[run.id] = one
    for line, record in lines:
        if isinstance(record, TrainedEpoch | TrainedRun | LaunchTime) and record.study not in found:
            raise ValueError(f"line {line} is of {record.study}, which plan.json does not plan")
    return found


def _problems(
    one: RunRecords, epochs: Sequence[tuple[int, TrainedEpoch]], ends: Sequence[tuple[int, TrainedRun]],
    outers: Sequence[tuple[int, LaunchTime]], gangs: Mapping[int, GangRecord],
) -> Iterator[tuple[int, str]]:  # fmt: skip
    """Contradictions, with their lines."""
    run, first = one.run, epochs[0][1].gang if epochs else None
    of_ranks: list[tuple[int, TrainedEpoch | TrainedRun]] = [*epochs, *ends]
    for line, trained in of_ranks:
        ranks, size = [rank.rank for rank in trained.ranks], gangs[trained.gang].world_size
        if size != run.world_size or ranks != list(range(size)):
            yield line, f"has ranks {ranks} of {size}; expected 0 to {run.world_size - 1}"
    for number, (line, epoch) in enumerate(epochs):
        of = f"of epoch {epoch.epoch} of {run.id}"
        if epoch.epoch != number or number >= run.epochs:
            yield line, f"is {of}; expected epoch {number} of {run.epochs}"
        if epoch.gang != first:
            yield line, f"is {of} by gang {epoch.gang}; expected gang {first}, like the first epoch"
        yield from ((line, f"{problem} {of}") for problem in _wrong_counts(run, epoch))
    is_reached = run.loss_threshold is not None and loss_reached(one.losses, run.loss_threshold) is not None
    for line, end in ends:
        if epochs and (end.gang != first or line < epochs[-1][0]):
            yield line, f"ends {run.id} by gang {end.gang}, or before its last epoch"
        if len(epochs) != run.epochs and not is_reached:
            yield line, f"ends {run.id} after {len(epochs)} epochs; expected {run.epochs}"
        if one.study_end is not None and one.study_end.reason == "decided" and not is_reached:
            yield line, f"ends {run.id}, whose loss has not reached {run.loss_threshold}"
    for line, outer in outers:
        if epochs and outer.gang != first:
            yield line, f"times gang {outer.gang}; expected {first}, which trained {run.id}"


def _wrong_counts(run: TrainingRun, epoch: TrainedEpoch) -> Iterator[str]:
    losses = epoch.loss_of_iterations
    if len(losses) != run.iterations:
        yield f"has {len(losses)} losses (losses); expected one for each of {run.iterations} iterations"
    elif not np.isfinite(losses).all():
        yield f"has a loss of {losses[~np.isfinite(losses)][0]} (losses)"
    each, samples = run.iterations * run.workload.batch_size, run.workload.family.samples
    if (epoch.of_ranks("trained") != each).any():
        yield f"trained {epoch.of_ranks('trained').astype(int).tolist()} {samples}; expected {each} on each rank"
    validated = int(epoch.of_ranks("validated").sum())
    if validated != run.samples.validation_samples:
        yield f"validated {validated} {samples}; expected {run.samples.validation_samples}, each once"
    for name in ("training_s", "validation_s"):
        if not (epoch.of_ranks(name, "compile_s") > 0).all():
            yield f"took no time ({name})"
