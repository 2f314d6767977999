"""The blank verdict on a requirement, and the verdict on a place from its values."""

from __future__ import annotations

import math
from dataclasses import replace

from pytest_ddpscale.judge.stats import ABSENT, FAILED, IMPOSSIBLE, OPEN, PASSED, Estimated, possible_part
from pytest_ddpscale.run.verdicts import Verdict, VerdictOutcome
from pytest_ddpscale.thresholds.cases import AnyCase
from pytest_ddpscale.thresholds.model import Requirement

OUTCOMES: dict[int, VerdictOutcome] = {
    PASSED: "passed", FAILED: "failed", OPEN: "inconclusive", IMPOSSIBLE: "error", ABSENT: "not_measured",
}  # fmt: skip


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


def against_bound(blank: Verdict, requirement: Requirement, one: Estimated) -> Verdict:
    """The verdict on a place from its values, the only series, by `Estimated.against`; ``error`` if one is impossible.

    The returned interval is clipped to possible values, and None beyond `WIDEST`; the unclipped one decides.
    """
    definition = requirement.definition
    # A share may be 0, and a difference of two arms negative.
    least = 0.0 if definition.scale == "differences" and definition.baseline is None else -math.inf
    codes, why = one.against(requirement.bound, -1 if definition.upper_bound else 1, least)
    verdict = replace(
        blank, outcome=OUTCOMES[int(codes[0])], rounds=int(one.rounds[0]), reason=one.told(0, str(why[0]))
    )
    if codes[0] == IMPOSSIBLE:
        return verdict
    found = one.found(0)
    verdict = replace(verdict, value=found.value)
    if found.interval is None:
        return verdict
    possible = possible_part(*found.interval, found.value, definition.range_at(blank.world_size, "possible"))
    return replace(
        verdict, notes=(found.note,) if found.note else (), correlation=found.correlation,
        interval=None if one.say_nothing[0] else possible,
    )  # fmt: skip
