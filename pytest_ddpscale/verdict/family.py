"""Failures corrected for how many requirements were judged (--ddp-family-confidence).

Each requirement is judged at its own level. The chance of a false acceptance does not exceed that level, because
acceptance needs every requirement. The chance of a false rejection grows with the number of requirements. So only
failures are corrected: one counts if Holm's step-down procedure rejects it among all requirements that can reject, with
p values that are valid under any dependence between requirements and after any number of rounds. Holm (1979), "A simple
sequentially rejective multiple test procedure", Scand. J. Statist. 6.

Requirements without random error do not belong to the family: node checks, and ranks that have to agree. A member that
failed without a p value, because its data were wrong or it is one imported sample, stays failed. The comparison with
earlier runs (``no_regression``) keeps its own level, outside the family.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytest_ddpscale.results.verdicts import WRONG_DATA, Verdict
from pytest_ddpscale.thresholds.cases import AnyCase

# The largest p value: no failure is corrected.
ANY_P_VALUE = 1.0


def rejection_level(cases: Iterable[AnyCase], family_confidence: float | None) -> float:
    """P value at which a failure counts regardless of the other requirements; above it, more rounds may help."""
    if family_confidence is None:
        return ANY_P_VALUE
    asked = [one.requirement for one in cases]
    members = sum(one.severity == "fail" and one.definition.errs_by_chance for one in asked)
    return (1 - family_confidence) / max(members, 1)


def is_open(verdict: Verdict, level: float) -> bool:
    """Whether further rounds may decide it, fail further places, or make a failure count.

    Args:
        verdict: on one requirement, without correction.
        level: from `rejection_level`.
    """
    may_be_chance = verdict.outcome == "failed" and verdict.may_reject_by_chance
    return verdict.is_open or (may_be_chance and _p_value(verdict) > level)


def with_family_confidence(verdicts: Sequence[Verdict], family_confidence: float) -> tuple[Verdict, ...]:
    """All verdicts of a run, in their order; failures that do not survive the correction become inconclusive.

    Their culprits stay named for inspection, but not as certain. Waived failures stay waived, because they reject
    nothing.

    Args:
        verdicts: each judged without correction.
        family_confidence: confidence that no requirement of the family is falsely rejected, 0 … 1.
    """
    family = [one for one in verdicts if one.may_reject_by_chance]
    failed = {one.id for one in family if one.outcome == "failed" and not one.is_waived}
    too_weak = failed - _rejected(family, 1 - family_confidence)
    return tuple(_not_counting(one, len(family), family_confidence) if one.id in too_weak else one for one in verdicts)


def _rejected(family: Sequence[Verdict], level: float) -> set[str]:
    """Ids that Holm's step-down procedure rejects; requirements that did not fail count with a p value of 1."""
    failed = sorted((one for one in family if one.outcome == "failed"), key=_p_value)
    rejected = set[str]()
    for number, one in enumerate(failed):
        if _p_value(one) > level / (len(family) - number):
            break
        rejected.add(one.id)
    return rejected


def _p_value(failed: Verdict) -> float:
    return 0.0 if failed.p_value is None or WRONG_DATA in failed.flags else failed.p_value


def _not_counting(verdict: Verdict, size: int, family_confidence: float) -> Verdict:
    together = f"the {size} requirements together (family confidence {100 * family_confidence:.4g} %)"
    reason = f"fails alone at {100 * verdict.confidence:.4g} %, but not among {together}: {verdict.reason}"
    named = tuple(replace(culprit, is_certain=False) for culprit in verdict.culprits)
    return replace(verdict, outcome="inconclusive", reason=reason, culprits=named)
