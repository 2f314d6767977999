"""Where and with what each study was measured: one run may be the work of several gangs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from pytest_ddpscale.results.pair_record import PairRound
from pytest_ddpscale.results.probe_record import ProbeBlock
from pytest_ddpscale.results.records import Block, GangRecord, SeededSteps, gangs_by_number
from pytest_ddpscale.results.strict_json import each
from pytest_ddpscale.results.survey_record import Survey
from pytest_ddpscale.util.listing import first_few

if TYPE_CHECKING:
    from pytest_ddpscale.results.record_lines import AnyRecord

# Of what ranks say of themselves: what changes how fast they train or talk.
_VERSIONS = ("torch", "torchvision", "cuda", "nccl", "cudnn", "pytest_ddpscale")
_SHOWN = 4  # names in one message


def gangs_of(records: Sequence[AnyRecord]) -> dict[str, GangRecord]:
    """The gang that measured each study, by its id: the last one that did."""
    gangs = gangs_by_number(records)
    measured = (record for record in records if isinstance(record, Block | SeededSteps | ProbeBlock | PairRound))
    return {record.study: gangs[record.gang] for record in measured}


def why_not_one_machine(records: Sequence[AnyRecord]) -> str:
    """Why the studies of a run say nothing of one machine together; empty if they do.

    Each study tells of the devices it ran on and of no others: a cluster of which every half passed another half of
    the studies has passed none of them. A launch with fewer ranks on the same hosts is no contradiction. Surveys tell
    of the nodes they were made on: one that was measured and never looked at is not what they are about.
    """
    gangs = sorted(gangs_of(records).items())
    for (one, first), (other, second) in combinations(gangs, 2):
        if first is second:
            continue
        hosts, others_hosts = set(first.hosts), set(second.hosts)
        if hosts != others_hosts:
            return (
                f"studies were measured on different hosts: {one} on {_names(hosts)}, {other} on {_names(others_hosts)}"
            )
        devices, others = first.places_of_devices, second.places_of_devices
        if not (devices <= others or others <= devices):
            return (
                f"studies were measured on different devices: {one} and {other} differ in "
                f"{_names({f'{device} of {host}' for host, device in devices ^ others})}"
            )
        versions, others_versions = versions_of(first), versions_of(second)
        for name in _VERSIONS:
            if versions.get(name) != others_versions.get(name):
                return (
                    f"studies were measured with different software: {one} with {name} {versions.get(name)}, "
                    f"{other} with {name} {others_versions.get(name)}"
                )
    return _why_not_looked_at(records, {host for _, gang in gangs for host in gang.hosts})


def versions_of(gang: GangRecord) -> dict[str, str | None]:
    """Of the software, as rank 0 has it."""
    return each(gang.versions, 1)[0]


def _why_not_looked_at(records: Sequence[AnyRecord], measured: set[str]) -> str:
    """Which of these hosts has no survey though there are some; empty if all are known."""
    surveyed = {record.host for record in records if isinstance(record, Survey)}
    unseen = measured - surveyed
    if not surveyed or not unseen:
        return ""
    return f"measured on {_names(unseen)}, but what was looked at before is {_names(surveyed)}"


def _names(names: set[str]) -> str:
    return first_few(sorted(names), _SHOWN)
