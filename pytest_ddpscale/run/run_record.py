"""The course of a run: on which gangs it ran, on one machine or not, and how its studies ended.

One run may have several gangs, on different hosts, devices and software.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.reason import Reason, Why, because
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

# Software of ranks that changes the speed of training or communication.
_VERSIONS = ("torch", "torchvision", "cuda", "nccl", "cudnn", "pytest_ddpscale")


def ranks_by_host(gangs: Iterable[GangRecord]) -> dict[str, list[Rank]]:
    """Ranks of each host, one for each of its local ranks: that of the last gang."""
    last, by_host = {rank.place.of_rank: rank for gang in gangs for rank in gang.ranks}, dict[str, list[Rank]]()
    for place in sorted(last):
        by_host.setdefault(place[0], []).append(last[place])
    return by_host


def lost_hosts(records: Iterable[AnyRecord]) -> dict[str, Why]:
    """Why hosts were lost, by host, unless they took part again later: were surveyed, or in a gang."""
    lost: dict[str, Why] = {}
    for record in records:
        if isinstance(record, Lost):
            lost |= dict.fromkeys(record.hosts, record.message)
        elif isinstance(record, GangRecord | Survey):
            for host in record.hosts if isinstance(record, GangRecord) else (record.host,):
                lost.pop(host, None)
    return lost


def why_not_one_machine(records: Sequence[AnyRecord]) -> Reason | None:
    """Why the studies of a run were not measured on one machine; None if they were.

    A study covers only the devices it ran on: if each half of a cluster passed half of the studies, the cluster passed
    none. A launch with fewer ranks on the same hosts is no contradiction. If there are surveys, each measured node
    needs one.
    """
    gangs = gangs_by_number(records)
    measured = {record.study: gangs[record.gang] for record in records if isinstance(record, Block | SeededSteps)}
    for (one, gang), (other, another) in combinations(sorted(measured.items()), 2):
        if gang is another:
            continue
        hosts, others = tuple(sorted(gang.hosts)), tuple(sorted(another.hosts))
        if hosts != others:
            return because("other-hosts", one, hosts, other, others)
        devices, theirs = ({f"{place.uuid} of {place.host}" for place in its.places} for its in (gang, another))
        if not (devices <= theirs or theirs <= devices):
            return because("other-devices", one, other, (*sorted(devices ^ theirs),))
        if software := _other_software(one, gang.versions_of(0), other, another.versions_of(0)):
            return because("studies-with-other-software", *software)
    surveyed = {record.host for record in records if isinstance(record, Survey)}
    for gang in {gang.gang: gang for gang in measured.values()}.values():
        first: dict[str, int] = {}  # rank by host; with surveys the node check `versions` compares hosts
        for rank, place in enumerate(gang.places):
            other_rank = first.setdefault(place.host if surveyed else "", rank)
            one, other = (f"rank {at} on {gang.ranks[at].place.host}" for at in (other_rank, rank))
            if software := _other_software(one, gang.versions_of(other_rank), other, gang.versions_of(rank)):
                return because("ranks-with-other-software", *software)
    unseen = {host for gang in measured.values() for host in gang.hosts} - surveyed
    if surveyed and unseen:
        return because("other-nodes-surveyed", (*sorted(unseen),), (*sorted(surveyed),))
    return None


Versions = Mapping[str, str | None]


def _other_software(one: str, versions: Versions, other: str, others: Versions) -> tuple[str | None, ...]:
    """Each of both with the software in which they differ, and its version; empty if both have the same."""
    for name in _VERSIONS:
        if versions.get(name) != others.get(name):
            return one, name, versions.get(name), other, name, others.get(name)
    return ()


def studies_measured(records: Sequence[AnyRecord]) -> set[str]:
    """Ids of the studies that ended regularly and need not be measured again."""
    return set(ended(records, "decided", "rounds"))


def ended(records: Sequence[AnyRecord], *reasons: EndReason) -> dict[str, Why]:
    """Why of each study whose last end has one of these reasons, by study id."""
    return {study: end.message for study, end in ends_of(records).items() if end.reason in reasons}


def ends_of(records: Sequence[AnyRecord]) -> dict[str, StudyEnd]:
    """The last recorded end of each study, good or bad, by study id."""
    return {record.study: record for record in records if isinstance(record, StudyEnd)}
