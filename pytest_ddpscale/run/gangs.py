"""Hosts, devices and software of each study, because one run may have several gangs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.records import GangRecord, SeededSteps, gangs_by_number
from pytest_ddpscale.run.strict_json import each
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.util.listing import first_few

if TYPE_CHECKING:
    from pytest_ddpscale.run.record_lines import AnyRecord

# Software of ranks that changes the speed of training or communication.
_VERSIONS = ("torch", "torchvision", "cuda", "nccl", "cudnn", "pytest_ddpscale")
_SHOWN = 4  # names in one message


def gangs_of(records: Sequence[AnyRecord]) -> dict[str, GangRecord]:
    """The last gang that measured each study, by study id."""
    gangs = gangs_by_number(records)
    measured = (record for record in records if isinstance(record, Block | SeededSteps))
    return {record.study: gangs[record.gang] for record in measured}


def why_not_one_machine(records: Sequence[AnyRecord]) -> str:
    """Why the studies of a run were not measured on one machine; empty if they were.

    A study covers only the devices it ran on: if each half of a cluster passed half of the studies, the cluster passed
    none. A launch with fewer ranks on the same hosts is no contradiction. If there are surveys, each measured node
    needs one.
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
    """Software versions of rank 0."""
    return each(gang.versions, 1)[0]


def _why_not_looked_at(records: Sequence[AnyRecord], measured: set[str]) -> str:
    """A message on measured hosts without a survey; empty if there are none, or no surveys at all."""
    surveyed = {record.host for record in records if isinstance(record, Survey)}
    unseen = measured - surveyed
    if not surveyed or not unseen:
        return ""
    return f"measured on {_names(unseen)}, but the surveyed nodes are {_names(surveyed)}"


def _names(names: set[str]) -> str:
    return first_few(sorted(names), _SHOWN)
