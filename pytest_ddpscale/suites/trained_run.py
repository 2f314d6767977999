"""What the records of a whole training run add up to.

A run is complete only if every planned epoch is there with all its images: otherwise its time and accuracy mean
nothing. `run/consistent.py` refuses lines that contradict each other or the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pytest_ddpscale.plan.training_run import TrainingRun
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.records import LaunchTime, StudyEnd, TrainedEpoch, TrainedRun

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
        is_complete: whether it ended regularly, by training all epochs or by reaching its loss.
    """

    run: TrainingRun
    epochs: Sequence[TrainedEpoch]
    end: TrainedRun | None
    outer_s: float | None
    is_complete: bool

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
    def skipped_steps(self) -> int:
        """Optimizer steps of a complete run that the loss scaler skipped, on the rank with the most."""
        assert self.end is not None
        return max(one.skipped_steps for one in self.end.ranks)

    @property
    def samples_per_s(self) -> float | None:
        """Mean throughput without the first epoch, in which caches fill and kernels compile; None with one epoch."""
        return fmean(epoch.samples_per_s for epoch in self.epochs[1:]) if len(self.epochs) > 1 else None

    def most_bytes(self, name: str) -> float | None:
        """The largest ``allocated_bytes`` or ``reserved_bytes`` of any rank of a complete run; None on a CPU."""
        assert self.end is not None
        return max((held for one in self.end.ranks if (held := getattr(one, name)) is not None), default=None)


def trained_runs(evidence: Evidence) -> list[RunRecords]:
    """All planned runs."""
    found = []
    for run in evidence.plan.training_runs:
        lines = [line for line in evidence.training if line.study == run.id]
        last: dict[type, Any] = {type(line): line for line in lines}
        end, outer, study_end = last.get(TrainedRun), last.get(LaunchTime), last.get(StudyEnd)
        ended = study_end is not None and study_end.reason in ("rounds", "decided")
        epochs = [line for line in lines if isinstance(line, TrainedEpoch)]
        is_complete = ended and end is not None and outer is not None
        found.append(RunRecords(run, epochs, end, outer and outer.seconds, is_complete))
    return found
