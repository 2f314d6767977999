"""Results of each cell of a sweep: computation and communication time, and data moved in an epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_ddpscale.judge.stats import Found, estimate_of
from pytest_ddpscale.judge.values import samples_of
from pytest_ddpscale.plan.metric_catalogue import COMMUNICATION_TIME, COMPUTATION_TIME, EXPOSED_COMMUNICATION, Metric
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.workload import BYTES_PER_GRADIENT, Workload
from pytest_ddpscale.suites.suite import MeasuredSuite, why_incomplete

EPOCH_IMAGES = 60_000  # of MNIST's training split
Factor = Literal["batch", "world size", "model", "trained parameters"]
FACTORS: tuple[Factor, ...] = ("batch", "world size", "model", "trained parameters")


@dataclass(frozen=True)
class DataMoved:
    """Gradients of a classifier that are moved in an epoch.

    Attributes:
        parameters: number of trained parameters.
        batch_size: per GPU, in images.
        world_size: ranks.
        images: per epoch.
    """

    parameters: int
    batch_size: int
    world_size: int
    images: int = EPOCH_IMAGES

    @property
    def document_parameters(self) -> float:
        """N ÷ (B · k) · trainable parameters, in parameters (Banerjee and Shah, section 2)."""
        return self.images / (self.batch_size * self.world_size) * self.parameters

    @property
    def document_bytes(self) -> float:
        """`document_parameters` in bytes of fp32."""
        return self.document_parameters * BYTES_PER_GRADIENT

    @property
    def steps(self) -> int:
        """Steps of each rank over its share of the images; the last batch may be smaller (DistributedSampler)."""
        return math.ceil(math.ceil(self.images / self.world_size) / self.batch_size)

    @property
    def sent_bytes_per_step(self) -> float:
        """Bytes per rank: a ring all-reduce sends each gradient 2 (k − 1) ÷ k times (nccl-tests, PERFORMANCE.md)."""
        return 2 * (self.world_size - 1) / self.world_size * self.parameters * BYTES_PER_GRADIENT

    @property
    def sent_bytes(self) -> float:
        """Bytes each rank sends in an epoch."""
        return self.sent_bytes_per_step * self.steps


@dataclass(frozen=True)
class Cell:
    """One setting of the factors.

    Attributes:
        workload: what is trained.
        world_size: ranks.
        computation_ms: of a step; None if it was not measured.
        communication_ms: additional time of a step with communication; None if it was not measured.
        communication_share: of the step with communication, 0 … 1; None if it was not measured.
        problem: why a value is missing or of fewer rounds than planned; empty if the study ended as planned.
    """

    workload: Workload
    world_size: int
    computation_ms: Found | None
    communication_ms: Found | None
    communication_share: Found | None
    problem: str = ""

    @property
    def is_measured(self) -> bool:
        """Whether both times were measured."""
        return self.computation_ms is not None and self.communication_ms is not None

    @property
    def data(self) -> DataMoved:
        """Data moved in an epoch."""
        return DataMoved(self.workload.family.classifier_parameters, self.workload.batch_size, self.world_size)

    def label(self, factor: Factor) -> str:
        """The cell's value of a factor, as text."""
        values: dict[Factor, str] = {
            "batch": str(self.workload.batch_size),
            "world size": str(self.world_size),
            "model": self.workload.family.model,
            "trained parameters": f"{self.data.parameters:,}",
        }
        return values[factor]


@dataclass(frozen=True)
class Sweep:
    """All cells of one factor in ascending order of its value; models by trained parameters."""

    factor: Factor
    cells: Sequence[Cell]

    @property
    def measured(self) -> list[Cell]:
        """Cells with both times."""
        return [cell for cell in self.cells if cell.is_measured]


def sweeps(measured: MeasuredSuite) -> list[Sweep]:
    """Sweeps with at least two cells. The first study is the centre; each other one differs from it in one factor."""
    studies = measured.evidence.plan.studies
    if not studies:
        return []
    centre, *others = studies
    ranks = centre_world_size(studies)
    cells: dict[Factor, list[Cell]] = {factor: [] for factor in FACTORS}
    of_centre = {size: _cell(measured, centre, size) for size in sorted({arm.world_size for arm in centre.arms})}
    cells["world size"] = list(of_centre.values())
    for study in others:
        cells[_factor(centre.workload, study.workload)].append(_cell(measured, study, ranks))
    found = []
    for factor, of_factor in cells.items():
        if factor != "world size" and of_factor:
            of_factor.append(of_centre[ranks])
        if len(of_factor) > 1:
            found.append(Sweep(factor, sorted(of_factor, key=_place)))
    return found


def centre_world_size(studies: Sequence[Study]) -> int:
    """World size of all cells that do not sweep it."""
    return max(arm.world_size for arm in studies[-1].arms)


def all_cells(found: Sequence[Sweep]) -> Iterator[Cell]:
    """All cells, each once."""
    seen = set()
    for sweep in found:
        for cell in sweep.cells:
            key = (cell.workload.name, cell.world_size)
            if key not in seen:
                seen.add(key)
                yield cell


def _place(cell: Cell) -> tuple[int, int, int, str]:
    return cell.world_size, cell.workload.batch_size, cell.data.parameters, cell.workload.family.model


def _factor(centre: Workload, other: Workload) -> Factor:
    if other.batch_size != centre.batch_size:
        return "batch"
    return "model" if other.family.model != centre.family.model else "trained parameters"


def _cell(measured: MeasuredSuite, study: Study, world_size: int) -> Cell:
    def found(metric: Metric) -> Found | None:
        samples = samples_of(Question(metric, study.workload, world_size), measured.evidence)
        return estimate_of(samples, metric.scale, measured.confidence) if len(samples) else None

    values = found(COMPUTATION_TIME), found(COMMUNICATION_TIME), found(EXPOSED_COMMUNICATION)
    is_whole = all(value is not None for value in values)
    problem = why_incomplete(measured.evidence, study, is_measured=is_whole)
    return Cell(study.workload, world_size, *values, problem)
