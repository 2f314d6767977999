"""Why the numbers do not decide although the whole interval lies on one side of the bound."""

from __future__ import annotations

from pytest_ddpscale.stats.correlation import MOST_CORRELATION
from pytest_ddpscale.verdict.estimating import Found


def why_correlated(found: Found) -> str:
    """The reason where rounds are more alike than the interval allows for; else empty."""
    if not found.exceeds or found.correlation is None:
        return ""
    return (
        f"successive rounds correlate by {found.correlation:.1f}, "
        f"more than the {MOST_CORRELATION:g} that the interval allows for"
    )


def why_not_decided(found: Found, bound: float, side: int) -> str:
    """The reason where the interval cannot be relied on, or where further rounds may still undo what it says.

    Args:
        found: with an interval that leaves the bound out.
        bound: in the metric's unit.
        side: 1 if the interval lies above the bound, -1 below.
    """
    correlated = why_correlated(found)
    if correlated or found.outlook is None or found.outlook.leave(bound, side).all():
        return correlated
    rounds, limit = found.outlook.series.shape[1], found.outlook.limit
    return (
        f"not final after {rounds} of {limit} rounds: a trend within the noise or one odd round "
        f"may still lead past the bound"
    )
