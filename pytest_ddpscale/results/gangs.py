"""Where and with what each study was measured: one run may be the work of several gangs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from pytest_ddpscale.util.listing import first_few

# Of what ranks say of themselves: what changes how fast they train or talk.
_VERSIONS = ("torch", "torchvision", "cuda", "nccl", "cudnn", "pytest_ddpscale")
_SHOWN = 4  # names in one message
_MEASURED = ("measurement", "seeded_step", "probe", "pair")  # kinds of records that tell of devices


RankPlace = tuple[Any, Any, Any]  # host, local rank and device, as they were recorded


@dataclass
class AnnouncedGang:
    """The ranks of one launch, as they announced themselves.

    Attributes:
        devices: host and device of every rank.
        places: where each rank is, by its number as text.
        versions: of the software, as rank 0 has it.
    """

    devices: set[tuple[str, str]] = field(default_factory=set)
    places: dict[str, RankPlace] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def hosts(self) -> set[str]:
        """On which it ran."""
        return {host for host, _ in self.devices}


def gangs_of(records: Sequence[dict[str, Any]]) -> dict[str, AnnouncedGang]:
    """The gang that measured each study, by its id: the last one that announced itself before.

    Args:
        records: all of measurements.jsonl, in order.
    """
    measured = [(str(r.get("study")), gang) for r, gang in gang_of_each(records) if r.get("kind") in _MEASURED]
    return {study: gang for study, gang in measured if gang.places}


def gang_of_each(records: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], AnnouncedGang]]:
    """Every record with the gang that wrote it: the last one that announced itself, without places if none did.

    Args:
        records: all of measurements.jsonl, in order.
    """
    gang, before = AnnouncedGang(), ""
    for record in records:
        kind, rank = record.get("kind"), str(record.get("rank"))
        if kind == "startup":
            if before != "startup" or rank in gang.places:
                gang = AnnouncedGang(versions=_versions(record))
            gang.places[rank] = (record.get("host"), record.get("local_rank"), record.get("device"))
            gang.devices.add((str(record.get("host")), str(record.get("device"))))
        yield record, gang
        before = str(kind)


def why_not_one_machine(records: Sequence[dict[str, Any]]) -> str:
    """Why the studies of a run say nothing of one machine together; empty if they do.

    Each study tells of the devices it ran on and of no others: a cluster of which every half passed another half of
    the studies has passed none of them. A launch with fewer ranks on the same hosts is no contradiction. Surveys tell
    of the nodes they were made on: one that was measured and never looked at is not what they are about.

    Args:
        records: all of measurements.jsonl, in order.
    """
    gangs = sorted(gangs_of(records).items())
    for (one, first), (other, second) in combinations(gangs, 2):
        if first is second:
            continue
        if first.hosts != second.hosts:
            return (
                f"studies were measured on different hosts: {one} on {_names(first.hosts)}, "
                f"{other} on {_names(second.hosts)}"
            )
        if not (first.devices <= second.devices or second.devices <= first.devices):
            only = sorted(first.devices ^ second.devices)
            return (
                f"studies were measured on different devices: {one} and {other} differ in "
                f"{_names({f'{device} of {host}' for host, device in only})}"
            )
        for name in _VERSIONS:
            if first.versions.get(name) != second.versions.get(name):
                return (
                    f"studies were measured with different software: {one} with {name} {first.versions.get(name)}, "
                    f"{other} with {name} {second.versions.get(name)}"
                )
    return _why_not_looked_at(records, {host for _, gang in gangs for host in gang.hosts})


def _why_not_looked_at(records: Sequence[dict[str, Any]], measured: set[str]) -> str:
    """Which of these hosts has no survey though there are some; empty if all are known."""
    surveyed = {str(record.get("host")) for record in records if record.get("kind") == "survey"}
    unseen = measured - surveyed
    if not surveyed or not unseen:
        return ""
    return f"measured on {_names(unseen)}, but what was looked at before is {_names(surveyed)}"


def _versions(record: dict[str, Any]) -> dict[str, str]:
    versions = record.get("versions")
    return {name: str(versions[name]) for name in _VERSIONS if name in versions} if isinstance(versions, dict) else {}


def _names(names: set[str]) -> str:
    return first_few(sorted(names), _SHOWN)
