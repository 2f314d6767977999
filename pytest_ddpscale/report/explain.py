"""What a failing test item says."""

from __future__ import annotations

from pytest_ddpscale.report.text import (
    bound_text,
    check_text,
    count_text,
    culprit_text,
    has_interval,
    interval_text,
    is_provisional,
    margin_text,
    one_line,
    point_text,
    reason_text,
    verdict_word,
)
from pytest_ddpscale.results.verdicts import Verdict


def explain(verdict: Verdict, where: str, rerun: str) -> str:
    """Value, interval, bound, margin, who is to blame and how to measure it again.

    Args:
        verdict: to be explained.
        where: ``file:line`` of the requirement.
        rerun: the command that measures just this again.
    """
    lines = [f"{verdict_word(verdict)}  {one_line(verdict.id)}: {reason_text(verdict)}"]
    if check_text(verdict):
        lines.append(f"  check     {check_text(verdict)}")
    if verdict.value is not None:
        lines.append(f"  value     {point_text(verdict)}")
    if has_interval(verdict):
        basis = f"{verdict.confidence:.0%} confidence, {count_text(verdict.rounds, 'round')}"
        lines.append(f"  interval  {interval_text(verdict)}  ({basis})")
    lines.append(f"  bound     {bound_text(verdict)}  (severity {verdict.severity}, {where})")
    if verdict.value is not None:
        lines.append(f"  margin    {margin_text(verdict)}")
    if is_provisional(verdict):
        lines.append("  note      the bound is provisional: no published figure stands behind it")
    lines += [f"  note      {one_line(note)}" for note in verdict.notes]
    lines += [f"  blame     {culprit_text(culprit, full_uuid=True)}" for culprit in verdict.culprits]
    lines.append(f"  rerun     {rerun}")
    return "\n".join(lines)
