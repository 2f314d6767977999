"""A requirement before anything is known of it, and against per-round values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from pytest_ddpscale.plan.per_round import Sample
from pytest_ddpscale.results.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import AnyCase
from pytest_ddpscale.thresholds.model import Requirement, Source
from pytest_ddpscale.verdict.estimating import Found


def blank_verdict(case: AnyCase, confidence: float) -> Verdict:
    """The verdict ``not_measured`` on a requirement, with everything that its line of thresholds.yaml says."""
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
        source=_source_text(requirement.source),
        placement=requirement.placement,
    )


def against_bound(
    blank: Verdict, requirement: Requirement, samples: Sequence[Sample], estimate: Callable[[], Found]
) -> Verdict:
    """What per-round values come to, each of which was possible.

    Args:
        blank: on the requirement.
        requirement: with the bound.
        samples: at least one, in the order of the rounds.
        estimate: what they come to.

    Returns:
        ``passed`` or ``failed`` if the whole interval is on that side of the bound, ``inconclusive`` if the bound lies
        inside or there are too few rounds, ``error`` if a value is impossible.
    """
    values = [sample.value for sample in samples]
    definition = requirement.definition
    if not all(_is_possible(value, requirement) for value in values):
        return replace(blank, outcome="error", rounds=len(values), reason=f"an impossible value was measured: {values}")
    found = estimate()
    notes = (found.note,) if found.note else ()
    if found.estimate is None:
        return replace(blank, outcome="inconclusive", value=found.value, rounds=len(values), reason=found.too_few)
    low, high = found.estimate.interval
    bound, upper = requirement.bound, definition.upper_bound
    good, bad = (high <= bound, low > bound) if upper else (low >= bound, high < bound)
    verdict = replace(blank, value=found.value, interval=(low, high), rounds=len(values), notes=notes)
    if good:
        return replace(verdict, outcome="passed", reason="the whole interval keeps the bound")
    if bad:
        return replace(verdict, outcome="failed", reason="the whole interval misses the bound")
    return replace(verdict, outcome="inconclusive", reason="the bound lies inside the interval")


def _is_possible(value: float, requirement: Requirement) -> bool:
    """Rates and ratios are positive; a share may be nothing at all, and a difference of two arms less than that."""
    definition = requirement.definition
    may_be_nothing = definition.scale == "differences"
    may_be_negative = may_be_nothing and definition.baseline is not None
    return math.isfinite(value) and (value > 0 or may_be_negative or (may_be_nothing and value == 0))


def _source_text(source: Source) -> str:
    measured = f"measured {source.measured:g}" if source.measured is not None else ""
    margin = f"margin {source.margin_pct:g} %" if source.margin_pct is not None else ""
    parts = [part for part in (measured, margin, source.reference, source.reasoning) if part]
    return "; ".join(parts)
