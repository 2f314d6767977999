"""The blank verdict on a requirement, and the verdict from per-round values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pytest_ddpscale.judge.estimating import Found
from pytest_ddpscale.judge.finality import why_correlated, why_not_decided
from pytest_ddpscale.judge.p_value import p_value_of
from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.run.column_record import FloatArray
from pytest_ddpscale.run.verdicts import Verdict, VerdictOutcome
from pytest_ddpscale.thresholds.cases import AnyCase
from pytest_ddpscale.thresholds.model import Requirement

_REASONS: dict[VerdictOutcome, str] = {
    "passed": "the whole interval keeps the bound",
    "failed": "the whole interval misses the bound",
    "inconclusive": "the bound lies inside the interval",
}


def blank_verdict(case: AnyCase, confidence: float) -> Verdict:
    """The verdict ``not_measured`` on a requirement, with the fields of its line in thresholds.yaml."""
    requirement = case.requirement
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
        source=_source_text(requirement),
        placement=requirement.placement,
        published=requirement.source.measured,
        one_gpu=requirement.one_gpu if requirement.times_one_gpu else None,
        unit=case.unit,
    )


def against_bound(
    blank: Verdict, requirement: Requirement, values: FloatArray, estimate: Callable[[], Found]
) -> Verdict:
    """The verdict from per-round values.

    Args:
        blank: on the requirement.
        requirement: with the bound.
        values: at least one, in the order of the rounds, (rounds,).
        estimate: returns value and interval.

    Returns:
        ``passed`` or ``failed`` if the whole interval is on that side of the bound, ``inconclusive`` if the bound lies
        inside or there are too few rounds, ``error`` if a value is impossible. The returned interval is clipped to
        possible values; the unclipped one decides.
    """
    definition, count = requirement.definition, len(values)
    if not are_possible(values, definition):
        reason = f"an impossible value was measured: {values.tolist()}"
        return replace(blank, outcome="error", rounds=count, reason=reason)
    found = estimate()
    notes = (found.note,) if found.note else ()
    if found.estimate is None:
        return replace(blank, outcome="inconclusive", value=found.value, rounds=count, reason=found.too_few)
    low, high = found.estimate.interval
    bound, upper = requirement.bound, definition.upper_bound
    good, bad = (high <= bound, low > bound) if upper else (low >= bound, high < bound)
    outcome: VerdictOutcome = "passed" if good else "failed" if bad else "inconclusive"
    reason = _REASONS[outcome]
    forbidding = (
        why_not_decided(found, bound, 1 if good != upper else -1) if good or bad else why_correlated(found, bound)
    )
    if forbidding:
        outcome, reason = "inconclusive", forbidding
    return replace(
        blank, outcome=outcome, value=found.value, rounds=count, notes=notes, reason=reason,
        interval=possible_part(low, high, found.value, definition.possible_at(blank.world_size)),
        correlation=found.correlation, launch_sd=found.launch_sd,
        p_value=p_value_of(values, requirement, found.launch_values) if outcome == "failed" else None,
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


def _source_text(requirement: Requirement) -> str:
    source = requirement.source
    measured = f"measured {source.measured:g}" if source.measured is not None else ""
    margin = f"margin {source.margin_pct:g} %" if source.margin_pct is not None else ""
    told = measured, margin, source.reference, source.reasoning, requirement.one_gpu_text
    parts = [part for part in told if part]
    return "; ".join(parts)
