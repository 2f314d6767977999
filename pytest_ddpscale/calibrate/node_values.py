"""Value of each node of a run in a requirement, as the judge would compare it with the bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ddpscale.judge.answer import blank_verdict
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.judged import ON_NUMBERS, Judged
from pytest_ddpscale.judge.metrics import WHOLE
from pytest_ddpscale.judge.stats import PASSED
from pytest_ddpscale.judge.values import groups_of, matching_study, probed_values, why_no_study
from pytest_ddpscale.judge.values import values as values_of
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase

CONFIDENCE = 0.95  # of intervals, a session's default


@dataclass(frozen=True)
class NodeValue:
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
    names: Sequence[str]
    if isinstance(case, Case):
        study, found = matching_study(plan, case.question), values_of(evidence, case.question) / case.constant
        if study is None or found.broken is not None or not all(map(plan.layout.fits_node, case.question.arms)):
            return {}
        groups, limit, names = groups_of(case.question, study, evidence), study.rounds, found.places
        hosts = list(groups.merged[-1].ranks.by_host) if list(names) == [WHOLE] else names
        judged = Judged(blank_verdict(case, CONFIDENCE), case, evidence, found, groups=groups)
    elif case.probe is None or definition.compares_places or plan.probes is None:
        return {}
    else:
        probed, limit = probed_values(evidence.probed(case.probe), case.probe, plan.layout), plan.probes.rounds
        names = [place.name for place in probed.places]
        hosts = ["" if one.kind == "gang" or one.is_between_nodes else one.host for one in probed.places]
        judged = Judged(blank_verdict(case, CONFIDENCE), case, evidence, probed)
    by_host: dict[str, list[NodeValue | None]] = {}
    of_places = zip(hosts, _usable(judged, names, limit), judged.values.rounds().tolist(), strict=False)
    for host, one, rounds in of_places:
        if host and rounds:
            by_host.setdefault(host, []).append(one)
    worst, most = max if definition.upper_bound else min, max(map(len, by_host.values()), default=0)
    usable = {host: [one for one in of_host if one] for host, of_host in by_host.items()}
    return {host: worst(of, key=lambda one: one.value) for host, of in usable.items() if len(of) == most}


def why_no_values(case: AnyCase, evidence: Evidence) -> str:
    """Why `node_values` has none, in words."""
    if case.requirement.definition.compares_places:
        return "compares places with each other; its limit is under `peers`"
    if isinstance(case, NodeCase) and case.probe is not None:
        return evidence.unsupported.get(case.probe.name, f"{case.probe.name} was not probed")
    if isinstance(case, Case) and matching_study(evidence.plan, case.question) is None:
        return say(why_no_study(evidence.plan, case.question))
    return "not measured, or not usable by the judge"


def unfit_nodes(cases: Iterable[AnyCase], evidence: Evidence) -> dict[str, str]:
    """Nodes with a certain fault other than a low value, and the fault: a failed check or wrong results."""
    found: dict[str, str] = {}
    for case in cases:
        definition = case.requirement.definition
        if case.requirement.severity == "fail" and (definition.subject == "check" or definition.compares_results):
            verdict = judge(case, evidence, CONFIDENCE)
            for culprit in verdict.culprits if verdict.outcome == "failed" else ():
                found.setdefault(culprit.host, f"{case.id}: {say(culprit.because)}")
    for probed in evidence.probes:
        for column in np.flatnonzero(probed.wrong.any(axis=0)).tolist():
            found.setdefault(str(probed.ranks.hosts[column]), f"{probed.arm.partition('@')[0]}: a result was wrong")
    return found


def _usable(judged: Judged, names: Sequence[str], most_rounds: int) -> list[NodeValue | None]:
    """The judge's estimate at each place; None if it would not use it.

    The reach is scaled by one over the root of the rounds, because intervals narrow at least that fast.
    """
    found, definition = judged.found, judged.case.requirement.definition
    is_usable = ~np.isnan(found.low) & (found.rounds == found.rounds.max(initial=0)) & (found.rounds >= FEWEST_ROUNDS)
    judged.codes[:], judged.notes = PASSED, {}
    for rule in ON_NUMBERS:
        rule(judged)
    is_usable &= judged.codes == PASSED
    is_usable[[place for at in judged.notes.values() for place in at]] = False
    end = found.high if definition.upper_bound else found.low
    reach = np.abs(np.log(end / found.values)) if definition.scale == "factors" else np.abs(end - found.values)
    reach *= np.sqrt(np.minimum(1.0, found.rounds / max(1, most_rounds)))
    of_each = zip(names, is_usable.tolist(), found.values.tolist(), reach.tolist(), strict=True)
    return [NodeValue(value, one_reach, name) if is_one else None for name, is_one, value, one_reach in of_each]
