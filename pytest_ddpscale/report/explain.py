"""Failure message of a test item."""

from __future__ import annotations

from pytest_ddpscale.report import digits, text
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.util.digits import percent


def explain(verdict: Verdict, where: str, rerun: str) -> str:
    """Value, interval, bound, margin, culprits and the command to measure again; `where` is ``file:line``."""
    lines = [f"{text.verdict_word(verdict)}  {text.one_line(verdict.id)}: {text.reason_text(verdict)}"]
    lines += [f"  error     {line}" for line in text.details_of(verdict)]
    if text.check_text(verdict):
        lines.append(f"  check     {text.check_text(verdict)}")
    if verdict.value is not None:
        lines.append(f"  value     {digits.point_text(verdict)}")
    if digits.limits_text(verdict) != digits.ABSENT:
        basis = f"{percent(verdict.confidence)} confidence, {text.basis_text(verdict)}"
        lines.append(f"  limits    {digits.limits_text(verdict)}  ({basis})")
    lines.append(f"  bound     {digits.bound_text(verdict)}  (severity {verdict.severity}, {where})")
    if verdict.value is not None:
        lines.append(f"  margin    {digits.margin_text(verdict)}")
    if verdict.compared is not None:
        lines.append(f"  ratio of  {text.compared_text(verdict.compared)}")
    if text.is_provisional(verdict):
        lines.append("  note      the bound is provisional: no published figure stands behind it")
    if verdict.is_waived:
        lines.append(f"  waived    {text.waiver_text(verdict).removeprefix('waived ')}")
    lines += [f"  note      {text.one_line(note)}" for note in verdict.notes]
    lines += [f"  blame     {text.culprit_text(culprit, full_uuid=True)}" for culprit in verdict.culprits]
    lines.append(f"  rerun     {rerun}")
    return "\n".join(lines)
