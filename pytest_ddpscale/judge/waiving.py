"""Waivers: a failure is waived if a waiver exists, has not expired and covers the failure."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from pytest_ddpscale.judge.covering import is_between_nodes
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import PARTLY_KNOWN, WRONG_DATA, Verdict
from pytest_ddpscale.thresholds.cases import AnyCase
from pytest_ddpscale.thresholds.waiver import Waiver, why_never_waived


def with_waiver(verdict: Verdict, case: AnyCase, evidence: Evidence, day: date) -> Verdict:
    """The verdict, waived if its requirement has a waiver that covers this failure; else with a note why not.

    Args:
        verdict: on the requirement, without a waiver.
        case: the requirement.
        evidence: of the verdict.
        day: day of judgement, in UTC.
    """
    waiver = case.requirement.waiver
    if waiver is None or why_never_waived(case.requirement):
        return verdict
    note = _why_not(verdict, waiver, case, evidence, day)
    return replace(verdict, notes=(*verdict.notes, note)) if note else replace(verdict, waiver=waiver)


def _why_not(verdict: Verdict, waiver: Waiver, case: AnyCase, evidence: Evidence, day: date) -> str:
    if verdict.passed:
        return f"{waiver}: not needed"
    if verdict.outcome != "failed":
        return f"{waiver}: not applied, because only a failure can be waived"
    if not waiver.holds_on(day):
        return f"waiver by {waiver.who} ended {waiver.until}"
    if WRONG_DATA in verdict.flags:
        return f"{waiver}: not applied, because wrong data cannot be waived"
    if PARTLY_KNOWN in verdict.flags:
        return f"{waiver}: not applied, because other places were not measured or are undecided"
    if is_between_nodes(case, evidence):
        return f"{waiver}: not applied, because a result between nodes cannot be waived"
    return ""
