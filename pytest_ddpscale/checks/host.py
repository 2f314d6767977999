"""What a node's host has to be: room for the run, and a clock like the others'."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

from pytest_ddpscale.checks.finding import Finding, NodeEvidence, fault, note, unknown
from pytest_ddpscale.checks.from_survey import Findings, looked_at
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.results.survey_record import Survey

_GIB = 2**30
_RUN_DIRECTORY = "run_directory"


def disk(expectation: NodeExpectation, survey: Survey) -> Iterator[Finding]:
    """Room where the run is written."""
    least = expectation.free_disk_gib
    for name, free_bytes in sorted(survey.free_bytes.items()):
        if free_bytes < least * _GIB and name != _RUN_DIRECTORY:
            yield note(f"{free_bytes / _GIB:.2f} GiB are free in {name.replace('_', ' ')}")
    free = survey.free_bytes.get(_RUN_DIRECTORY)
    if free is None:
        yield unknown("how much is free where the run is written is not known")
    elif free < least * _GIB:
        yield fault(f"{free / _GIB:.2f} GiB are free where the run is written; expected {least:g}")


def clock(evidence: NodeEvidence) -> Findings:
    """Clocks of nodes agree: telemetry, measurements and logs of several nodes are put side by side by their times.

    A node's skew is known as an interval, as wide as its answer took. It is at fault if the whole interval is further
    from the median of all nodes (of two: from the other's middle) than is allowed, and passes if none of it is.
    """
    middles = {
        host: (survey.clock.earliest_skew_s + survey.clock.latest_skew_s) / 2
        for host, survey in evidence.surveys.items()
        if survey.clock and not survey.problem
    }
    has_no_other = len(evidence.surveys) == 1 and evidence.hosts_planned <= 1
    found = {}
    for host, survey in evidence.surveys.items():
        # Of two nodes the median would be half as far from either.
        compared = [s for other, s in middles.items() if other != host] if len(middles) == 2 else middles.values()
        agrees = Finding() if has_no_other else _clock(survey, statistics.median([*compared] or [0.0]), evidence)
        found[host] = looked_at(survey) or agrees
    if 2 * sum(bool(finding.faults) for finding in found.values()) < len(middles):
        return found
    # Half of the nodes are on either side: the median is between them.
    return {
        host: replace(finding, faults=tuple(replace(one, is_certain=False) for one in finding.faults))
        for host, finding in found.items()
    }


def _clock(survey: Survey, reference_s: float, evidence: NodeEvidence) -> Finding:
    skew, most = survey.clock, evidence.expectation.clock_skew_s
    if skew is None:
        return unknown("nothing is known of its clock")
    early, late = skew.earliest_skew_s - reference_s, skew.latest_skew_s - reference_s
    if early > most or late < -most:
        return fault(f"its clock is {early:+.2f} to {late:+.2f} s off the others'; expected within {most:g} s")
    if early < -most or late > most:
        return unknown(f"its clock is somewhere from {early:+.2f} to {late:+.2f} s off the others'")
    return Finding()
