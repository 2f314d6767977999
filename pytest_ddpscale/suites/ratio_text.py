"""A ratio of two arms as text and as JSON."""

from __future__ import annotations

import math

from pytest_ddpscale.judge.estimating import Found
from pytest_ddpscale.judge.intervals import Estimate


def interval_title(confidence: float) -> str:
    """``95 % interval`` of 0.95."""
    return f"{100 * confidence:g} % interval"


def estimate_texts(value: float, estimate: Estimate | None) -> tuple[str, str]:
    """``1.043×`` and ``1.021 … 1.066``; a dash if there are too few rounds for an interval."""
    if estimate is None:
        return f"{value:.3f}×", "—"
    low, high = estimate.interval
    return f"{value:.3f}×", f"{low:.3f} … {high:.3f}"


def shown_difference(ratio: Found) -> str:
    """``faster``, ``slower`` or ``no difference shown``."""
    if ratio.estimate is None or ratio.estimate.interval[0] <= 1 <= ratio.estimate.interval[1]:
        return "no difference shown"
    return "faster" if ratio.value > 1 else "slower"


def ratio_values(value: float | None, estimate: Estimate | None) -> dict[str, float | None]:
    """The ratio and its interval for suite.json; an infinite end is null."""
    low, high = estimate.interval if estimate is not None else (None, None)
    return {"ratio": value, "low": low, "high": high if high is None or math.isfinite(high) else None}
