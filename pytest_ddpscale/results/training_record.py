"""What a whole run leaves in measurements.jsonl: a line an epoch, one at its end, one of whoever started it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from pytest_ddpscale.results.column_record import FloatArray
from pytest_ddpscale.results.records import PeakBytes, Ranks, refuse_twice
from pytest_ddpscale.results.strict_json import Count, Positive, Record, Seconds, column, each, refuse_other_lengths

LOSS_BYTES = 4  # float32, as it is computed
Span = Annotated[float, Meta(ge=0, le=1e7)]
Checksum = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class RankEpoch(Record, frozen=True, kw_only=True):
    """One rank's part of a `TrainedEpoch`, as it says it to rank 0; see there."""

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
    """One epoch. Columns are over ranks; what all have alike stands there once.

    Attributes:
        study: id of the training run.
        gang: number of the gang.
        epoch: from 0.
        ranks: all of the gang, in order.
        losses: of each iteration, mean over the ranks' batches: little-endian float32, in base64.
        trained: images that each rank trained.
        validated: images that each rank validated, none of them twice.
        correct: of those, classified rightly.
        compile_s: first step and first validated batch under torch.compile, in seconds; 0 where nothing compiles.
        training_s: steps, with what waits for the device at the end of the epoch.
        waiting_s: blocked in ``next(loader)`` while training.
        validation_s: forward passes.
        validation_waiting_s: blocked in ``next(loader)`` while validating.
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
        refuse_other_lengths(self, len(self.ranks), *_COLUMNS)
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
    def img_per_s(self) -> float:
        """Training throughput of all ranks together at the slowest one's pace, with its waiting for data."""
        seconds = self.of_ranks("compile_s") + self.of_ranks("training_s") + self.of_ranks("waiting_s")
        return float(self.of_ranks("trained").sum() / seconds.max())

    @property
    def accuracy(self) -> float:
        """Share of all validated images that was classified rightly: ranks weighted by their images."""
        return float(self.of_ranks("correct").sum() / self.of_ranks("validated").sum())

    @property
    def validation_img_per_s(self) -> float:
        """As `img_per_s`, of validation."""
        seconds = self.of_ranks("validation_s") + self.of_ranks("validation_waiting_s")
        return float(self.of_ranks("validated").sum() / seconds.max())


_COLUMNS = tuple(name for name in RankEpoch.__struct_fields__ if name != "rank")


def joined_epoch(parts: Sequence[RankEpoch], **common: Any) -> TrainedEpoch:
    """The epoch that its ranks have said, with `study`, `gang`, `epoch` and `losses`."""
    columns: dict[str, Any] = {name: column(getattr(part, name) for part in parts) for name in _COLUMNS}
    return TrainedEpoch(ranks=tuple(part.rank for part in parts), **common, **columns)


class RankTrained(Record, frozen=True, kw_only=True):
    """One rank's part of a `TrainedRun`; see there."""

    rank: Count
    allocated_bytes: PeakBytes | None
    reserved_bytes: PeakBytes | None
    parameters_checksum: Checksum


class TrainedRun(Record, frozen=True, kw_only=True, tag_field="kind", tag="trained_run"):
    """The end of a run all of whose epochs were trained, or that reached its loss. Columns as in `TrainedEpoch`.

    Attributes:
        study: id of the training run.
        gang: number of the gang.
        ranks: all of the gang, in order.
        start_up_s: from the supervisor's beginning to start the gang until the first epoch, on rank 0's clock.
        parameters: of the model.
        trainable_parameters: of those, the ones that change.
        allocated_bytes: peak of what torch's allocator handed out; None on a CPU.
        reserved_bytes: peak of what it took from the device; None on a CPU.
        parameters_checksum: of the bits of all parameters at the end: replicas have to agree.
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
        """Of the rank with most of ``allocated_bytes`` or ``reserved_bytes``; None on a CPU."""
        return max((value for value in each(getattr(self, name), len(self.ranks)) if value is not None), default=None)


def joined_run(parts: Sequence[RankTrained], **common: Any) -> TrainedRun:
    """What all ranks have said, with what rank 0 knows."""
    names = ("allocated_bytes", "reserved_bytes", "parameters_checksum")
    columns: dict[str, Any] = {name: column(getattr(part, name) for part in parts) for name in names}
    return TrainedRun(ranks=tuple(part.rank for part in parts), **common, **columns)


class LaunchTime(Record, frozen=True, kw_only=True, tag_field="kind", tag="launch_time"):
    """By the supervisor's clock: from its beginning to start a gang until it heard that the run had ended."""

    study: str
    gang: Count
    seconds: Seconds
