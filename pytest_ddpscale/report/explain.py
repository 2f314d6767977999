"""What a test item says of its verdict: its failure message, and its user properties."""

from __future__ import annotations

import math

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


def explain(verdict: Verdict, where: str = "", rerun: str = "") -> str:
    """Value, interval, bound, margin, culprits and the command to measure again; `where` is ``file:line``."""
    lines = [f"{verdict_word(verdict)}  {one_line(verdict.id)}: {reason_text(verdict)}"]
    basis = f"  ({percent(verdict.confidence)} confidence, {count_text(verdict.rounds, 'round')})"
    facts = {
        "value": digits.point_text(verdict),
        "limits": digits.limits_text(verdict) + basis,
        "bound": f"{bound_in_words(verdict)}  (severity {', '.join(filter(None, (verdict.severity, where)))})",
        "margin": digits.margin_text(verdict),
    }
    lines += [f"  {name:9} {text}" for name, text in facts.items() if not text.startswith(digits.ABSENT)]
    lines += [f"  {line}" for line in remarks(verdict, in_full=True)]
    return "\n".join([*lines, *[f"  rerun     {rerun}"] * bool(rerun)])


def verdict_properties(verdict: Verdict) -> list[tuple[str, object]]:
    """What pytest's JUnit XML, pytest-reportlog and others keep: names and values for JSON, those that a verdict has.

    Numbers are in its `unit`, unrounded, as in verdicts.json. JSON has no infinities and no NaN.
    """
    low, high = verdict.interval if verdict.interval is not None else (None, None)
    is_of_ranks = METRICS[verdict.metric].subject not in ("check", "node")
    [(side, bound)] = verdict.bound.items()
    properties: dict[str, str | float | None] = {
        "requirement": one_line(verdict.id),
        "verdict": verdict_word(verdict),
        "value": verdict.value,
        "unit": verdict.unit,
        "interval_low": low,
        "interval_high": high,
        "confidence": verdict.confidence if low is not None else None,
        "bound": bound,
        "bound_is": side,
        "margin": verdict.margin,
        "place": one_line(verdict.place) or count_text(verdict.world_size, "rank") * is_of_ranks,
        "culprits": "; ".join(culprit_text(culprit, full_uuid=True) for culprit in verdict.accused),
        "reason": " ".join(details_of(verdict)) or reason_text(verdict),
    }
    return [
        (name, str(value) if isinstance(value, float) and not math.isfinite(value) else value)
        for name, value in properties.items() if value not in (None, "")
    ]  # fmt: skip
