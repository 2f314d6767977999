"""Checks of a node's host: disk space and clock."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

from pytest_ddpscale.judge.finding import Finding, NodeEvidence, fault, note, unknown
from pytest_ddpscale.judge.from_survey import Findings, looked_at
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.run.survey_record import Survey

_GIB = 2**30
_RUN_DIRECTORY = "run_directory"
_PLACES = {"shared_memory": "shared memory (/dev/shm)", "temporary": "the temporary folder"}


def disk(expectation: NodeExpectation, survey: Survey) -> Iterator[Finding]:
    """Free space where the run is written."""
    least = expectation.free_disk_gib
    for name, free_bytes in sorted(survey.free_bytes.items()):
        if free_bytes < least * _GIB and name != _RUN_DIRECTORY:
            yield note(f"{free_bytes / _GIB:.2f} GiB are free in {_PLACES.get(name, name)}")
    free = survey.free_bytes.get(_RUN_DIRECTORY)
    if free is None:
        yield unknown("free space where the run is written is unknown")
    elif free < least * _GIB:
        yield fault(f"{free / _GIB:.2f} GiB are free where the run is written; expected {least:g} GiB")


def clock(evidence: NodeEvidence) -> Findings:
    """Clocks of nodes agree, because telemetry, measurements and logs of several nodes are merged by time.

    A node's skew is an interval as wide as its answer took. The node is at fault if the whole interval is further from
    the median of all nodes (with two nodes: from the other's midpoint) than allowed, and passes if none of it is.
    """
    middles = {
        host: (survey.clock.earliest_skew_s + survey.clock.latest_skew_s) / 2
        for host, survey in evidence.surveys.items()
        if survey.clock and not survey.problem
    }
    has_no_other = len(evidence.surveys) == 1 and evidence.hosts_planned <= 1
    found = {}
    for host, survey in evidence.surveys.items():
        # With two nodes the median would halve the distance.
        compared = [s for other, s in middles.items() if other != host] if len(middles) == 2 else middles.values()
        agrees = Finding() if has_no_other else _clock(survey, statistics.median([*compared] or [0.0]), evidence)
        found[host] = looked_at(survey) or agrees
    if 2 * sum(bool(finding.faults) for finding in found.values()) < len(middles):
        return found
    # If half of the nodes or more are off, the median may lie between two groups, and neither is certain to be wrong.
    return {
        host: replace(finding, faults=tuple(replace(one, is_certain=False) for one in finding.faults))
        for host, finding in found.items()
    }


def _clock(survey: Survey, reference_s: float, evidence: NodeEvidence) -> Finding:
    skew, most = survey.clock, evidence.expectation.clock_skew_s
    if skew is None:
        return unknown("its clock was not read")
    early, late = skew.earliest_skew_s - reference_s, skew.latest_skew_s - reference_s
    if early > most or late < -most:
        return fault(f"clock is {early:+.2f} to {late:+.2f} s off the other nodes'; expected within {most:g} s")
    if early < -most or late > most:
        return unknown(f"clock skew is between {early:+.2f} and {late:+.2f} s; the limit of {most:g} s is in between")
    return Finding()
