"""Counts of unmet requirements by outcome, the same in every report and for pytest.

pytest, JUnit XML and the exit code count every blocker as a failure. Here they are split into failed, ended in an
error, undecided and not measured. Requirements with the same evidence count once, as the worst of them
(`run/counting.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pytest_ddpscale.report.text import count_text
from pytest_ddpscale.run.counting import counted_as, counted_groups, worst_of
from pytest_ddpscale.run.verdicts import Judgement, Verdict, VerdictOutcome

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
    """``6 of 81 requirements not met (5 failed, 1 undecided), 40 passed, 35 only warn``; each counts once.

    The total is of the selected requirements; others are counted at the end.
    """
    counted = judgement.counted
    unmet = [one for one in counted if judgement.is_blocked_by(one)]
    rest = [one for one in counted if not judgement.is_blocked_by(one)]
    kinds = [(sum(one.outcome == outcome for one in unmet), word) for outcome, word in _WORDS.items()]
    kinds = [(count, word) for count, word in kinds if count]
    passed, waived = sum(one.passed for one in rest), sum(one.is_waived for one in rest)
    total = count_text(len(counted), "requirement")
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
    if judgement.number_not_selected:
        parts.append(f"{judgement.number_not_selected} not selected")
    return ", ".join(parts)


def waived_groups(judgement: Judgement) -> list[list[Verdict]]:
    """Waived requirements, together those that count once and that one waiver is for."""
    groups: dict[tuple[str, object], list[Verdict]] = {}
    as_ = counted_as(judgement.verdicts)
    for one in judgement.waived:
        groups.setdefault((as_[one.id], one.waiver), []).append(one)
    return [*groups.values()]


def explained_text(explains: Collection[str], judgement: Judgement, *, only_worst: bool = False) -> str:
    """``5 of 5 failures and 1 of 2 undecided``: how many unmet requirements one cause explains; or only the first."""
    parts = []
    for outcome, found in _by_outcome(judgement).items():
        explained = sum(not names.isdisjoint(explains) for names in found)
        if explained:
            parts.append(f"{explained} of {len(found)} {_NOUNS[outcome][len(found) != 1]}")
    return " and ".join(parts[:1] if only_worst else parts)


def number_of_blockers(judgement: Judgement) -> int:
    """How many blockers a machine has, those with the same evidence counted once."""
    return sum(map(len, _by_outcome(judgement).values()))


def _by_outcome(judgement: Judgement) -> Mapping[VerdictOutcome, list[frozenset[str]]]:
    """Names of all blockers, together those that count once; a test, or the run as a whole, counts as a failure."""
    found: dict[VerdictOutcome, list[frozenset[str]]] = {outcome: [] for outcome in _NOUNS}
    for group in counted_groups(judgement.verdicts):
        if blocking := [one for one in group if judgement.is_blocked_by(one)]:
            worst = worst_of(blocking, allows_unmeasured=judgement.allows_unmeasured)
            found[worst.outcome].append(frozenset(one.id for one in blocking))
    found["failed"] += [frozenset({blocker.name}) for blocker in judgement.other_blockers]
    return found
