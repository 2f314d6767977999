"""The blank verdict on a requirement, and the verdict on a place from its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pytest_ddpscale.judge.estimating import FAR, Found, why_not_decided
from pytest_ddpscale.plan.metric_catalogue import Metric
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.verdicts import Verdict, VerdictOutcome
from pytest_ddpscale.thresholds.cases import AnyCase
from pytest_ddpscale.thresholds.model import Requirement

WIDEST = 1000.0  # an interval that reaches to so many times its value says nothing
_REASONS: dict[VerdictOutcome, str] = {
    "passed": "the whole interval keeps the bound",
    "failed": "the whole interval misses the bound",
    "inconclusive": "the bound lies inside the interval",
}


def blank_verdict(case: AnyCase, confidence: float) -> Verdict:
    """The verdict ``not_measured`` on a requirement, with the fields of its line in thresholds.yaml."""
    requirement, source = case.requirement, case.requirement.source
    told = (
        "the site's bound" if source.is_site else "",
        "" if source.measured is None else f"measured {source.measured:g}",
        "" if source.margin_pct is None else f"margin {source.margin_pct:g} %",
        source.reference, source.reasoning, requirement.one_gpu_text,
    )  # fmt: skip
    return Verdict(
        id=case.id,
        metric=requirement.metric,
        workload=requirement.subject,
        world_size=case.world_size,
        severity=requirement.severity,
        bound={requirement.definition.bound_key: requirement.bound},
        outcome="not_measured",
        confidence=confidence,
        provisional=requirement.provisional,
        source="; ".join(part for part in told if part),
        placement=requirement.placement,
        published=source.measured,
        one_gpu=requirement.one_gpu if requirement.times_one_gpu else None,
        unit=case.unit,
    )


def against_bound(
    blank: Verdict, requirement: Requirement, values: FloatArray, estimate: Callable[[], Found]
) -> Verdict:
    """The verdict on a place from its values, at least one, (rounds,); `estimate` returns value and interval of them.

    ``passed`` or ``failed`` if the whole interval is on that side of the bound, or each round is far beyond it;
    ``inconclusive`` if the bound lies inside or there are too few rounds, ``error`` if a value is impossible. The
    returned interval is clipped to possible values, and None beyond `WIDEST`; the unclipped one decides.
    """
    definition, count = requirement.definition, len(values)
    if not are_possible(values, definition):
        reason = f"an impossible value was measured: {values.tolist()}"
        return replace(blank, outcome="error", rounds=count, reason=reason)
    found = estimate()
    notes = (found.note,) if found.note else ()
    if found.interval is None:
        return replace(blank, outcome="inconclusive", value=found.value, rounds=count, reason=found.too_few)
    low, high = found.interval
    bound, upper = requirement.bound, definition.upper_bound
    good, bad = (high <= bound, low > bound) if upper else (low >= bound, high < bound)
    outcome: VerdictOutcome = "passed" if good else "failed" if bad else "inconclusive"
    reason = _REASONS[outcome]
    if forbidding := why_not_decided(found, bound, 1 if good != upper else -1) if good or bad else "":
        outcome, reason = "inconclusive", forbidding
    is_kept = found.value <= bound if upper else found.value >= bound
    if outcome == "inconclusive" and found.series and found.series.are_far(bound, 1 if is_kept != upper else -1).all():
        outcome = "passed" if is_kept else "failed"
        reason = f"no round comes within a factor of {FAR:g} of the bound"
    says_nothing = definition.scale == "factors" and found.series is not None and high > WIDEST * found.value
    if says_nothing and outcome == "inconclusive":
        reason = f"{count} rounds vary too much for an interval"
    possible = possible_part(low, high, found.value, definition.range_at(blank.world_size, "possible"))
    return replace(
        blank, outcome=outcome, value=found.value, rounds=count, notes=notes, reason=reason,
        interval=None if says_nothing else possible,
        correlation=found.correlation,
    )  # fmt: skip


def possible_part(low: float, high: float, value: float, possible: tuple[float, float]) -> tuple[float, float]:
    """The interval clipped to possible values; the value stays inside, even if noise puts it slightly beyond."""
    least, most = possible
    return min(max(low, least), value), max(min(high, most), value)


def are_possible(values: FloatArray, definition: Metric) -> bool:
    """Rates and ratios must be positive; a share may be 0, and a difference of two arms negative."""
    if not np.isfinite(values).all():
        return False
    if definition.scale != "differences":
        return bool(values.min() > 0)
    return definition.baseline is not None or bool(values.min() >= 0)
