"""Counts of unmet requirements by outcome, the same in every report and for pytest.

pytest, JUnit XML and the exit code count every blocker as a failure. Here they are split into failed, ended in an
error, undecided and not measured.
"""

from __future__ import annotations

from collections.abc import Collection

from pytest_ddpscale.report.text import count_text
from pytest_ddpscale.run.verdicts import Judgement, VerdictOutcome

# Outcome → singular and plural.
_NOUNS: dict[VerdictOutcome, tuple[str, str]] = {
    "failed": ("failure", "failures"),
    "error": ("error", "errors"),
    "inconclusive": ("undecided", "undecided"),
    "not_measured": ("not measured", "not measured"),
}
_WORDS: dict[VerdictOutcome, str] = {
    "failed": "failed",
    "error": "ended in an error",
    "inconclusive": "undecided",
    "not_measured": "not measured",
}


def counts_text(judgement: Judgement) -> str:
    """``6 of 81 requirements not met (5 failed, 1 undecided), 40 passed, 35 only warn``.

    The total is of the selected requirements; others are counted at the end.
    """
    verdicts = judgement.verdicts
    unmet = [one for one in verdicts if judgement.is_blocked_by(one)]
    rest = [one for one in verdicts if not judgement.is_blocked_by(one)]
    kinds = [(sum(one.outcome == outcome for one in unmet), word) for outcome, word in _WORDS.items()]
    kinds = [(count, word) for count, word in kinds if count]
    passed, waived = sum(one.passed for one in rest), sum(one.is_waived for one in rest)
    total = count_text(len(verdicts), "requirement")
    if not unmet:
        parts = [f"{passed} of {total} passed"]
    elif len(kinds) == 1:
        parts = [f"{len(unmet)} of {total} {kinds[0][1]}", f"{passed} passed"]
    else:
        told = ", ".join(f"{count} {word}" for count, word in kinds)
        parts = [f"{len(unmet)} of {total} not met ({told})", f"{passed} passed"]
    # Those that --ddp-allow-incomplete lets stay so.
    unmeasured = sum(one.outcome == "not_measured" and one.blocks() for one in rest)
    warned = len(rest) - passed - waived - unmeasured
    tests = sum(blocker.kind == "test" for blocker in judgement.blockers)
    if waived:
        parts.append(f"{waived} waived")
    if unmeasured:
        parts.append(f"{unmeasured} not measured, as allowed")
    if warned:
        parts.append(f"{warned} only warn{'s' if warned == 1 else ''}")
    if tests:
        parts.append(f"{count_text(tests, 'test')} failed or skipped")
    if any(blocker.kind == "run" for blocker in judgement.blockers):
        parts.append("1 failure: the run as a whole")
    if judgement.not_selected:
        parts.append(f"{judgement.not_selected} not selected")
    return ", ".join(parts)


def explained_text(explains: Collection[str], judgement: Judgement, *, only_worst: bool = False) -> str:
    """``5 of 5 failures and 1 of 2 undecided``: how many unmet requirements one cause explains; or only the first."""
    blockers: dict[VerdictOutcome, list[str]] = {outcome: [] for outcome in _NOUNS}
    for one in filter(judgement.is_blocked_by, judgement.verdicts):
        blockers[one.outcome].append(one.id)
    blockers["failed"] += [blocker.name for blocker in judgement.other_blockers]  # a test, or the run as a whole
    parts = []
    for outcome, found in blockers.items():
        explained = sum(name in explains for name in found)
        if explained:
            parts.append(f"{explained} of {len(found)} {_NOUNS[outcome][len(found) != 1]}")
    return " and ".join(parts[:1] if only_worst else parts)
