"""What the plots show: the same per-round values that verdicts come from."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_ddpscale.metrics.rounds import ArmRound, group_rounds
from pytest_ddpscale.metrics.samples import Sample, efficiency_samples, strong_speedup_samples, throughput_samples
from pytest_ddpscale.plan.study import Arm, Plan, Scaling
from pytest_ddpscale.results.records import Measurement


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
        rounds: complete rounds by number, by world size; 1 is the arm alone.
    """

    scaling: Scaling
    workload: str
    rounds: dict[int, dict[int, ArmRound]]

    def throughput_per_gpu(self) -> list[Point]:
        """Images each rank trains per second."""
        return _points({k: throughput_samples(rounds) for k, rounds in self.rounds.items()})

    def speedup(self) -> list[Point]:
        """Throughput of k ranks over that of one rank alone, from two ranks on."""
        return _points({k: strong_speedup_samples(rounds, self._alone, k) for k, rounds in self._many.items()})

    def efficiency(self) -> list[Point]:
        """The speed-up divided by the world size, 0 … 1, from two ranks on.

        One formula for both scalings: only the batch differs.
        """
        return _points({k: efficiency_samples(rounds, self._alone) for k, rounds in self._many.items()})

    @property
    def _alone(self) -> dict[int, ArmRound]:
        return self.rounds.get(1, {})

    @property
    def _many(self) -> dict[int, dict[int, ArmRound]]:
        return {k: rounds for k, rounds in self.rounds.items() if k > 1}


def throughput_series(measurements: Iterable[Measurement], plan: Plan) -> list[PlottedSeries]:
    """A series per study of the plan of which a complete round was measured, in the plan's order.

    Of what each of several nodes measured by itself, the node with rank 0, which is what more nodes are compared with.
    Ranks that were spread over nodes are no point of a curve of packed ones.
    """
    by_study: dict[str, list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        by_study[measurement.study].append(measurement)
    found = []
    for study in plan.studies:
        packed = [arm for arm in study.arms if arm.placement == "packed"]
        arms = [arm for arm in packed if arm.kind == "alone" or (arm.kind == "ddp" and arm.world_size > 1)]
        rounds = {arm.world_size: _first_group(by_study[study.id], study.id, arm, plan) for arm in arms}
        measured = {world_size: by_number for world_size, by_number in rounds.items() if by_number}
        if measured:
            found.append(PlottedSeries(study.scaling, study.workload.name, measured))
    return found


def _first_group(measurements: Sequence[Measurement], study_id: str, arm: Arm, plan: Plan) -> dict[int, ArmRound]:
    groups = group_rounds(measurements, study_id, arm, plan.layout)
    return groups[0] if groups else {}


def _points(samples: dict[int, list[Sample]]) -> list[Point]:
    return [_point(k, [sample.value for sample in samples[k]]) for k in sorted(samples) if samples[k]]


def _point(world_size: int, values: Sequence[float]) -> Point:
    logs = [math.log(value) for value in values]
    center = math.exp(statistics.fmean(logs))
    spread = math.exp(statistics.stdev(logs)) if len(logs) > 1 else 1.0
    return Point(world_size, center, center - center / spread, center * spread - center)
