"""Reasons why a requirement is undecided although the whole interval lies on one side of the bound."""

from __future__ import annotations

import math

import numpy as np

from pytest_ddpscale.judge.correlation import MOST_CORRELATION
from pytest_ddpscale.judge.estimating import Found
from pytest_ddpscale.judge.intervals import Estimate


def why_correlated(found: Found, bound: float) -> str:
    """The reason if rounds correlate more than the interval allows for and the bound is near; else empty.

    A bound outside the widened interval (`stretched_interval`) is not in doubt.
    """
    if not found.exceeds or found.correlation is None or found.estimate is None:
        return ""
    low, high = stretched_interval(found, found.estimate)
    if not low <= bound <= high:
        return ""
    return (
        f"successive rounds correlate by {found.correlation:.1f}, "
        f"more than the {MOST_CORRELATION:g} that the interval allows for"
    )


def stretched_interval(found: Found, estimate: Estimate) -> tuple[float, float]:
    """The interval of an estimate, widened if rounds correlate more than it allows for.

    A mean of AR(1) noise varies sqrt((1 + ρ) / (1 - ρ)) times as much as one of independent noise. The interval is
    widened by the ratio of this factor at the correlation found to that at the largest allowed correlation. It is
    widened on the scale of averaging: the ends of values that err by factors move by factors and stay positive.
    """
    value, (low, high) = estimate
    if not found.exceeds or found.correlation is None:
        return low, high
    stretch = _inflation(found.correlation) / _inflation(MOST_CORRELATION)
    if found.outlook is not None and found.outlook.scale == "factors":
        with np.errstate(over="ignore"):  # an infinite limit is valid: the bound is then inside
            below, above = np.power(np.array([low, high]) / value, stretch)
        return value * float(below), value * float(above)
    return value - stretch * (value - low), value + stretch * (high - value)


def _inflation(correlation: float) -> float:
    return math.sqrt((1 + correlation) / (1 - correlation))


def why_not_decided(found: Found, bound: float, side: int) -> str:
    """The reason if the interval cannot be relied on, or if further rounds may still change the result; else empty.

    Args:
        found: with an interval that excludes the bound.
        bound: in the metric's unit.
        side: 1 if the interval lies above the bound, -1 below.
    """
    correlated = why_correlated(found, bound)
    if correlated or found.outlook is None or found.outlook.leave(bound, side).all():
        return correlated
    rounds, limit = found.outlook.series.shape[1], found.outlook.limit
    return (
        f"not final after {rounds} of {limit} rounds: a trend within the noise or one odd round "
        f"may still cross the bound"
    )
