"""Whole training runs: their records, one per epoch, one at the end, one from the supervisor; and what these add up to.

A run is complete only if every planned epoch is there with all its images: otherwise its time and accuracy mean
nothing. Lines that contradict each other or the plan are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.training_run import TrainingRun, loss_reached
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.records import PeakBytes, Ranks, StudyEnd, gangs_by_number, refuse_twice
from pytest_ddpscale.run.strict_json import Count, Positive, Record, Seconds, each, refuse_other_lengths

LOSS_BYTES = 4  # float32, as it is computed
MOST_UNEXPLAINED = 0.02  # of the outer clock's time, in either direction
# Spans on rank 0's clock, in order; waiting includes training and validation.
SPANS = ("start_up_s", "compile_s", "training_s", "validation_s", "waiting_s")
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
    skipped_steps: Count


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
        skipped_steps: optimizer steps that the loss scaler skipped.
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
    skipped_steps: Count | tuple[Count, ...] = 0

    def __post_init__(self) -> None:
        refuse_twice(self.ranks)
        refuse_other_lengths(self, len(self.ranks), *(name for name in RankTrained.__struct_fields__ if name != "rank"))
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
        sums = {
            name: sum(float(one.of_ranks(name)[0]) for one in self.epochs)
            for name in ("compile_s", "training_s", "validation_s", "waiting_s", "validation_waiting_s")
        }
        waiting = sums["waiting_s"] + sums.pop("validation_waiting_s")
        return {"start_up_s": self.end.start_up_s, **sums, "waiting_s": waiting}

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
        return max(each(self.end.skipped_steps, len(self.end.ranks)))

    @property
    def samples_per_s(self) -> float | None:
        """Mean throughput without the first epoch, in which caches fill and kernels compile; None with one epoch."""
        later = [epoch.samples_per_s for epoch in self.epochs[1:]]
        return sum(later) / len(later) if later else None


_Epochs = list[tuple[int, TrainedEpoch]]
_End = tuple[int, TrainedRun] | None
_Outer = tuple[int, LaunchTime] | None


def trained_runs(plan: Plan, records: Sequence[object]) -> dict[str, RunRecords]:
    """All runs of a plan, by id.

    Raises:
        ValueError: a line of measurements.jsonl contradicts others or the plan; the message has its number.
    """
    found: dict[str, RunRecords] = {}
    gangs, lines_of = gangs_by_number(records), list(enumerate(records, 1))
    for run in plan.training_runs:
        epochs = [(n, one) for n, one in lines_of if isinstance(one, TrainedEpoch) and one.study == run.id]
        ends = [(n, one) for n, one in lines_of if isinstance(one, TrainedRun) and one.study == run.id]
        outers = [(n, one) for n, one in lines_of if isinstance(one, LaunchTime) and one.study == run.id]
        for lines, now, before in (([n for n, _ in ends], "ends", "ended"), ([n for n, _ in outers], "times", "timed")):
            if len(lines) > 1:
                raise ValueError(f"line {lines[1]} {now} {run.id}, which line {lines[0]} {before}")
        end, outer = next(iter(ends), None), next(iter(outers), None)
        study_ends = [one for one in records if isinstance(one, StudyEnd) and one.study == run.id]
        study_end = study_ends[-1] if study_ends else None
        for line, problem in _problems(run, epochs, end, outer, study_end):
            raise ValueError(f"line {line} {problem}")
        of_ranks: list[tuple[int, TrainedEpoch | TrainedRun]] = [*epochs, *ends]
        for line, trained in of_ranks:
            size = gangs[trained.gang].world_size
            if size != run.world_size or list(trained.ranks) != list(range(size)):
                raise ValueError(
                    f"line {line} has ranks {list(trained.ranks)} of {size}; expected 0 to {run.world_size - 1}"
                )
        found[run.id] = RunRecords(
            run, tuple(one for _, one in epochs), end[1] if end else None, outer[1].seconds if outer else None,
            study_end,
        )  # fmt: skip
    for line, record in lines_of:
        if isinstance(record, TrainedEpoch | TrainedRun | LaunchTime) and record.study not in found:
            raise ValueError(f"line {line} is of {record.study}, which plan.json does not plan")
    return found


def _problems(
    run: TrainingRun, epochs: _Epochs, end: _End, outer: _Outer, study_end: StudyEnd | None
) -> Iterator[tuple[int, str]]:
    """Contradictions, with their lines."""
    for number, (line, epoch) in enumerate(epochs):
        of = f"of epoch {epoch.epoch} of {run.id}"
        if epoch.epoch != number or number >= run.epochs:
            yield line, f"is {of}; expected epoch {number} of {run.epochs}"
        if epoch.gang != epochs[0][1].gang:
            yield line, f"is {of} by gang {epoch.gang}; expected gang {epochs[0][1].gang}, like the first epoch"
        yield from ((line, f"{problem} {of}") for problem in _wrong_counts(run, epoch))
    if end is not None:
        line, over = end
        if epochs and (over.gang != epochs[0][1].gang or line < epochs[-1][0]):
            yield line, f"ends {run.id} by gang {over.gang}, or before its last epoch"
        losses = [float(loss) for _, epoch in epochs for loss in epoch.loss_of_iterations]
        is_reached = run.loss_threshold is not None and loss_reached(losses, run.loss_threshold) is not None
        if len(epochs) != run.epochs and not is_reached:
            yield line, f"ends {run.id} after {len(epochs)} epochs; expected {run.epochs}"
        if study_end is not None and study_end.reason == "decided" and not is_reached:
            yield line, f"ends {run.id}, whose loss has not reached {run.loss_threshold}"
    if outer is not None and epochs and outer[1].gang != epochs[0][1].gang:
        yield outer[0], f"times gang {outer[1].gang}; expected {epochs[0][1].gang}, which trained {run.id}"


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
        if not (epoch.of_ranks(name) + epoch.of_ranks("compile_s") > 0).all():
            yield f"took no time ({name})"
