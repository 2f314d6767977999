"""Training in one stretch, compared with the rounds that follow it.

In the rounds a GPU rests between blocks, so heat may cost less there than at full load for minutes. The ratio of the
pace at the end of a stretch of the same training to that of its rounds is of one launch, so what differs between
launches cancels. Below `SLOWER` throughput is judged times it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pytest_ddpscale.judge.metrics import OF_PACE, WHOLE, merged
from pytest_ddpscale.judge.stats import estimate
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, Question
from pytest_ddpscale.plan.study import SUSTAINED_S, Study
from pytest_ddpscale.run.block import read_steps
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.reason import Reason, because
from pytest_ddpscale.run.table import memoized
from pytest_ddpscale.util.arrays import FloatArray

SLOWER = 0.995
_CONFIDENCE = 0.95
_MOST_AT_END = 64
PART_S = 2.0  # each a sample: as long as a block


class SustainedLoad(NamedTuple):
    """One group of ranks that trained together.

    Attributes:
        hosts: on which it is.
        times_s: end of each part, since the stretch began, (parts,).
        ratios: pace of each part over that of the rounds, (parts,).
        ratio: of the last `SUSTAINED_S`.
        reach: half of its confidence interval, on the scale of logarithms.
    """

    hosts: frozenset[str]
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


@memoized
def sustained_loads(evidence: Evidence, study: Study) -> list[SustainedLoad]:
    """Each group's stretch, the slowest first; none if there was no stretch, or too few rounds to compare it with."""
    arm, record = study.stretched, evidence.sustained.get(study.id)
    if arm is None or record is None:
        return []
    rounds = merged(evidence.columns, study.id, arm, evidence.plan.layout)
    columns = {rank: at for at, rank in enumerate(rounds.ranks.numbers.tolist())}
    host = {rank: rounds.ranks.hosts[at] for rank, at in columns.items()}
    of_first = {
        group[0]: frozenset(host[rank] for rank in group if rank in host) for group in evidence.plan.layout.groups(arm)
    }
    by_group, ends = [], []
    for stretch in record.ranks:
        parts = _parts(read_steps(stretch.step_s))
        if stretch.rank not in columns or len(parts) < FEWEST_ROUNDS:
            continue
        counts, seconds = parts.T
        times_s, paces = np.cumsum(seconds), arm.batch_size * counts / seconds
        steady = paces > np.median(paces) / 2  # a stall is no heat, and others see it
        last = max(FEWEST_ROUNDS, int((np.cumsum(seconds[steady][::-1]) <= SUSTAINED_S).sum()))
        kept = paces[steady][-last:][-_MOST_AT_END:]
        at_end = np.full(_MOST_AT_END, np.nan)
        at_end[: len(kept)] = kept
        by_group.append((columns[stretch.rank], of_first.get(stretch.rank, frozenset()), times_s, paces))
        ends.append(at_end)
    if not by_group or len(rounds) < FEWEST_ROUNDS:
        return []
    both = np.stack(ends), rounds.per_second[:, [at for at, *_ in by_group]].T
    end, beside = (estimate(some, "factors", _CONFIDENCE, alike=1) for some in both)
    ratios, reaches = end.values / beside.values, [np.log(some.high / some.low) / 2 for some in (end, beside)]
    reach = np.hypot(*reaches)
    return [
        SustainedLoad(hosts, times_s, paces / beside.values[row], float(ratios[row]), float(reach[row]))
        for row in np.argsort(ratios, kind="stable").tolist()
        for _, hosts, times_s, paces in by_group[row : row + 1]
        if not np.isnan(reach[row])
    ]


def _parts(steps_s: FloatArray) -> FloatArray:
    """Steps and seconds of parts of whole steps that take `PART_S` or more, (parts, 2)."""
    parts, count, seconds = list[tuple[int, float]](), 0, 0.0
    for step_s in steps_s.tolist():
        count, seconds = count + 1, seconds + step_s
        if seconds >= PART_S:
            parts.append((count, seconds))
            count, seconds = 0, 0.0
    return np.array(parts, np.float64).reshape(-1, 2)


def at_the_end(
    places: Sequence[str], question: Question, study: Study, evidence: Evidence
) -> tuple[FloatArray, FloatArray]:
    """The share of its pace that each place's slowest stretch keeps, (places, 1), and the share's reach, (places,).

    1 and 0 of a place that is as fast at the end, and of other questions.
    """
    loads = sustained_loads(evidence, study) if question.metric.name in OF_PACE else []
    factors, reaches = np.ones((len(places), 1)), np.zeros(len(places))
    for row, place in enumerate(places):
        slowest = next((load for load in loads if place == WHOLE or place in load.hosts), None)
        if slowest is not None and slowest.counts:
            factors[row], reaches[row] = slowest.ratio, slowest.reach
    return factors, reaches


def sustained_notes(evidence: Evidence) -> Iterator[Reason]:
    """What each stretch shows, on the slowest node; or that a planned one shows nothing."""
    for study in evidence.plan.studies:
        arm, loads = study.stretched, sustained_loads(evidence, study)
        for load in loads[:1]:
            seconds = float(load.times_s[-1])
            where = "".join(load.hosts) if len(load.hosts) == 1 < evidence.plan.nodes else ""
            facts = study.id, load.ratio, *load.interval, min(SUSTAINED_S, seconds), seconds, load.counts, where
            yield because("sustained", *facts)
        if arm and not loads and (study.id, arm.name) in evidence.columns.arms:
            yield because("no-stretch", study.id)
