"""Value of each node of a run in a requirement, as the judge would compare it with the bound."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from pytest_ddpscale.judge.answering_rounds import values_of_nodes
from pytest_ddpscale.judge.answering_study import matching_study, why_no_study
from pytest_ddpscale.judge.caveats import credible_values, suspect_nodes
from pytest_ddpscale.judge.estimating import Estimates
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.probes import places
from pytest_ddpscale.judge.probing import MOST_OF_PEAK
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.thresholds.cases import AnyCase, Case, NodeCase

CONFIDENCE = 0.95  # of intervals, a session's default
P = TypeVar("P", bound=Hashable)


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
    """The judge's estimate by host: the mean over rounds, of logarithms if values err by factors.

    A node is left out if the judge would not use its number: rounds are missing or too few, the value is not credible,
    devices waited for their host, or loss scaling skipped steps.
    """
    return _of_training(case, evidence) if isinstance(case, Case) else _of_probe(case, evidence)


def why_no_values(case: AnyCase, evidence: Evidence) -> str:
    """Why `node_values` has none, in words."""
    if isinstance(case, NodeCase) and case.probe is not None:
        return evidence.unsupported.get(case.probe.id, f"{case.probe.id} was not probed")
    if isinstance(case, Case) and matching_study(evidence.plan, case.question) is None:
        return why_no_study(evidence.plan, case.question)
    return "not measured, or not usable by the judge"


def unfit_nodes(cases: Iterable[AnyCase], evidence: Evidence) -> dict[str, str]:
    """Nodes with a certain fault other than a low value, and the fault: a failed check or wrong results."""
    found: dict[str, str] = {}
    for case in cases:
        definition = case.requirement.definition
        if case.requirement.severity == "fail" and (definition.subject == "check" or definition.compares_results):
            verdict = judge(case, evidence, CONFIDENCE)
            for culprit in verdict.culprits if verdict.outcome == "failed" else ():
                found.setdefault(culprit.host, f"{case.id}: {culprit.evidence}")
    for probed in evidence.probes:
        for column in np.flatnonzero(probed.wrong.any(axis=0)).tolist():
            found.setdefault(str(probed.ranks.hosts[column]), f"{probed.arm.partition('@')[0]}: a result was wrong")
    return found


def _of_training(case: Case, evidence: Evidence) -> dict[str, NodeValue]:
    study, layout = matching_study(evidence.plan, case.question), evidence.plan.layout
    is_missing = study is None or study.id in evidence.errors or study.id in evidence.interrupted
    if study is None or is_missing or not _is_of_a_node(case, layout):
        return {}
    samples = values_of_nodes(case.question, study, evidence, case.reference_samples_per_s, case.peak_tflops)
    suspects = suspect_nodes(case, study, evidence)
    credible = credible_values(case.requirement.metric, case.world_size, evidence.plan)
    most = max((len(samples[host].values) for host in samples), default=0)
    found, estimates = dict[str, NodeValue](), Estimates(samples, case.requirement.definition.scale)
    for host in samples:
        one = _value_at(host, host, estimates, case, study.rounds)
        is_whole = len(samples[host].values) == most and host not in suspects
        if one is not None and is_whole and credible[0] <= one.value <= credible[1]:
            found[host] = one
    return found


def _is_of_a_node(case: Case, layout: Layout) -> bool:
    return all(layout.fits_node(arm) for arm in case.question.arms)


def _of_probe(case: NodeCase, evidence: Evidence) -> dict[str, NodeValue]:
    if case.probe is None:
        return {}
    probed = evidence.probed(case.probe)
    samples = places(probed, case.probe, evidence.plan.layout)
    most = max((len(samples[place].values) for place in samples), default=0)
    estimates = Estimates(samples, case.requirement.definition.scale)
    rounds = evidence.plan.probes.rounds if evidence.plan.probes else 0
    by_host: dict[str, list[NodeValue]] = {}
    places_of: Counter[str] = Counter()
    for place in samples:
        if place.kind == "gang" or place.peer_host not in (None, place.host):
            continue
        places_of[place.host] += 1
        one = _value_at(place, place.name, estimates, case, rounds)
        if one is None or len(samples[place].values) < most:
            continue
        if case.peak is None or one.value <= MOST_OF_PEAK * case.peak:
            by_host.setdefault(place.host, []).append(one)
    all_places = max(places_of.values(), default=0)  # of a node without missing GPUs or pairs
    worst = max if case.requirement.definition.upper_bound else min
    return {
        host: worst(of_host, key=lambda one: one.value)
        for host, of_host in by_host.items()
        if len(of_host) == all_places
    }


def _value_at(
    place: P, name: str, estimates: Estimates[P], case: AnyCase, most_rounds: int
) -> NodeValue | None:  # fmt: skip
    """The judge's estimate at a place; None without an estimate or interval.

    The reach is scaled by one over the root of the rounds, because intervals narrow at least that fast.
    """
    definition, found = case.requirement.definition, estimates.at(place, CONFIDENCE).estimate
    if found is None:
        return None
    end = found.interval[1 if definition.upper_bound else 0]
    reach = abs(math.log(end / found.value)) if definition.scale == "factors" else abs(end - found.value)
    share = len(estimates.samples[place]) / max(1, most_rounds)
    return NodeValue(found.value, reach * math.sqrt(min(1.0, share)), name)
