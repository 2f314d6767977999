"""What the plots show: the same per-round values that verdicts come from."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from pytest_ddpscale.evidence.columns import Columns
from pytest_ddpscale.metrics.rounds import NO_ROUNDS, ArmRounds, group_rounds, node_rounds
from pytest_ddpscale.metrics.samples import MeasuredArms
from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.per_round import PerRound
from pytest_ddpscale.plan.study import Arm, Plan, Scaling


@dataclass(frozen=True)
class Point:
    """One quantity at one world size, over the rounds.

    Attributes:
        center: geometric mean over the rounds.
        below: distance from `center` to one geometric standard deviation below; 0 with one round. `above` likewise.
    """

    world_size: int
    center: float
    below: float
    above: float


@dataclass(frozen=True)
class PlottedSeries:
    """One study's complete rounds, by world size; 1 is one rank alone, or under DDP where it was measured only so."""

    scaling: Scaling
    workload: str
    rounds: dict[int, ArmRounds]

    def points(self, metric: Metric) -> list[Point]:
        """Throughput per GPU of any number of ranks; what compares several with one alone, from two ranks on."""
        alone = self.rounds.get(1, NO_ROUNDS)
        shown = {k: rounds for k, rounds in sorted(self.rounds.items()) if k > 1 or metric is THROUGHPUT_PER_GPU}
        samples = {k: metric.samples_of(MeasuredArms(rounds, alone, k)) for k, rounds in shown.items()}
        return [_point(k, found) for k, found in samples.items() if found]


def throughput_series(columns: Columns, plan: Plan) -> list[PlottedSeries]:
    """A series per study of the plan of which a complete round was measured, in the plan's order; of the first launch.

    Of what each of several nodes measured by itself, the node with rank 0, which is what more nodes are compared with.
    Ranks that were spread over nodes are no point of a curve of packed ones.
    """
    found = []
    for study in plan.of_launch(1).studies:
        packed = [arm for arm in study.arms if arm.placement == "packed"]
        # Of one rank alone and the same under DDP the former is shown.
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
    logs = [math.log(sample.value) for sample in samples]
    center = math.exp(statistics.fmean(logs))
    spread = math.exp(statistics.stdev(logs)) if len(logs) > 1 else 1.0
    return Point(world_size, center, center - center / spread, center * spread - center)
