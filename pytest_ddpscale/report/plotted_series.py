"""What the plots show: the same per-round values that verdicts come from."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from pytest_ddpscale.evidence.columns import Columns
from pytest_ddpscale.metrics.rounds import NO_ROUNDS, ArmRounds, group_rounds
from pytest_ddpscale.metrics.samples import MeasuredArms
from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.metric_catalogue import STRONG_SCALING_SPEEDUP, THROUGHPUT_PER_GPU, WEAK_SCALING_EFFICIENCY
from pytest_ddpscale.plan.per_round import PerRound
from pytest_ddpscale.plan.study import Arm, Plan, Scaling


@dataclass(frozen=True)
class Point:
    """One quantity at one world size, over the rounds.

    Attributes:
        world_size: ranks that trained together.
        center: geometric mean over the rounds.
        below: distance from `center` to one geometric standard deviation below; 0 with one round.
        above: the same above.
    """

    world_size: int
    center: float
    below: float
    above: float


@dataclass(frozen=True)
class PlottedSeries:
    """One study's rounds.

    Attributes:
        scaling: ``weak`` or ``strong``.
        workload: its name.
        rounds: complete ones, by world size; 1 is the arm alone.
    """

    scaling: Scaling
    workload: str
    rounds: dict[int, ArmRounds]

    def throughput_per_gpu(self) -> list[Point]:
        """Images each rank trains per second."""
        return self._points(THROUGHPUT_PER_GPU, self.rounds)

    def speedup(self) -> list[Point]:
        """Throughput of k ranks over that of one rank alone, from two ranks on."""
        return self._points(STRONG_SCALING_SPEEDUP, self._many)

    def efficiency(self) -> list[Point]:
        """The speed-up divided by the world size, 0 … 1, from two ranks on.

        One formula for both scalings: only the batch differs.
        """
        return self._points(WEAK_SCALING_EFFICIENCY, self._many)

    def _points(self, metric: Metric, of: dict[int, ArmRounds]) -> list[Point]:
        alone = self.rounds.get(1, NO_ROUNDS)
        samples = {k: metric.samples_of(MeasuredArms(rounds, alone, k)) for k, rounds in sorted(of.items())}
        return [_point(k, found) for k, found in samples.items() if found]

    @property
    def _many(self) -> dict[int, ArmRounds]:
        return {k: rounds for k, rounds in self.rounds.items() if k > 1}


def throughput_series(columns: Columns, plan: Plan) -> list[PlottedSeries]:
    """A series per study of the plan of which a complete round was measured, in the plan's order.

    Of what each of several nodes measured by itself, the node with rank 0, which is what more nodes are compared with.
    Ranks that were spread over nodes are no point of a curve of packed ones.
    """
    found = []
    for study in plan.studies:
        packed = [arm for arm in study.arms if arm.placement == "packed"]
        arms = [arm for arm in packed if arm.kind == "alone" or (arm.kind == "ddp" and arm.world_size > 1)]
        rounds = {arm.world_size: _first_group(columns, study.id, arm, plan) for arm in arms}
        measured = {world_size: by_number for world_size, by_number in rounds.items() if by_number}
        if measured:
            found.append(PlottedSeries(study.scaling, study.workload.name, measured))
    return found


def _first_group(columns: Columns, study_id: str, arm: Arm, plan: Plan) -> ArmRounds:
    groups = group_rounds(columns, study_id, arm, plan.layout)
    return groups[0] if groups else NO_ROUNDS


def _point(world_size: int, samples: PerRound) -> Point:
    logs = [math.log(sample.value) for sample in samples]
    center = math.exp(statistics.fmean(logs))
    spread = math.exp(statistics.stdev(logs)) if len(logs) > 1 else 1.0
    return Point(world_size, center, center - center / spread, center * spread - center)
