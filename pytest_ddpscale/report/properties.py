"""A verdict as user properties of its test item, which pytest's JUnit XML, pytest-reportlog and others keep."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.report import text
from pytest_ddpscale.run.verdicts import Verdict


def verdict_properties(verdict: Verdict) -> list[tuple[str, object]]:
    """Names and values for JSON, those that a verdict has: numbers in its `unit`, unrounded, as in verdicts.json."""
    return [(name, _for_json(value)) for name, value in _properties(verdict) if value not in (None, "")]


def _properties(verdict: Verdict) -> Iterator[tuple[str, str | float | None]]:
    low, high = verdict.interval if verdict.interval is not None else (None, None)
    yield "requirement", text.one_line(verdict.id)
    yield "verdict", text.verdict_word(verdict)
    yield "value", verdict.value
    yield "unit", verdict.unit
    yield "interval_low", low
    yield "interval_high", high
    yield "confidence", verdict.confidence if low is not None else None
    for side, bound in verdict.bound.items():
        yield "bound", bound
        yield "bound_is", side
    yield "margin", verdict.margin
    is_of_ranks = METRICS[verdict.metric].subject not in ("check", "node")
    yield "place", text.one_line(verdict.place) or (text.count_text(verdict.world_size, "rank") if is_of_ranks else "")
    yield "culprits", "; ".join(text.culprit_text(culprit, full_uuid=True) for culprit in verdict.culprits)
    yield "reason", " ".join(text.details_of(verdict)) or text.reason_text(verdict)


def _for_json(value: str | float | None) -> object:
    """JSON has no infinities and no NaN."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)
