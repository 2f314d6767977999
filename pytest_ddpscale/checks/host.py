"""What a node's host has to be: room for the run, and a clock like the others'."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from pytest_ddpscale.checks.finding import Finding, NodeEvidence, NodeFault, fault, note, unknown
from pytest_ddpscale.checks.from_survey import Findings, each_node, looked_at
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.results.survey_record import ClockSkew, Survey

_GIB = 2**30
_RUN_DIRECTORY = "run_directory"


def disk(evidence: NodeEvidence) -> Findings:
    """Room where the run is written."""
    return each_node(evidence, _disk)


def clock(evidence: NodeEvidence) -> Findings:
    """Clocks of nodes agree: telemetry, measurements and logs of several nodes are put side by side by their times.

    A node's skew is known as an interval, as wide as its answer took. It is at fault if the whole interval is further
    from the median of all nodes (of two: from the other's middle) than is allowed, and passes if none of it is.
    """
    expectation, surveys = evidence.expectation, evidence.surveys
    middles = {host: _middle_s(survey.clock) for host, survey in surveys.items() if survey.clock and not survey.problem}
    if len(surveys) == 1 and evidence.hosts_planned <= 1:
        return each_node(evidence, lambda *_: Finding())  # no other clock to agree with
    found = {}
    for host, survey in surveys.items():
        reference_s = _reference_s(host, middles)
        found[host] = looked_at(survey) or _clock(survey, reference_s, expectation)
    if 2 * sum(bool(finding.faults) for finding in found.values()) < len(middles):
        return found
    return {host: _none_is_certain(finding) for host, finding in found.items()}


def _disk(expectation: NodeExpectation, survey: Survey) -> Finding:
    found = Finding()
    least = expectation.free_disk_gib
    for name, free_bytes in sorted(survey.free_bytes.items()):
        if free_bytes < least * _GIB and name != _RUN_DIRECTORY:
            found += note(f"{free_bytes / _GIB:.2f} GiB are free in {name.replace('_', ' ')}")
    free = survey.free_bytes.get(_RUN_DIRECTORY)
    if free is None:
        return found + unknown("how much is free where the run is written is not known")
    if free < least * _GIB:
        found += fault(f"{free / _GIB:.2f} GiB are free where the run is written; expected {least:g}")
    return found


def _clock(survey: Survey, reference_s: float, expectation: NodeExpectation) -> Finding:
    skew, most = survey.clock, expectation.clock_skew_s
    if skew is None:
        return unknown("nothing is known of its clock")
    early, late = skew.earliest_skew_s - reference_s, skew.latest_skew_s - reference_s
    if early > most or late < -most:
        return fault(f"its clock is {early:+.2f} to {late:+.2f} s off the others'; expected within {most:g} s")
    if early < -most or late > most:
        return unknown(f"its clock is somewhere from {early:+.2f} to {late:+.2f} s off the others'")
    return Finding()


def _reference_s(host: str, middles: Mapping[str, float]) -> float:
    """What a node's clock is compared with. Of two nodes the median would be half as far from either."""
    if len(middles) == 2 and host in middles:
        return next(middle for other, middle in middles.items() if other != host)
    return statistics.median(middles.values()) if middles else 0.0


def _middle_s(skew: ClockSkew) -> float:
    return (skew.earliest_skew_s + skew.latest_skew_s) / 2


def _none_is_certain(finding: Finding) -> Finding:
    """Half of the nodes are on either side: the median is between them."""
    faults = tuple(NodeFault(one.text, is_certain=False) for one in finding.faults)
    return Finding(faults, finding.unknown, finding.notes)
