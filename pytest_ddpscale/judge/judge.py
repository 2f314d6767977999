"""Judge a requirement by the measurements: places, values, estimates, the bound, caveats, one verdict, culprits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from pytest_ddpscale.judge.agreement import with_agreement
from pytest_ddpscale.judge.caveats import CAVEATS
from pytest_ddpscale.judge.checks import judge_check
from pytest_ddpscale.judge.coverage import with_gpu_errors
from pytest_ddpscale.judge.judged import CODES, Judged, blank_verdict
from pytest_ddpscale.judge.links import with_probe_culprits, with_wrong_data
from pytest_ddpscale.judge.metrics import WHOLE, merged, on_hosts, rounds_begun
from pytest_ddpscale.judge.slow import SlowRanks, arms_read, with_culprits
from pytest_ddpscale.judge.spread import applies_to, excuse_spread, values_against_slowest
from pytest_ddpscale.judge.stats import ABSENT, FAILED, OPEN, Estimated
from pytest_ddpscale.judge.uniformity import judge_probe_uniformity, judge_uniformity
from pytest_ddpscale.judge.values import Missing, groups_of, matching_study, values_of_probe, why_incomplete
from pytest_ddpscale.judge.values import values as values_of
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.operation import KINDS
from pytest_ddpscale.plan.study import PROBES, Study
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.run.verdicts import BUDGET_SPENT, THIS_LAUNCH_ONLY, GenerationComparison, Verdict
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase


def judge(case: AnyCase, evidence: Evidence, confidence: float) -> Verdict:
    """The verdict on one requirement; ``no_regression`` is judged later, with the history.

    ``passed`` if the whole interval, valid for all rounds together at this confidence, is on the good side of the
    bound, ``failed`` if it is on the bad side, ``inconclusive`` if the bound lies inside, if there are too few rounds
    or if the numbers cannot be trusted (`caveats`); ``not_measured`` without data, ``error`` if the study
    broke. Each place is judged (`judged`): with several nodes those that fit a requirement, and all GPUs, groups or
    pairs of a probe. Wrong results fail whatever the speed.
    """
    blank, is_unsupported = blank_verdict(case, confidence), False
    if isinstance(case, Case):
        study = matching_study(evidence.plan, case.question)
        verdict, study_id = _judge_training(blank, case, evidence, study), study.id if study else ""
        # On a CPU launches differ more than rounds do, so the interval of one is too narrow.
        if evidence.plan.device_type == "cpu" and verdict.interval is not None:
            verdict = replace(verdict, flags=(*verdict.flags, THIS_LAUNCH_ONLY))
        reference, name = case.reference_samples_per_s, case.requirement.versus
        if reference is not None and name is not None and verdict.value is not None:
            both = GenerationComparison(verdict.value * reference, reference, name, case.reference_source)
            verdict = replace(verdict, compared=both)
    elif case.probe is not None:
        verdict, study_id = _judge_probe(blank, case, case.probe, evidence), PROBES
        is_unsupported = case.probe.name in evidence.unsupported
    else:
        is_check = case.requirement.definition.subject == "check"
        return judge_check(blank, case, evidence) if is_check else blank
    # An open verdict may be open because --ddp-budget ran out, not because of the machine.
    is_open = verdict.outcome in ("inconclusive", "not_measured") and not is_unsupported
    is_over = study_id in evidence.out_of_time
    return replace(verdict, notes=(*verdict.notes, BUDGET_SPENT)) if is_open and is_over else verdict


def _judge_training(blank: Verdict, case: Case, evidence: Evidence, study: Study | None) -> Verdict:
    question, requirement = case.question, case.requirement
    values = values_of(evidence, question) / case.constant
    if study is None or values.broken is not None:
        assert values.broken is not None
        return _broken(blank, values.broken, study.id if study else "", evidence)
    begun, arms = rounds_begun(evidence.columns, study.id), {arm.name for arm in arms_read(question, study)}
    due = _rounds_due(evidence, study.id, begun, arms)
    if requirement.definition.reads_own_pace:
        verdict = judge_uniformity(blank, case, study, evidence, due)
        return verdict if verdict.outcome == "not_measured" else with_agreement(verdict, study, evidence)
    is_by_node = evidence.plan.layout.judged_by_node(question.arms)
    planned, found = evidence.plan.nodes if is_by_node else 1, groups_of(question, study, evidence)
    peers = SlowRanks(study, evidence, case.peers.computing)
    judged = Judged(blank, case, evidence, values, study.rounds, due, found, peers if is_by_node else None)
    against = values_against_slowest(case, study, evidence, values) if applies_to(case) else None
    _judge_places(judged, planned, None if against is None else partial(excuse_spread, study=study, own=against))
    why_not = {name: why.text for name, why in values.missing.items()}
    missing = judged.why_nodes_missing(why_not, evidence) if is_by_node else why_not.get(WHOLE, "")
    verdict = judged.combined(planned, missing)
    if verdict.outcome != "not_measured" or is_by_node:
        verdict = with_agreement(verdict, study, evidence)
        code = CODES[verdict.outcome]

        def rounds() -> ArmRounds:
            if not is_by_node:
                return judged.rounds(WHOLE)
            alike = {judged.places[place].host for place in np.flatnonzero(judged.codes == code).tolist()}
            return on_hosts(merged(evidence.columns, study.id, question.measured, evidence.plan.layout), alike)

        verdict = with_culprits(verdict, case, peers, rounds)
    return judged.with_failed_nodes(verdict, planned) if is_by_node else verdict


def _judge_probe(blank: Verdict, case: NodeCase, probe: Arm, evidence: Evidence) -> Verdict:
    values, study = values_of_probe(probe, evidence), evidence.plan.probes
    if values.broken is not None or study is None:
        why = values.broken or Missing("not probed", (probe.name,))
        verdict = _broken(blank, why, PROBES, evidence)
    else:
        begun = {*evidence.rounds_probed, *evidence.timed_arms.get(PROBES, {})}
        due = _rounds_due(evidence, PROBES, begun, {probe.name})
        if case.requirement.definition.compares_places:
            verdict = judge_probe_uniformity(blank, case, values, evidence, due)
        else:
            judged = Judged(blank, case, evidence, values, study.rounds, due)
            planned = len(evidence.plan.layout.groups_of_round(probe))
            _judge_places(judged, planned)
            verdict = judged.combined(planned, why_incomplete(probe, values, evidence))
            limit = getattr(case.peers, KINDS[probe.operation.kind].peers or "computing")
            there = np.flatnonzero(judged.codes != ABSENT)
            places, found = [judged.places[at] for at in there.tolist()], judged.found.values[there]
            verdict = with_probe_culprits(verdict, probe, places, judged.codes[there], found, evidence, limit)
    measured = evidence.probed(probe)
    return with_wrong_data(verdict, probe, measured) if measured is not None else verdict


def _broken(blank: Verdict, why: Missing, study_id: str, evidence: Evidence) -> Verdict:
    """The verdict on what has no values."""
    return with_gpu_errors(replace(blank, outcome=why.outcome, reason=why.text, flags=why.flags), study_id, evidence)


def _rounds_due(evidence: Evidence, study_id: str, begun: Iterable[int], arms: set[str]) -> int:
    """Number of rounds that were begun and timed all these arms."""
    timed = evidence.timed_arms.get(study_id, {})
    return sum(number not in timed or arms <= set(timed[number]) for number in begun)


def _judge_places(judged: Judged, planned: int, spread: Callable[[Judged], None] | None = None) -> None:
    """Judge all places by the bound, the spread of GPUs and all doubts.

    Failures are judged again at the confidence that holds for all places together.
    """

    def look(found: Estimated) -> None:
        judged.decide(found)
        if spread is not None:
            spread(judged)
        for caveat in CAVEATS:
            caveat(judged)

    look(found := judged.found)
    failed, of = judged.codes == FAILED, max(planned, int((judged.codes != ABSENT).sum()))
    if not failed.any() or of == 1:
        return
    reasons = {place: judged.told(place) for place in np.flatnonzero(failed).tolist()}
    strict = judged.values.estimated(1 - (1 - judged.blank.confidence) / of, judged.limit)
    look(found.at(strict, failed))
    for place, reason in reasons.items():
        if judged.codes[place] != FAILED:
            judged.codes[place] = OPEN
            judged.reasons[place] = f"{reason}, but on one of {of} {judged.places[place].noun} this may be chance"
