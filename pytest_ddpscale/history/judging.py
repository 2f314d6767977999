"""Judging ``no_regression`` against the site's history of the same nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pytest_ddpscale.history.baseline import Baseline, missing_gpus
from pytest_ddpscale.history.key_values import KeyValue, has_key_values, key_values_of, known_versions
from pytest_ddpscale.history.prediction import FEWEST_VALUES
from pytest_ddpscale.history.regression import Compared, Regression, regression_of
from pytest_ddpscale.judge.answer import blank_verdict
from pytest_ddpscale.judge.coverage import notes_on_variables
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.reason import because
from pytest_ddpscale.run.verdicts import BY_VARIABLE, PARTLY_KNOWN, Culprit, Flag, Verdict
from pytest_ddpscale.thresholds.cases import NodeCase
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import first_few

_HOW_TO_BEGIN_ANEW = "ddpscale history --forget NODE"


def judge_regression(case: NodeCase, evidence: Evidence, baseline: Baseline | None, confidence: float) -> Verdict:
    """The verdict on ``no_regression``: no value may be below the least ratio to earlier runs, by joint intervals.

    Returns:
        ``passed`` if every value is certainly above the bound; ``failed`` if any is certainly below it;
        ``inconclusive`` in between, with too little or no history, and if a GPU with values in earlier runs has none
        now. ``not_measured`` if the run has no values.
    """
    blank = blank_verdict(case, confidence)
    if not has_key_values(evidence):
        return replace(blank, reason=_why_nothing(evidence))
    if baseline is None:
        return replace(blank, outcome="inconclusive", reason="there is no history of these nodes (--ddp-history)")
    current = key_values_of(evidence)
    versions = {host: known_versions(survey.versions) for host, survey in evidence.surveys.items()}
    found = regression_of(current, baseline, confidence, versions)
    if not found.compared:
        reason = f"none of its {len(current)} values has {FEWEST_VALUES} earlier runs to compare with"
        return replace(blank, outcome="inconclusive", reason=reason)
    missing = missing_gpus(baseline.places, [one.series for one in current])
    verdict = _against_bound(blank, case.requirement.bound, found, missing)
    is_slowed = any(one.args[3:] == ("slows", "") for one in notes_on_variables(evidence, [case]))
    if verdict.outcome == "failed" and is_slowed:
        return replace(verdict, culprits=(), flags=(*verdict.flags, BY_VARIABLE))
    return verdict


def _why_nothing(evidence: Evidence) -> str:
    if evidence.plan.studies or evidence.plan.probes:
        return "the run has no value to compare with earlier runs"
    return "nothing was measured to compare with earlier runs: also select tests that measure (-m node_health)"


def _against_bound(blank: Verdict, bound: float, found: Regression, missing: Sequence[tuple[str, str]]) -> Verdict:
    assert found.interval is not None  # the caller has checked that values were compared
    low, high = found.interval
    fewest = min(one.past.number for one in found.compared)
    notes = [f"compared with at least {fewest} earlier runs, by prediction intervals"]
    if found.without_past:
        notes.append(f"{len(found.without_past)} values have too few earlier runs to compare with")
    notes += [f"{host}: since then {'; '.join(changes)}" for host, changes in sorted(found.changes.items())]
    verdict = replace(blank, value=found.ratio, interval=(low, high), rounds=fewest, notes=tuple(notes))
    fallen = found.below(bound)
    if fallen:
        reason = f"fell below {bound:g} of earlier runs: {first_few(list(map(_in_words, fallen)), separator='; ')}"
        culprits = tuple(dict.fromkeys(_culprit(one) for one in fallen))
        notes.append(f"regressed values do not enter the baseline; {_HOW_TO_BEGIN_ANEW} begins a new one")
        flags: tuple[Flag, ...] = (PARTLY_KNOWN,) if missing or _without_any_past(found) else ()
        return replace(verdict, outcome="failed", reason=reason, culprits=culprits, notes=tuple(notes), flags=flags)
    if missing:
        gone = first_few([f"{gpu} on {host}" for host, gpu in missing])
        reason = f"{gone} reached values in earlier runs and {'have' if len(missing) > 1 else 'has'} none now"
        notes.append(f"missing GPUs stay expected; {_HOW_TO_BEGIN_ANEW} begins a new baseline")
        return replace(verdict, outcome="inconclusive", reason=reason, notes=tuple(notes))
    strangers = _without_any_past(found)
    if strangers:
        reason = f"nothing of {first_few(strangers)} can be compared with earlier runs"
        return replace(verdict, outcome="inconclusive", reason=reason)
    if low >= bound:
        return replace(verdict, outcome="passed", reason="every value with enough earlier runs meets the bound")
    # The smallest ratio may be known well enough to meet the bound, so name the smallest lower limit.
    least_known = min(found.compared, key=lambda one: one.interval[0])
    return replace(verdict, outcome="inconclusive", reason=f"may have regressed: {_in_words(least_known)}")


def _without_any_past(found: Regression) -> list[str]:
    """Nodes and GPUs without any value that has enough earlier runs, such as a replaced GPU."""
    known = {_place(one.value) for one in found.compared}
    return sorted({_place(value) for value in found.without_past} - known)


def _culprit(one: Compared) -> Culprit:
    value = one.value
    # Not certain: the software or the room's temperature may have changed instead.
    kind: Literal["node", "gpu"] = "node" if value.gpu_uuid is None else "gpu"
    return Culprit(kind, (value.place,), because("text", _in_words(one)), is_certain=False)


def _place(value: KeyValue) -> str:
    return value.host if value.gpu_uuid is None else f"{value.place.number} on {value.host}"


def _in_words(one: Compared) -> str:
    value = one.value
    return f"{_place(value)}: {value.what} is {percent(one.ratio, 1)} of its past"
