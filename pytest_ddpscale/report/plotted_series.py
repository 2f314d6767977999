"""Values that the plots show, from the same rounds as the verdicts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_ddpscale.evidence.columns import Columns
from pytest_ddpscale.metrics.rounds import NO_ROUNDS, ArmRounds, group_rounds, node_rounds
from pytest_ddpscale.metrics.samples import MeasuredArms
from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.metric_catalogue import (
    DEVICE_UTILIZATION,
    STRONG_SCALING_EFFICIENCY,
    STRONG_SCALING_SPEEDUP,
    THROUGHPUT_PER_GPU,
    WEAK_SCALING_EFFICIENCY,
)
from pytest_ddpscale.plan.per_round import PerRound
from pytest_ddpscale.plan.study import Arm, Plan, Scaling
from pytest_ddpscale.plan.variant import USUAL
from pytest_ddpscale.results.column_record import FloatArray


@dataclass(frozen=True)
class Quantity:
    """The quantity that one plot shows for each series.

    Attributes:
        axis: label of the y axis, with its unit; ``{device}`` is GPU or rank.
        factor: converts the values to the unit of the axis.
        metrics: the first gives the values, by one formula for both scalings; the bounds of all are drawn.
    """

    file: str
    title: str
    axis: str
    factor: float
    metrics: tuple[Metric, ...]


THROUGHPUT = Quantity(
    "throughput", "throughput per {device}", "throughput per {device} (img/s)", 1.0, (THROUGHPUT_PER_GPU,)
)
EFFICIENCY = Quantity(
    "efficiency", "efficiency against one {device}", "scaling efficiency (%)", 100.0,
    (WEAK_SCALING_EFFICIENCY, STRONG_SCALING_EFFICIENCY),
)  # fmt: skip
SPEEDUP = Quantity("speedup", "speed-up over one {device}", "speed-up (×)", 1.0, (STRONG_SCALING_SPEEDUP,))
UTILIZATION = Quantity(
    "utilization", "least busy {device}", "utilization of the least busy {device} (%)", 100.0, (DEVICE_UTILIZATION,)
)
PLOTS: tuple[tuple[Scaling, Quantity], ...] = (
    ("weak", THROUGHPUT),
    ("weak", EFFICIENCY),
    ("strong", THROUGHPUT),
    ("strong", SPEEDUP),
    ("strong", EFFICIENCY),
)
OVERVIEW: tuple[tuple[Scaling, Quantity], ...] = (
    ("weak", THROUGHPUT),
    ("weak", EFFICIENCY),
    ("strong", SPEEDUP),
    ("weak", UTILIZATION),
)


@dataclass(frozen=True)
class Point:
    """One quantity at one world size, over the rounds.

    Attributes:
        center: geometric mean over the rounds; arithmetic mean for a share that may be 0, such as utilization.
        below: distance from `center` to one (geometric) standard deviation below; 0 with one round. `above` likewise.
    """

    world_size: int
    center: float
    below: float
    above: float


@dataclass(frozen=True)
class PlottedSeries:
    """One study's complete rounds, by world size; size 1 is one rank alone, or under DDP if only that was measured."""

    scaling: Scaling
    workload: str
    rounds: dict[int, ArmRounds]

    def points(self, metric: Metric) -> list[Point]:
        """Points by world size; metrics that compare several ranks with one start at two ranks."""
        alone = self.rounds.get(1, NO_ROUNDS)
        shown = {k: rounds for k, rounds in sorted(self.rounds.items()) if k > 1 or metric is THROUGHPUT_PER_GPU}
        samples = {k: metric.samples_of(MeasuredArms(rounds, alone, k)) for k, rounds in shown.items()}
        of_samples = _additive_point if metric.scale == "differences" else _point
        return [of_samples(k, found) for k, found in samples.items() if found]


def throughput_series(columns: Columns, plan: Plan) -> list[PlottedSeries]:
    """One series per study of the first launch that has a complete round, in the plan's order.

    Where several nodes each measured by themselves, the series is that of the node with rank 0, because several nodes
    are compared with it. Arms spread over nodes are left out of the curve of packed arms.
    """
    found = []
    for study in plan.of_launch(1).studies:
        packed = [arm for arm in study.arms if arm.placement == "packed" and arm.variant == USUAL]
        # Prefer one rank alone over the same rank under DDP.
        arms = sorted((arm for arm in packed if arm.kind in ("alone", "ddp")), key=lambda arm: arm.kind, reverse=True)
        rounds = [(arm.world_size, _first_group(columns, study.id, arm, plan)) for arm in arms]
        measured = {world_size: by_number for world_size, by_number in rounds if by_number}
        if measured:
            found.append(PlottedSeries(study.scaling, study.workload.name, measured))
    return found


def _first_group(columns: Columns, study_id: str, arm: Arm, plan: Plan) -> ArmRounds:
    measured = columns.arms.get((study_id, arm.name))
    if measured is None or plan.layout.nodes == 1 or not plan.layout.fits_node(arm):
        return next(iter(group_rounds(columns, study_id, arm, plan.layout)), NO_ROUNDS)
    return node_rounds(columns, study_id, arm, str(measured.ranks.hosts[0]))


def _point(world_size: int, samples: PerRound) -> Point:
    logs = np.log(samples.values)
    center, spread = float(np.exp(logs.mean())), float(np.exp(_stdev(logs)))
    return Point(world_size, center, center - center / spread, center * spread - center)


def _additive_point(world_size: int, samples: PerRound) -> Point:
    spread = _stdev(samples.values)
    return Point(world_size, float(samples.values.mean()), spread, spread)


def _stdev(values: FloatArray) -> float:
    """Standard deviation of a sample; 0 for a single value."""
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0
