"""Failures corrected for how many requirements were judged (--ddp-family-confidence).

Each requirement is judged at a level of its own. That a machine is accepted though it misses a bound is then no
likelier than that level, because acceptance needs every requirement. That a machine is rejected though it keeps all
bounds grows with their number. Here only failures are corrected: one counts if Holm's step-down rejects it among all
requirements that can reject, on p values that are valid under any dependence between requirements and after any number
of rounds. Holm (1979), "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6.

What chance has no part in is a fact, and no member of the family: node checks, and ranks that have to agree. A member
that failed without a p value, because its data were wrong or it is one imported sample, stays failed. What nodes
reached before (``no_regression``) keeps its own level, beside the family.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.results.verdicts import WRONG_DATA, Verdict
from pytest_ddpscale.thresholds.cases import AnyCase
from pytest_ddpscale.thresholds.model import Severity

# No failure has a larger one: nothing is corrected.
ANY_P_VALUE = 1.0
# Relative to the level: failures of a requirement whose bound is exactly reached, at a correlation of 0.5 between
# rounds, the largest allowed for; a fortieth of that where rounds are independent (benchmarks/family.py).
WRONG_FAILURES = 1 / 6


def may_fail_by_chance(definition: Metric, severity: Severity) -> bool:
    """Whether a requirement on a metric can reject a machine that keeps it."""
    return severity == "fail" and definition.subject in ("workload", "probe") and definition.only_bound is None


def family_of(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Verdicts that are corrected together."""
    return [one for one in verdicts if may_fail_by_chance(METRICS[one.metric], one.severity)]


def rejection_level(cases: Iterable[AnyCase], family_confidence: float | None) -> float:
    """P value at which a failure counts whatever becomes of all others: until then it is worth measuring on."""
    if family_confidence is None:
        return ANY_P_VALUE
    members = [one for one in cases if may_fail_by_chance(one.requirement.definition, one.requirement.severity)]
    return (1 - family_confidence) / max(len(members), 1)


def chance_of_rejection(members: int, confidence: float) -> tuple[float, float]:
    """In how many runs a machine exactly on the bounds of so many requirements is rejected, each judged by itself.

    Returns:
        0 … 1, if all err together and if each errs by itself; for noise that remembers as much as is allowed for.
    """
    one = WRONG_FAILURES * (1 - confidence)
    return (one, 1 - (1 - one) ** members) if members else (0.0, 0.0)


def is_open(verdict: Verdict, level: float) -> bool:
    """Whether further rounds may decide it, fail further places, or make a failure count.

    Args:
        verdict: of one requirement, judged by itself.
        level: as `rejection_level` says.
    """
    can_reject = verdict.outcome == "failed" and may_fail_by_chance(METRICS[verdict.metric], verdict.severity)
    return verdict.is_open or (can_reject and _p_value(verdict) > level)


def with_family_confidence(verdicts: Sequence[Verdict], family_confidence: float) -> tuple[Verdict, ...]:
    """All verdicts of a run, in their order; a failure that does not count among all is inconclusive.

    Whoever is named stays named, for a person to look at, and is not drained for it. What is waived stays waived: it
    rejects nothing.

    Args:
        verdicts: each judged by itself.
        family_confidence: that no requirement of the family that is kept is rejected, 0 … 1.
    """
    family = family_of(verdicts)
    failed = {one.id for one in family if one.outcome == "failed" and not one.is_waived}
    too_weak = failed - _rejected(family, 1 - family_confidence)
    return tuple(_not_counting(one, len(family), family_confidence) if one.id in too_weak else one for one in verdicts)


def _rejected(family: Sequence[Verdict], level: float) -> set[str]:
    """Ids that Holm's step-down rejects; what did not fail counts as a p value of 1."""
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
    reason = f"fails by itself at {100 * verdict.confidence:.4g} %, not among {together}: {verdict.reason}"
    named = tuple(replace(culprit, is_certain=False) for culprit in verdict.culprits)
    return replace(verdict, outcome="inconclusive", reason=reason, culprits=named)
