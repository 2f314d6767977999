"""How unlikely values are that miss a bound, if the machine keeps it."""

from __future__ import annotations

import math

import numpy as np

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.results.column_record import FloatArray
from pytest_ddpscale.stats.one_sided import largest_log_evidence
from pytest_ddpscale.thresholds.model import Requirement


def p_value_of(values: FloatArray, requirement: Requirement) -> float | None:
    """The p value of one place against the requirement being kept, valid after any number of rounds.

    Args:
        values: one per round, in the order of the rounds, (rounds,), each possible for the metric.
        requirement: with the bound.

    Returns:
        1 ÷ the largest e-value after any of the rounds so far, 0 … 1; None of what rounds cannot measure better: fewer
        than decide anything, as an imported sample, and ranks that have to agree bit for bit.
    """
    definition, bound = requirement.definition, requirement.bound
    if len(values) < FEWEST_ROUNDS or definition.only_bound is not None:
        return None
    if definition.scale == "factors":
        values, bound = np.log(values), math.log(bound)
    return math.exp(-largest_log_evidence(values, bound, -1.0 if definition.upper_bound else 1.0, FEWEST_ROUNDS))
