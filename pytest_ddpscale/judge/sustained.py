"""Training in one stretch, compared with the rounds that follow it.

In the rounds a GPU rests between blocks, so heat may cost less there than at full load for minutes. The ratio of the
pace at the end of a stretch of the same training to that of its rounds is of one launch, so what differs between
launches cancels. Below `SLOWER` throughput is judged times it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pytest_ddpscale.judge.metrics import merged
from pytest_ddpscale.judge.stats import estimate_of
from pytest_ddpscale.judge.values import Values
from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, Question
from pytest_ddpscale.plan.study import SUSTAINED_S, Study
from pytest_ddpscale.run.block import read_steps
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.util.arrays import FloatArray

SLOWER = 0.995
PART_S = 2.0  # of the end, each a sample: as long as a block


class Sustained(NamedTuple):
    """One stretch.

    Attributes:
        study: id of the study.
        times_s: end of each part, since the stretch began, (parts,).
        ratios: pace of each part over that of the rounds, (parts,).
        ratio: of the last `SUSTAINED_S`.
        reach: half of its confidence interval, on the scale of logarithms.
    """

    study: str
    times_s: FloatArray
    ratios: FloatArray
    ratio: float
    reach: float

    @property
    def interval(self) -> tuple[float, float]:
        """Confidence interval of the ratio."""
        return self.ratio * math.exp(-self.reach), self.ratio * math.exp(self.reach)

    @property
    def counts(self) -> bool:
        """Whether throughput is judged times the ratio."""
        return self.ratio < SLOWER


def sustained(evidence: Evidence, study: Study, confidence: float) -> Sustained | None:
    """The stretch of a study; None if there was none, or too few rounds to compare it with."""
    arm, said = study.stretched, evidence.sustained.get(study.id)
    if arm is None or said is None:
        return None
    rounds = merged(evidence.columns, study.id, arm, evidence.plan.layout).samples_per_s_per_gpu
    steps_s = read_steps(said.step_s)
    ends_s = np.cumsum(steps_s)
    whole = int(steps_s.sum() / PART_S)
    part = np.minimum((ends_s / PART_S).astype(np.int64), whole - 1)  # what is left over belongs to the last
    counts, seconds = np.bincount(part, minlength=whole), np.bincount(part, steps_s, whole)
    paces: FloatArray = arm.batch_size * counts / seconds
    times_s: FloatArray = np.cumsum(seconds)
    at_end = paces[-round(min(SUSTAINED_S, steps_s.sum() / 2) / PART_S) :]
    if min(len(at_end), len(rounds)) < FEWEST_ROUNDS:
        return None
    end, beside = (estimate_of(one, "factors", confidence) for one in (at_end, rounds))
    reaches = [math.log(one.interval[1] / one.interval[0]) / 2 for one in (end, beside) if one.interval]
    return Sustained(study.id, times_s, paces / beside.value, end.value / beside.value, math.hypot(*reaches))


def as_sustained(values: Values[str], question: Question, study: Study, evidence: Evidence, at: float) -> Values[str]:
    """The values of a question at the pace of a stretch, where that is slower than the rounds."""
    found = sustained(evidence, study, at) if question.metric is THROUGHPUT_PER_GPU else None
    if found is None or not found.counts:
        return values
    return replace(values, samples=values.samples * found.ratio, of_launch=math.hypot(values.of_launch, found.reach))


def sustained_notes(evidence: Evidence, confidence: float) -> Iterator[Reason]:
    """What each stretch shows."""
    for study in evidence.plan.studies:
        if found := sustained(evidence, study, confidence):
            seconds = min(SUSTAINED_S, float(found.times_s[-1]) / 2), float(found.times_s[-1])
            yield because("sustained", study.id, found.ratio, *found.interval, *seconds, found.counts)
