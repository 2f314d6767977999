"""A ratio of two arms as text and as JSON."""

from __future__ import annotations

import math

from pytest_ddpscale.compare.value_change import Estimate
from pytest_ddpscale.judge.stats import Found


def interval_title(confidence: float) -> str:
    """``95 % interval`` of 0.95."""
    return f"{100 * confidence:g} % interval"


def estimate_texts(ratio: Found | Estimate) -> tuple[str, str]:
    """``1.043×`` and ``1.021 … 1.066``; a dash if there are too few rounds for an interval."""
    value, ends = f"{ratio.value:.3f}×", ratio.interval
    return value, "—" if ends is None else f"{ends[0]:.3f} … {ends[1]:.3f}"


def shown_difference(ratio: Found) -> str:
    """``faster``, ``slower`` or ``no difference shown``."""
    if ratio.interval is None or ratio.interval[0] <= 1 <= ratio.interval[1]:
        return "no difference shown"
    return "faster" if ratio.value > 1 else "slower"


def ratio_values(ratio: Found | Estimate | None) -> dict[str, float | None]:
    """The ratio and its interval for suite.json; an infinite end is null."""
    low, high = ratio.interval if ratio is not None and ratio.interval is not None else (None, None)
    value, high = None if ratio is None else ratio.value, high if high is None or math.isfinite(high) else None
    return {"ratio": value, "low": low, "high": high}
