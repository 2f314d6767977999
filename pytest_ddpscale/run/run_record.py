"""The course of a run: on which gangs it ran, on one machine or not, and how its studies ended.

One run may have several gangs, on different hosts, devices and software.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import (
    EndReason,
    GangRecord,
    Lost,
    Rank,
    SeededSteps,
    StudyEnd,
    gangs_by_number,
)
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.util.listing import first_few

# Software of ranks that changes the speed of training or communication.
_VERSIONS = ("torch", "torchvision", "cuda", "nccl", "cudnn", "pytest_ddpscale")
_SHOWN = 4  # names in one message


def ranks_by_host(gangs: Iterable[GangRecord]) -> dict[str, list[Rank]]:
    """Ranks of each host, one for each of its local ranks: that of the last gang."""
    found: dict[str, dict[int, Rank]] = {}
    for gang in gangs:
        for rank in gang.ranks:
            found.setdefault(rank.place.host, {})[rank.place.of_rank[1]] = rank
    return {host: [ranks[number] for number in sorted(ranks)] for host, ranks in sorted(found.items())}


def gangs_of(records: Sequence[AnyRecord]) -> dict[str, GangRecord]:
    """The last gang that measured each study, by study id."""
    gangs = gangs_by_number(records)
    measured = (record for record in records if isinstance(record, Block | SeededSteps))
    return {record.study: gangs[record.gang] for record in measured}


def lost_hosts(records: Iterable[AnyRecord]) -> dict[str, str]:
    """Why hosts were lost, by host, unless they took part again later: were surveyed, or in a gang."""
    lost: dict[str, str] = {}
    for record in records:
        if isinstance(record, Lost):
            lost |= dict.fromkeys(record.hosts, record.message)
        elif isinstance(record, GangRecord | Survey):
            for host in {record.host} if isinstance(record, Survey) else set(record.hosts):
                lost.pop(host, None)
    return lost


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
        devices, others = ({(place.host, place.uuid) for place in gang.places} for gang in (first, second))
        if not (devices <= others or others <= devices):
            return (
                f"studies were measured on different devices: {one} and {other} differ in "
                f"{_names({f'{device} of {host}' for host, device in devices ^ others})}"
            )
        versions, others_versions = first.versions_of(0), second.versions_of(0)
        for name in _VERSIONS:
            if versions.get(name) != others_versions.get(name):
                return (
                    f"studies were measured with different software: {one} with {name} {versions.get(name)}, "
                    f"{other} with {name} {others_versions.get(name)}"
                )
    surveyed = {record.host for record in records if isinstance(record, Survey)}
    for _, gang in gangs:
        if why := _why_not_one_software(gang, by_host=bool(surveyed)):
            return why
    unseen = {host for _, gang in gangs for host in gang.hosts} - surveyed
    if surveyed and unseen:
        return f"measured on {_names(unseen)}, but the surveyed nodes are {_names(surveyed)}"
    return ""


def _why_not_one_software(gang: GangRecord, *, by_host: bool) -> str:
    """Why ranks of a gang have not the same software; empty if they have.

    `by_host` compares ranks of one host only: hosts are compared by their surveys, with the node check `versions`.
    """
    first: dict[str, int] = {}
    for rank, place in enumerate(gang.places):
        other = first.setdefault(place.host if by_host else "", rank)
        versions, others = gang.versions_of(rank), gang.versions_of(other)
        for name in _VERSIONS:
            found, expected = versions.get(name), others.get(name)
            if found != expected:
                return (
                    f"ranks were measured with different software: rank {other} on {gang.ranks[other].place.host} with "
                    f"{name} {expected}, rank {rank} on {place.host} with {name} {found}"
                )
    return ""


def _names(names: set[str]) -> str:
    return first_few(sorted(names), _SHOWN)


def studies_measured(records: Sequence[AnyRecord]) -> set[str]:
    """Ids of the studies that ended regularly and need not be measured again."""
    return set(ended(records, "decided", "rounds"))


def ended(records: Sequence[AnyRecord], *reasons: EndReason) -> dict[str, str]:
    """Message of each study whose last end has one of these reasons, by study id."""
    return {study: end.message for study, end in ends_of(records).items() if end.reason in reasons}


def ends_of(records: Sequence[AnyRecord]) -> dict[str, StudyEnd]:
    """The last recorded end of each study, good or bad, by study id."""
    return {record.study: record for record in records if isinstance(record, StudyEnd)}
