"""Whole training runs whose numbers are known beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.training_run import SampleSet, TrainingRun
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.run.evidence import evidence_of
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import (
    Checkpoint,
    GangRecord,
    LaunchTime,
    RankEpoch,
    RankTrained,
    StudyEnd,
    TrainedEpoch,
    TrainedRun,
)
from pytest_ddpscale.suites.engine import MeasuredSuite
from tests.builders.records import gang_on
from tests.builders.rounds import columns_of
from tests.suites.planned import SUITE_RECORD

BATCH, EPOCHS = 8, 3
T = TypeVar("T", RankEpoch, RankTrained)
START_UP_S, VALIDATION_S, WAITING_S, CHECKPOINT_S, OUTER_REST_S = 19.6, 1.0, 0.5, 0.4, 0.1


def training_run(ranks: int = 2, name: str = "small", images: int = 64, **fields: Any) -> TrainingRun:
    """Of `images`, and a quarter as many to validate, on one node."""
    workload = Workload(name, ImageFamily("resnet18", 32, "contiguous", num_classes=10), "fp32", BATCH)
    samples = SampleSet("made", name, images, images // 4, 10)
    return TrainingRun(name, workload, samples, 1, ranks, **{"epochs": EPOCHS, **fields})


def gang_of(run: TrainingRun, gang: int = 0) -> GangRecord:
    return gang_on(["n1"], run.world_size, number=gang)


def epoch_of(
    run: TrainingRun, number: int = 0, gang: int = 0, samples_per_s: float = 32.0, **fields: Any
) -> TrainedEpoch:
    """Trained at a pace of all ranks together, waiting for data included; half of all images are classified rightly."""
    validated = tuple(
        len(range(rank, run.samples.validation_samples, run.world_size)) for rank in range(run.world_size)
    )
    usual = {
        "trained": run.iterations * BATCH, "validated": validated, "correct": tuple(one // 2 for one in validated),
        "compile_s": 0.0, "training_s": run.epoch_samples / samples_per_s - WAITING_S, "waiting_s": WAITING_S,
        "validation_s": VALIDATION_S, "validation_waiting_s": 0.0,
    }  # fmt: skip
    losses = fields.pop("losses", (2.0 - 0.5 * number,) * run.iterations)
    ranks = _of_ranks(RankEpoch, run.world_size, usual | fields)
    return TrainedEpoch(study=run.id, gang=gang, epoch=number, losses=losses, ranks=ranks)


def _of_ranks(kind: type[T], world_size: int, fields: Mapping[str, Any]) -> tuple[T, ...]:
    """What each rank sent; a field is a tuple with a value for each, or what all of them have."""
    return tuple(
        kind(rank=rank, **{name: value[rank] if isinstance(value, tuple) else value for name, value in fields.items()})
        for rank in range(world_size)
    )


def end_of(
    run: TrainingRun, gang: int = 0, start_up_s: float = START_UP_S, trainable_parameters: int = 900,
    problem: str | None = "",
    **of_ranks: Any,
) -> TrainedRun:  # fmt: skip
    """Without a checkpoint if its problem is None."""
    checkpoint = Checkpoint(seconds=CHECKPOINT_S, read_s=CHECKPOINT_S / 4, size_bytes=8000, problem=problem or "")
    return TrainedRun(
        study=run.id, gang=gang, start_up_s=start_up_s, parameters=1000, trainable_parameters=trainable_parameters,
        checkpoint=checkpoint if run.loss_threshold is None and problem is not None else None,
        ranks=_of_ranks(RankTrained, run.world_size, {"parameters_checksum": "0" * 15 + "1", **of_ranks}),
    )  # fmt: skip


def records_of(
    run: TrainingRun, gang: int = 0, samples_per_s: float = 32.0, outer_s: float | None = None, **end: Any
) -> list[AnyRecord]:
    """All lines of a complete run."""
    epochs = [epoch_of(run, number, gang, samples_per_s) for number in range(run.epochs)]
    spans_s = START_UP_S + CHECKPOINT_S + sum(run.epoch_samples / samples_per_s + VALIDATION_S for _ in epochs)
    return [
        gang_of(run, gang), *epochs, end_of(run, gang, **end), StudyEnd(study=run.id, reason="rounds"),
        LaunchTime(study=run.id, gang=gang, seconds=outer_s or spans_s + OUTER_REST_S),
    ]  # fmt: skip


def plan_of(runs: Sequence[TrainingRun]) -> Plan:
    launches = max(run.launch for run in runs)
    return Plan("cpu", "cpu", (), ranks_per_node=8, training_runs=tuple(runs), launches=launches)


def suite_of(runs: Sequence[TrainingRun], records: Sequence[AnyRecord]) -> MeasuredSuite:
    """Runs with what was recorded of them."""
    return MeasuredSuite(evidence_of(plan_of(runs), columns_of([]), records), 0.95, SUITE_RECORD)


def complete_suite(*runs: TrainingRun, samples_per_s: float = 32.0) -> MeasuredSuite:
    """All of them as they should be, as fast for each rank."""
    lines = [line for gang, run in enumerate(runs) for line in records_of(run, gang, samples_per_s * run.world_size)]
    return suite_of(runs, lines)
