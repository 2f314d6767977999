"""P values of missed bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pytest_ddpscale.judge.intervals import mean_p_value
from pytest_ddpscale.judge.one_sided import largest_log_evidence
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.thresholds.model import Requirement


def p_value_of(values: FloatArray, requirement: Requirement, launch_values: Sequence[float] = ()) -> float | None:
    """The p value of one place under the hypothesis that the requirement is met, valid after any number of rounds.

    With several launches, whose numbers of rounds were fixed before, from Student's t over their values.

    Args:
        values: one per round, in the order of the rounds, (rounds,), each possible for the metric.
        requirement: with the bound.
        launch_values: value of each launch, at least three; empty with one launch.

    Returns:
        1 ÷ the largest e-value after any of the rounds so far, 0 … 1. None with too few rounds to decide, such as an
        imported sample, and for ranks that have to agree bit for bit.
    """
    definition, bound = requirement.definition, requirement.bound
    if len(values) < FEWEST_ROUNDS or definition.only_bound is not None:
        return None
    series: FloatArray = np.array(launch_values) if launch_values else values
    if definition.scale == "factors":
        series, bound = np.log(series), math.log(bound)
    if launch_values:
        sign = -1 if definition.upper_bound else 1
        return mean_p_value((sign * series).tolist(), sign * bound)
    return math.exp(-largest_log_evidence(series, bound, -1.0 if definition.upper_bound else 1.0, FEWEST_ROUNDS))
