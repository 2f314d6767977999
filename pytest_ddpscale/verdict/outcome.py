"""What a run's verdicts come to."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpscale.verdict.verdict import RunOutcome, Verdict


def conclude(verdicts: Sequence[Verdict], required: int, interrupted: bool = False) -> tuple[RunOutcome, str]:
    """The run's outcome and why, in one sentence.

    Args:
        verdicts: of everything that was selected.
        required: how many requirements the SKU has; fewer verdicts make a partial run.
        interrupted: the session ended before every selected item was judged.

    Returns:
        ``rejected`` if any requirement of severity ``fail`` failed. Else ``incomplete`` if one of
        severity ``fail`` is undecided, or any at all is not measured or broke. Else ``partial`` if
        requirements were left out. Else ``accepted``, unless no passed requirement of severity
        ``fail`` rests on a published number, which is ``incomplete``: a provisional bound cannot
        accept a cluster on its own.
    """
    failed = [v for v in verdicts if v.outcome == "failed" and v.severity == "fail"]
    if failed:
        return "rejected", f"{len(failed)} of {len(verdicts)} requirements failed: {_names(failed)}"
    broken = [v for v in verdicts if v.outcome in ("error", "not_measured")]
    if broken:
        return "incomplete", f"{len(broken)} of {len(verdicts)} requirements were not measured: {_names(broken)}"
    undecided = [v for v in verdicts if v.outcome == "inconclusive" and v.severity == "fail"]
    if undecided:
        return "incomplete", f"{len(undecided)} of {len(verdicts)} requirements are inconclusive: {_names(undecided)}"
    if interrupted:
        return "incomplete", f"interrupted after {len(verdicts)} of {required} requirements"
    if not verdicts:
        return "incomplete", "no requirement was judged"
    passed = [v for v in verdicts if v.passed]
    warned = sum(v.outcome in ("failed", "inconclusive") for v in verdicts)
    warnings = f", {warned} warned" if warned else ""
    if len(verdicts) < required:
        return "partial", f"{len(passed)} of {required} requirements passed{warnings}; the others were not selected"
    if not any(v.severity == "fail" and not v.provisional for v in passed):
        return "incomplete", (
            f"{len(passed)} of {required} requirements passed{warnings}, but none with a published bound: provisional "
            "bounds warn, they do not accept. Put measured numbers with their source into the thresholds file"
        )
    return "accepted", f"{len(passed)} of {required} requirements passed{warnings}"


def _names(verdicts: Sequence[Verdict]) -> str:
    shown = [verdict.id for verdict in verdicts[:3]]
    return ", ".join(shown) + (f" and {len(verdicts) - 3} more" if len(verdicts) > 3 else "")
