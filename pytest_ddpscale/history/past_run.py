"""A run that was measured, as runs are held against each other: in the history, by `compare` and by `calibrate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.verdicts import Judgement


@dataclass(frozen=True)
class PastRun:
    """Measurements of a run, its verdicts, none if it was not judged, and what it was measured with.

    Attributes:
        path: of its directory, as given.
        digest: SHA-256 of its measurements.
        gpus: UUIDs of the GPUs of each node that counts.
        versions: of the software, by host.
    """

    path: str
    record: RunRecord
    evidence: Evidence
    digest: str
    gpus: Mapping[str, tuple[str, ...]]
    versions: Mapping[str, Mapping[str, str]]
    judgement: Judgement

    @property
    def hosts(self) -> list[str]:
        """Names of the nodes, sorted."""
        return sorted(self.gpus)

    @property
    def is_simulated(self) -> bool:
        """Whether no machine was measured."""
        devices = (uuid for of_node in self.gpus.values() for uuid in of_node)
        return self.judgement.simulated or self.record.is_simulated(devices)


def past_run(run: RunDirectory, judgement: Judgement | None = None, evidence: Evidence | None = None) -> PastRun:
    """A run directory; evidence is read if it is not given. Raises RunDirectoryError: it is broken."""
    record, evidence = run.read_run(), evidence or read_evidence(run)
    gpus = {host: set[str]() for host in evidence.hosts or evidence.surveys}
    # Of the session, each rank, and, such as the driver's, of the survey.
    versions = {host: dict(record.versions) for host in gpus}
    for gang in evidence.gangs:
        for rank, place in enumerate(gang.places):
            gpus[place.host].add(place.uuid)
            versions[place.host] |= known_versions(gang.versions_of(rank))
    for host in gpus.keys() & evidence.surveys.keys():  # not of nodes that were left out
        versions[host] |= known_versions(evidence.surveys[host].versions)
    for place, transport in evidence.transports.items():
        versions[place.host] |= {"process_group": transport.process_group} if transport.process_group else {}
    of_hosts = {host: tuple(sorted(uuids)) for host, uuids in gpus.items()}
    judgement = judgement or Judgement(record.sku, "incomplete", "not judged", ())
    return PastRun(str(run.path), record, evidence, run.measurements_sha256(), of_hosts, versions, judgement)


def started_at_of(record: RunRecord) -> str:
    """When a run started, in UTC, as ``2026-01-31T12:00:00+00:00``, which sorts by time."""
    return record.began.isoformat(timespec="seconds")


def known_versions(versions: Mapping[str, Any]) -> dict[str, str]:
    """Versions of the software that is installed."""
    return {name: version for name, version in versions.items() if version is not None}
