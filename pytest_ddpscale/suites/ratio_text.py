"""A ratio of two arms in words."""

from __future__ import annotations

from pytest_ddpscale.stats.intervals import Estimate
from pytest_ddpscale.verdict.estimating import Found


def ratio_texts(ratio: Found) -> tuple[str, str]:
    """As `estimate_texts`."""
    return estimate_texts(ratio.value, ratio.estimate)


def estimate_texts(value: float, estimate: Estimate | None) -> tuple[str, str]:
    """``1.043×`` and ``1.021 … 1.066``; a dash where there are too few rounds for an interval."""
    if estimate is None:
        return f"{value:.3f}×", "—"
    low, high = estimate.interval
    return f"{value:.3f}×", f"{low:.3f} … {high:.3f}"


def shown_difference(ratio: Found) -> str:
    """``faster``, ``slower`` or ``no difference shown``."""
    if ratio.estimate is None or ratio.estimate.interval[0] <= 1 <= ratio.estimate.interval[1]:
        return "no difference shown"
    return "faster" if ratio.value > 1 else "slower"
