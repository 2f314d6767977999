"""Tuning as it would go on a machine whose settings gain what we say, launch by launch."""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Mapping

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.suites.engine import MeasuredSuite, SuiteNodes, nodes_of
from pytest_ddpscale.suites.tune import Tune, setting_of
from tests.builders.judged import evidence_of_plan, measure
from tests.builders.measurements import Measurement
from tests.suites.planned import SUITE_RECORD

USUAL_SAMPLES_PER_S = 100.0


class PlayedTune:
    """One run of `ddpscale tune` on two ranks.

    Args:
        options: of the command line.
        gains: throughput over the usual one's, by the setting's name; 1 where nothing is said.
        round_sd: of the logarithm of each block.
        launch_sd: of what each arm of each launch has throughout, as memory that lies badly.
    """

    def __init__(
        self, *options: str, gains: Mapping[str, float], seed: int = 0, round_sd: float = 0.01, launch_sd: float = 0.01
    ) -> None:
        parser = argparse.ArgumentParser()
        Tune().add_to(parser)
        self.arguments = parser.parse_args(["--gpu-sku=cpu", "--ddp-gpus-per-node=2", *options])
        self.nodes: SuiteNodes = nodes_of(self.arguments)
        self._gains, self._random = gains, random.Random(seed)
        self._round_sd, self._launch_sd = round_sd, launch_sd

    def measured(self) -> MeasuredSuite:
        """All launches."""
        plan = Tune().plan(self.arguments, self.nodes)
        first = self._of(plan, steps := self.steps(plan))
        more = Tune().further(self.arguments, self.nodes, first)
        return first if more is None else self._of(plan.joined(more), [*steps, *self.steps(more)])

    def _of(self, plan: Plan, steps: list[Measurement]) -> MeasuredSuite:
        return MeasuredSuite(evidence_of_plan(plan, steps), self.nodes.settings.confidence, SUITE_RECORD)

    def steps(self, plan: Plan) -> list[Measurement]:
        """All steps of a plan."""
        return [one for study in plan.studies for one in self._of_study(study)]

    def _of_study(self, study: Study) -> list[Measurement]:
        luck = {arm: self._random.gauss(0, self._launch_sd) for arm in study.arms}
        blocks: dict[tuple[Arm, int], float] = {}

        def samples_per_s(arm: Arm, number: int, rank: int) -> float:
            gain = self._gains.get(setting_of(study), 1.0) if arm == study.arms[-1] else 1.0
            noise = blocks.setdefault((arm, number), self._random.gauss(0, self._round_sd))
            return USUAL_SAMPLES_PER_S * gain * math.exp(luck[arm] + noise)

        return measure(study, study.rounds, samples_per_s)
