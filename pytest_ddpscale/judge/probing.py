"""Verdicts on probes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpscale.judge.bounds import against_bound, blank_verdict
from pytest_ddpscale.judge.caveats import with_missing_rounds
from pytest_ddpscale.judge.each import combined, judge_each
from pytest_ddpscale.judge.estimating import Estimates
from pytest_ddpscale.judge.probe_culprits import ProbeVerdict, with_probe_culprits
from pytest_ddpscale.judge.probes import ProbedPlace, places
from pytest_ddpscale.judge.wrong_data import with_wrong_data
from pytest_ddpscale.plan.probe import STUDY_ID, Probe, ProbeStudy
from pytest_ddpscale.plan.probe_pairs import Ranks, expected_ranks
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.cases import NodeCase
from pytest_ddpscale.util.listing import first_few

# Clocks and data sheets are a few per cent off; a value further above the peak cannot be right.
MOST_OF_PEAK = 1.05


def judge_probe(
    blank: Verdict, case: NodeCase, evidence: Evidence, confidence: float, peak: float | None = None
) -> Verdict:
    """The verdict on one requirement: every planned place has to meet the bound.

    Args:
        blank: on the requirement, ``not_measured``.
        case: the requirement, with its probe.
        evidence: the measurements, in any order.
        confidence: of the interval, valid for all rounds together, 0 … 1.
        peak: value from the data sheet, in the metric's unit, if it is known and limits the metric. None for
            collectives: in-network reduction (NVLS) takes an all-reduce's bus bandwidth beyond that of the links.

    Returns:
        ``failed`` if any place misses the bound, at the confidence that holds for all places together, or if any
        result was wrong, whatever the speed; else ``not_measured`` if a place is missing or cannot run the probe, and
        ``passed`` if each place passes by its own interval. Value and interval are those of the worst place.
        Culprits are named as far as places can be compared.

    Raises:
        ValueError: the case has no probe.
    """
    probe = _probe_of(case)
    verdict = _on_speed(blank, case, probe, evidence, confidence, peak)
    measured = evidence.probed(probe)
    return with_wrong_data(verdict, probe, measured) if measured is not None else verdict


def probes_needed(study: ProbeStudy, cases: Sequence[NodeCase], evidence: Evidence, confidence: float) -> list[str]:
    """Ids of the probes that need more rounds to decide a requirement, in the study's order.

    A decided requirement stays decided: its probe gets no new rounds, so the judge sees the same data again.

    Args:
        study: the probes being measured.
        cases: requirements that they answer.
        evidence: of the study so far.
        confidence: of the intervals.
    """
    needed = {
        _probe_of(case).id
        for case in cases
        if judge_probe(blank_verdict(case, confidence), case, evidence, confidence, case.peak).is_open
    }
    return [probe.id for probe in study.probes if probe.id in needed]


def _probe_of(case: NodeCase) -> Probe:
    if case.probe is None:
        raise ValueError(f"{case.id} has no probe")
    return case.probe


def _on_speed(
    blank: Verdict, case: NodeCase, probe: Probe, evidence: Evidence, confidence: float, peak: float | None
) -> Verdict:
    """The verdict on speed, if all results are right."""
    study = evidence.plan.probes
    if study is None or probe not in study.probes:
        return replace(blank, reason=f"{probe.id} was not probed in this run")
    if study.id in evidence.errors:
        return replace(blank, outcome="error", reason=evidence.errors[study.id])
    if study.id in evidence.interrupted:
        return replace(blank, reason=evidence.interrupted[study.id])
    samples = places(evidence.probed(probe), probe, evidence.plan.layout)
    expected, due = expected_ranks(probe, evidence.plan.layout), _rounds_due(probe, evidence)

    estimates = Estimates(samples, case.requirement.definition.scale, study.rounds)
    credible = -math.inf, math.inf if peak is None else MOST_OF_PEAK * peak
    clear = estimates.clear_passes(case.requirement, credible, due, confidence)

    def judge_place(place: ProbedPlace, confidence: float) -> Verdict:
        values = samples[place].values
        verdict = against_bound(blank, case.requirement, values, lambda: estimates.at(place, confidence))
        return _with_peak(with_missing_rounds(verdict, due), peak)

    judged = judge_each(judge_place, samples, len(expected), confidence, clear.get)
    missing = _why_incomplete(probe, expected, judged, evidence)
    verdict = combined(blank, judged, len(expected), missing)
    return with_probe_culprits(verdict, judged, len(expected), evidence)


def _rounds_due(probe: Probe, evidence: Evidence) -> int:
    """Number of rounds that were begun and included the probe."""
    timed = evidence.timed_arms.get(STUDY_ID, {})
    begun = {*evidence.rounds_probed, *timed}
    return sum(number not in timed or probe.id in timed[number] for number in begun)


def _with_peak(verdict: Verdict, peak: float | None) -> Verdict:
    """Make a verdict inconclusive if its value exceeds the peak of the hardware: the measurement must be wrong."""
    if peak is None or verdict.value is None or verdict.value <= MOST_OF_PEAK * peak:
        return verdict
    reason = f"implausible: {verdict.value:.4g} {verdict.unit} is more than the {peak:.4g} of the data sheet"
    return replace(
        verdict, outcome="inconclusive", reason=reason, notes=(*verdict.notes, "implausible"), flags=("implausible",)
    )


def _why_incomplete(probe: Probe, expected: Sequence[Ranks], judged: Sequence[ProbeVerdict], evidence: Evidence) -> str:
    """Why a probe cannot pass although nothing fails: it is unsupported, or places are missing; else empty."""
    if probe.id in evidence.unsupported:
        return f"{probe.id} could not be done: {evidence.unsupported[probe.id]}"
    if len(judged) == len(expected):
        return ""
    there = {place.place.ranks for place in judged}
    absent = [ranks for ranks in expected if ranks not in there]
    if not absent:
        return ""
    if not there:
        return f"no complete round of {probe.id}"
    names = list(dict.fromkeys(_name_of_ranks(ranks, evidence) for ranks in absent))
    noun = judged[0].place.noun
    text = f"measured on {len(there)} of {len(expected)} {noun}; {first_few(names)} {_is(names)} missing"
    unseen = sorted(set(evidence.hosts) - {host for probed in evidence.probes for host in probed.ranks.by_host})
    return f"{text} (no results from {first_few(unseen)})" if unseen else text


def _name_of_ranks(ranks: Ranks, evidence: Evidence) -> str:
    """Name of a place without measurements: ``local rank 3 of n1``, or the node's number if its name is unknown."""
    layout = evidence.plan.layout
    numbers = sorted({rank // layout.ranks_per_node for rank in ranks})
    ends = [(probed.ranks.numbers.tolist(), probed.ranks.hosts.tolist()) for probed in evidence.probes]
    hosts = {
        rank // layout.ranks_per_node: host for ranks, names in ends for rank, host in zip(ranks, names, strict=True)
    }
    where = " and ".join(hosts.get(number, f"node {number + 1} of {layout.nodes}") for number in numbers)
    if len(ranks) > 2 or not set(numbers) <= set(hosts):
        return where
    local = " and ".join(str(rank % layout.ranks_per_node) for rank in ranks)
    return f"local rank{'s' if len(ranks) > 1 else ''} {local} of {where}"


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
