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

from pytest_ddpscale.judge.metrics import WHOLE, merged
from pytest_ddpscale.judge.stats import estimate
from pytest_ddpscale.judge.values import Values
from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, Question
from pytest_ddpscale.plan.study import SUSTAINED_S, Study
from pytest_ddpscale.run.block import read_steps
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.table import once
from pytest_ddpscale.util.arrays import FloatArray

SLOWER = 0.995
PART_S = 2.0  # of the end, each a sample: as long as a block


class Stretch(NamedTuple):
    """What the ranks of a place show: of those that train together, the group with the smallest ratio.

    Attributes:
        host: of its first rank.
        times_s: end of each part, since the stretch began, (parts,).
        ratios: pace of each part over that of the rounds, (parts,).
        ratio: of the last `SUSTAINED_S`.
        reach: half of its confidence interval, on the scale of logarithms.
    """

    host: str
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


@once
def stretches(evidence: Evidence, study: Study, confidence: float) -> list[Stretch]:
    """Each group's stretch, the slowest first; none if there was no stretch, or too few rounds to compare it with."""
    arm, said = study.stretched, evidence.sustained.get(study.id)
    last = round(min(SUSTAINED_S, study.sustained_s / 2) / PART_S)
    if arm is None or said is None or last < FEWEST_ROUNDS:
        return []
    rounds = merged(evidence.columns, study.id, arm, evidence.plan.layout)
    columns = {rank: at for at, rank in enumerate(rounds.ranks.numbers.tolist())}
    found = []
    for one in said.ranks:
        steps_s, at = read_steps(one.step_s), columns.get(one.rank)
        whole = int(steps_s.sum() / PART_S)
        if at is not None and whole >= last:
            part = np.minimum((np.cumsum(steps_s) / PART_S).astype(np.int64), whole - 1)  # the last has what is left
            seconds = np.asarray(np.bincount(part, steps_s, whole), np.float64)
            with np.errstate(invalid="ignore"):  # no step ends in some parts, if steps are longer
                paces = arm.batch_size * np.bincount(part, minlength=whole) / seconds
            found.append((at, np.cumsum(seconds), paces))
    if not found or len(rounds) < FEWEST_ROUNDS:
        return []
    ends = estimate(np.stack([paces[-last:] for *_, paces in found]), "factors", confidence, alike=1)
    of_rounds = estimate(rounds.per_second[:, [at for at, *_ in found]].T, "factors", confidence, alike=1)
    ratios = ends.values / of_rounds.values
    reaches = np.hypot(*(np.log(some.high / some.low) / 2 for some in (ends, of_rounds)))
    return [
        Stretch(rounds.ranks.hosts[at], times_s, paces / of_rounds.values[row], float(ratios[row]), float(reaches[row]))
        for row in np.argsort(ratios, kind="stable").tolist()
        for at, times_s, paces in found[row : row + 1]
        if not np.isnan(reaches[row])
    ]


def as_sustained(values: Values[str], question: Question, study: Study, evidence: Evidence, at: float) -> Values[str]:
    """The values of a question, of each place at the pace of its slowest stretch, where that is slower."""
    found = stretches(evidence, study, at) if question.metric is THROUGHPUT_PER_GPU else []
    factors, reaches = np.ones((len(values.places), 1)), np.zeros(len(values.places))
    for row, place in enumerate(values.places):
        slowest = next((one for one in found if place in (WHOLE, one.host)), None)
        if slowest is not None and slowest.counts:
            factors[row], reaches[row] = slowest.ratio, slowest.reach
    of_launch = float(np.hypot(values.of_launch, reaches.max(initial=0.0)))
    return replace(values, samples=values.samples * factors, of_launch=of_launch)


def sustained_notes(evidence: Evidence, confidence: float) -> Iterator[Reason]:
    """What each stretch shows, on the slowest node."""
    for study in evidence.plan.studies:
        for one in stretches(evidence, study, confidence)[:1]:
            seconds = float(one.times_s[-1])
            where = one.host * (evidence.plan.nodes > 1)
            told = study.id, one.ratio, *one.interval, min(SUSTAINED_S, seconds / 2), seconds, one.counts, where
            yield because("sustained", *told)
