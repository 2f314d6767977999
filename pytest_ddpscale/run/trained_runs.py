"""Whole training runs, refused if their lines contradict each other or the plan.

A run is complete only if every planned epoch is there with all its images: otherwise its time and accuracy mean
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.training_run import TrainingRun, loss_reached
from pytest_ddpscale.run.former import numbered
from pytest_ddpscale.run.record_lines import AnyRecord, OfTraining
from pytest_ddpscale.run.records import StudyEnd, gangs_by_number
from pytest_ddpscale.run.training_record import LaunchTime, TrainedEpoch, TrainedRun

MOST_UNEXPLAINED = 0.02  # of the outer clock's time, in either direction
# Spans on rank 0's clock, in order; waiting includes training and validation.
SPANS = ("start_up_s", "compile_s", "training_s", "validation_s", "waiting_s")


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
    def samples_per_s(self) -> float | None:
        """Mean throughput without the first epoch, in which caches fill and kernels compile; None with one epoch."""
        later = [epoch.samples_per_s for epoch in self.epochs[1:]]
        return sum(later) / len(later) if later else None


def trained_runs(plan: Plan, records: Sequence[AnyRecord]) -> dict[str, RunRecords]:
    """All runs of a plan, by id.

    Raises:
        ValueError: a line of measurements.jsonl contradicts others or the plan; the message has its number.
    """
    found: dict[str, RunRecords] = {}
    gangs = gangs_by_number(records)
    for run in plan.training_runs:
        epochs, end, outer, study_end = _lines_of(run, records)
        for line, problem in _problems(run, epochs, end, outer, study_end):
            raise ValueError(f"line {line} {problem}")
        trained: list[tuple[int, OfTraining]] = [*epochs, *([end] if end else [])]
        for line, one in trained:
            size = gangs[one.gang].world_size
            if size != run.world_size or list(one.ranks) != list(range(size)):
                raise ValueError(
                    f"line {line} has ranks {list(one.ranks)} of {size}; expected 0 to {run.world_size - 1}"
                )
        found[run.id] = RunRecords(
            run, tuple(one for _, one in epochs), end[1] if end else None, outer[1].seconds if outer else None,
            study_end,
        )  # fmt: skip
    planned = set(found)
    for line, record in numbered(records):
        if isinstance(record, TrainedEpoch | TrainedRun | LaunchTime) and record.study not in planned:
            raise ValueError(f"line {line} is of {record.study}, which plan.json does not plan")
    return found


_Epochs = list[tuple[int, TrainedEpoch]]
_End = tuple[int, TrainedRun] | None
_Outer = tuple[int, LaunchTime] | None


def _lines_of(run: TrainingRun, records: Sequence[AnyRecord]) -> tuple[_Epochs, _End, _Outer, StudyEnd | None]:
    """The lines of a run with their numbers. Raises ValueError if a unique line is there twice."""
    epochs: _Epochs = []
    end: _End = None
    outer: _Outer = None
    study_end = None
    for line, record in numbered(records):
        if isinstance(record, StudyEnd) and record.study == run.id:
            study_end = record
        elif isinstance(record, TrainedEpoch | TrainedRun | LaunchTime) and record.study == run.id:
            if isinstance(record, TrainedEpoch):
                epochs.append((line, record))
            elif isinstance(record, TrainedRun):
                if end:
                    raise ValueError(f"line {line} ends {run.id}, which line {end[0]} ended")
                end = line, record
            else:
                if outer:
                    raise ValueError(f"line {line} times {run.id}, which line {outer[0]} timed")
                outer = line, record
    return epochs, end, outer, study_end


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
    each = run.iterations * run.workload.batch_size
    if (epoch.of_ranks("trained") != each).any():
        yield f"trained {epoch.of_ranks('trained').astype(int).tolist()} images; expected {each} on each rank"
    validated = int(epoch.of_ranks("validated").sum())
    if validated != run.samples.validation_samples:
        yield f"validated {validated} images; expected {run.samples.validation_samples}, each once"
    for name in ("training_s", "validation_s"):
        if not (epoch.of_ranks(name) + epoch.of_ranks("compile_s") > 0).all():
            yield f"took no time ({name})"
