"""The value of a question without a requirement, estimated as the judge does."""

from __future__ import annotations

import math
from typing import NamedTuple

from pytest_ddpscale.judge.answering_rounds import ALL_RANKS, values_of
from pytest_ddpscale.judge.answering_study import matching_study
from pytest_ddpscale.judge.bounds import are_possible, possible_part
from pytest_ddpscale.judge.estimating import Estimates
from pytest_ddpscale.judge.launches import at_place
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.run.evidence import Evidence


class WorstValue(NamedTuple):
    """The worst value of all places, with the same attributes as `pytest_ddpscale.run.verdicts.Verdict`."""

    value: float
    interval: tuple[float, float] | None
    place: str


def worst_value(question: Question, evidence: Evidence, confidence: float) -> WorstValue | None:
    """Value and interval of all launches, at the place where it is worst; None if it was not measured.

    Args:
        question: what is asked; its metric needs no number from the thresholds file.
        evidence: the measurements.
        confidence: of the interval, 0 … 1.
    """
    metric = question.metric
    studies = [(matching_study(launch.plan, question), launch) for launch in evidence.launches]
    of_launches = [values_of(question, study, launch) if study else {} for study, launch in studies]
    fullest = max(of_launches, key=len)
    estimates = [Estimates(values, metric.scale) for values in of_launches]
    several = len(estimates) > 1
    places = [place for place, values in fullest.items() if len(values) and are_possible(values.values, metric)]
    found = [
        (place, at_place(estimates, place, confidence) if several else estimates[0].at(place, confidence))
        for place in places
    ]
    known = [(place, one) for place, one in found if math.isfinite(one.value)]
    if not known:
        return None
    place, worst = (max if metric.upper_bound else min)(known, key=lambda one: one[1].value)
    interval = worst.estimate and possible_part(
        *worst.estimate.interval, worst.value, metric.possible_at(question.world_size)
    )
    return WorstValue(worst.value, interval, "" if place == ALL_RANKS else place)
