"""What each cell of a sweep came to: computation and communication time, and the data that it moves in an epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_ddpscale.plan.frozen_features import BYTES_PER_GRADIENT, trained_parameters
from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.metric_catalogue import COMMUNICATION_TIME, COMPUTATION_TIME, EXPOSED_COMMUNICATION
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.suites.suite import MeasuredSuite, why_missing
from pytest_ddpscale.verdict.answering_rounds import samples_of
from pytest_ddpscale.verdict.estimating import Found, estimate_of

EPOCH_IMAGES = 60_000  # of MNIST's training split
Factor = Literal["batch", "world size", "model", "trained parameters"]
FACTORS: tuple[Factor, ...] = ("batch", "world size", "model", "trained parameters")
Trend = Literal["rises", "falls", "no difference shown"]


@dataclass(frozen=True)
class DataMoved:
    """What an epoch moves of a classifier's gradients.

    Attributes:
        parameters: that are trained.
        batch_size: per GPU, in images.
        world_size: ranks.
        images: of an epoch.
    """

    parameters: int
    batch_size: int
    world_size: int
    images: int = EPOCH_IMAGES

    @property
    def document_parameters(self) -> float:
        """N ÷ (B · k) · trainable parameters: Banerjee and Shah, section 2. They have no unit but parameters."""
        return self.images / (self.batch_size * self.world_size) * self.parameters

    @property
    def document_bytes(self) -> float:
        """The same in bytes of fp32."""
        return self.document_parameters * BYTES_PER_GRADIENT

    @property
    def steps(self) -> int:
        """Of each rank: its share of the images, and the last batch may be smaller (DistributedSampler)."""
        return math.ceil(math.ceil(self.images / self.world_size) / self.batch_size)

    @property
    def sent_bytes_per_step(self) -> float:
        """By each rank: a ring all-reduce sends every gradient 2 (k − 1) ÷ k times (nccl-tests, PERFORMANCE.md)."""
        return 2 * (self.world_size - 1) / self.world_size * self.parameters * BYTES_PER_GRADIENT

    @property
    def sent_bytes(self) -> float:
        """By each rank in an epoch."""
        return self.sent_bytes_per_step * self.steps


@dataclass(frozen=True)
class Cell:
    """One setting of the factors.

    Attributes:
        workload: what is trained.
        world_size: by how many ranks.
        computation_ms: of a step; None if it was not measured.
        communication_ms: what a step takes more that communicates; likewise.
        communication_share: of the step that communicates, 0 … 1; likewise.
        problem: why there is nothing; empty if there is.
    """

    workload: Workload
    world_size: int
    computation_ms: Found | None
    communication_ms: Found | None
    communication_share: Found | None
    problem: str = ""

    @property
    def is_measured(self) -> bool:
        """Whether both times are there."""
        return self.computation_ms is not None and self.communication_ms is not None

    @property
    def data(self) -> DataMoved:
        """That an epoch moves."""
        return DataMoved(trained_parameters(self.workload), self.workload.batch_size, self.world_size)

    def label(self, factor: Factor) -> str:
        """Its value of a factor."""
        values: dict[Factor, str] = {
            "batch": str(self.workload.batch_size),
            "world size": str(self.world_size),
            "model": self.workload.model,
            "trained parameters": f"{self.data.parameters:,}",
        }
        return values[factor]


@dataclass(frozen=True)
class Sweep:
    """All cells of one factor, by its value, ascending; of models by trained parameters."""

    factor: Factor
    cells: Sequence[Cell]

    @property
    def measured(self) -> list[Cell]:
        """Those with both times."""
        return [cell for cell in self.cells if cell.is_measured]


def sweeps(measured: MeasuredSuite) -> list[Sweep]:
    """Of each factor with at least two cells. The first study is the centre; each other differs from it in one."""
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
    """Of ranks in all cells that do not sweep them."""
    return max(arm.world_size for arm in studies[-1].arms)


def all_cells(found: Sequence[Sweep]) -> Iterator[Cell]:
    """Each once."""
    seen = set()
    for sweep in found:
        for cell in sweep.cells:
            key = (cell.workload.name, cell.world_size)
            if key not in seen:
                seen.add(key)
                yield cell


def trend(first: Found | None, last: Found | None) -> Trend:
    """Whether a value is shown to have changed: the intervals of both have nothing in common."""
    if not (first and last and first.estimate and last.estimate):
        return "no difference shown"
    (low, high), (least, most) = first.estimate.interval, last.estimate.interval
    return "rises" if high < least else "falls" if most < low else "no difference shown"


def _place(cell: Cell) -> tuple[int, int, int, str]:
    return cell.world_size, cell.workload.batch_size, cell.data.parameters, cell.workload.model


def _factor(centre: Workload, other: Workload) -> Factor:
    if other.batch_size != centre.batch_size:
        return "batch"
    return "model" if other.model != centre.model else "trained parameters"


def _cell(measured: MeasuredSuite, study: Study, world_size: int) -> Cell:
    def found(metric: Metric) -> Found | None:
        samples = samples_of(Question(metric, study.workload, world_size), measured.evidence)
        return estimate_of(samples, metric.scale, measured.confidence) if samples else None

    values = found(COMPUTATION_TIME), found(COMMUNICATION_TIME), found(EXPOSED_COMMUNICATION)
    is_whole = all(value is not None for value in values)
    problem = "" if is_whole else why_missing(measured.evidence, study.id) or "no round of it is complete"
    return Cell(study.workload, world_size, *values, problem)
