"""What a test item says of its verdict: its failure message, and its user properties."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.report import digits
from pytest_ddpscale.report.words.verdicts import (
    bound_in_words,
    culprit_text,
    details_of,
    reason_text,
    remarks,
    verdict_word,
)
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import count_text
from pytest_ddpscale.util.printable import one_line


def explain(verdict: Verdict, where: str, rerun: str) -> str:
    """Value, interval, bound, margin, culprits and the command to measure again; `where` is ``file:line``."""
    lines = [f"{verdict_word(verdict)}  {one_line(verdict.id)}: {reason_text(verdict)}"]
    if verdict.value is not None:
        lines.append(f"  value     {digits.point_text(verdict)}")
    if digits.limits_text(verdict) != digits.ABSENT:
        basis = f"{percent(verdict.confidence)} confidence, {count_text(verdict.rounds, 'round')}"
        lines.append(f"  limits    {digits.limits_text(verdict)}  ({basis})")
    lines.append(f"  bound     {bound_in_words(verdict)}  (severity {verdict.severity}, {where})")
    if verdict.value is not None:
        lines.append(f"  margin    {digits.margin_text(verdict)}")
    lines += [f"  {line}" for line in remarks(verdict, in_full=True)]
    return "\n".join([*lines, f"  rerun     {rerun}"])


def verdict_properties(verdict: Verdict) -> list[tuple[str, object]]:
    """What pytest's JUnit XML, pytest-reportlog and others keep: names and values for JSON, those that a verdict has.

    Numbers are in its `unit`, unrounded, as in verdicts.json.
    """
    return [(name, _for_json(value)) for name, value in _properties(verdict) if value not in (None, "")]


def _properties(verdict: Verdict) -> Iterator[tuple[str, str | float | None]]:
    low, high = verdict.interval if verdict.interval is not None else (None, None)
    yield "requirement", one_line(verdict.id)
    yield "verdict", verdict_word(verdict)
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
    yield "place", one_line(verdict.place) or (count_text(verdict.world_size, "rank") if is_of_ranks else "")
    yield "culprits", "; ".join(culprit_text(culprit, full_uuid=True) for culprit in verdict.accused)
    yield "reason", " ".join(details_of(verdict)) or reason_text(verdict)


def _for_json(value: str | float | None) -> object:
    """JSON has no infinities and no NaN."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)
