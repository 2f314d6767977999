"""Value of each node of a run in a requirement, as the judge would compare it with the bound."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pytest_ddpscale.judge.answer import blank_verdict
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.judged import ON_NUMBERS, Judged
from pytest_ddpscale.judge.stats import PASSED
from pytest_ddpscale.judge.values import Values, groups_of, matching_study, values_of_probe, why_no_study
from pytest_ddpscale.judge.values import values as values_of
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase

CONFIDENCE = 0.95  # of intervals, a session's default


class NodeValue(NamedTuple):
    """Value of a node in one launch.

    Attributes:
        value: in the metric's unit; the worst place if a node is judged at several, such as GPUs.
        reach: distance to the bad end of the judge's confidence interval, scaled to the most rounds of a session: a
            logarithm if values err by factors, else in the metric's unit.
        place: name of the worst place.
    """

    value: float
    reach: float
    place: str


def node_values(case: AnyCase, evidence: Evidence) -> Mapping[str, NodeValue]:
    """The judge's estimate by host in one launch: the mean over rounds, of logarithms if values err by factors.

    A node is left out if the judge would not use its number: rounds are missing or too few, the value is not credible,
    devices waited for their host, or loss scaling skipped steps; and if it lacks a GPU or pair that others have.
    """
    plan, definition, groups = evidence.plan, case.requirement.definition, None
    measured: Values[Any]
    if isinstance(case, Case):
        study, arms = matching_study(plan, case.question), case.question.arms
        measured, limit = values_of(evidence, case.question) / case.constant, study.rounds if study else 0
        groups = groups_of(case.question, study, evidence) if study else None
    elif case.probe and plan.probes and not definition.compares_places:
        measured, limit, arms = values_of_probe(case.probe, evidence), plan.probes.rounds, [case.probe]
        measured = replace(measured, launch_sd=0.0)
    else:
        return {}
    if measured.broken or not all(map(plan.layout.fits_node, arms)):
        return {}
    judged = Judged(blank_verdict(case, CONFIDENCE), case, evidence, measured, groups=groups)
    reached = judged.estimated
    usable = ~np.isnan(reached.low) & (reached.rounds == reached.rounds.max(initial=FEWEST_ROUNDS))
    judged.codes[:], judged.notes = PASSED, {}
    for rule in ON_NUMBERS:
        rule(judged)
    usable &= judged.codes == PASSED
    usable[[place for at in judged.notes.values() for place in at]] = False
    end, worst = (reached.high, max) if definition.upper_bound else (reached.low, min)
    reach = np.abs(np.log(end / reached.values)) if definition.scale == "factors" else np.abs(end - reached.values)
    # Intervals narrow at least as fast as one over the root of the rounds.
    reach *= np.sqrt(np.minimum(1.0, reached.rounds / max(1, limit)))
    only = next(iter(evidence.columns.hosts), "")  # if all ranks are one place, they are of one node
    hosts, by_host = [place.host or only for place in judged.places], defaultdict[str, list[NodeValue]](list)
    most = max(Counter(hosts[at] for at in np.flatnonzero(reached.rounds).tolist()).values(), default=0)
    for at in np.flatnonzero(usable).tolist():
        by_host[hosts[at]].append(NodeValue(float(reached.values[at]), float(reach[at]), judged.places[at].name))
    return {host: worst(of, key=lambda one: one.value) for host, of in by_host.items() if len(of) == most}


def why_no_values(case: AnyCase, evidence: Evidence) -> str:
    """Why `node_values` has none, in words."""
    if case.requirement.definition.compares_places:
        return "compares places with each other; its limit is under `peers`"
    if isinstance(case, NodeCase) and case.probe is not None:
        return evidence.unsupported.get(case.probe.name, f"{case.probe.name} was not probed")
    if isinstance(case, Case) and matching_study(evidence.plan, case.question) is None:
        why = why_no_study(evidence.plan, case.question)
        return "not measured" if why.code == "not-planned" else say(why)
    return "not measured, or not usable by the judge"


def unfit_nodes(cases: Iterable[AnyCase], evidence: Evidence) -> dict[str, str]:
    """Nodes with a certain fault other than a low value, and the fault: a failed check or wrong results."""
    unfit: dict[str, str] = {}
    for case in cases:
        definition = case.requirement.definition
        if case.requirement.severity == "fail" and (definition.subject == "check" or definition.compares_results):
            verdict = judge(case, evidence, CONFIDENCE)
            for culprit in verdict.culprits if verdict.outcome == "failed" else ():
                unfit.setdefault(culprit.host, f"{case.id}: {say(culprit.because)}")
    for probed in evidence.probes:
        for column in np.flatnonzero(probed.wrong.any(axis=0)).tolist():
            unfit.setdefault(str(probed.ranks.hosts[column]), f"{probed.arm.partition('@')[0]}: a result was wrong")
    return unfit
