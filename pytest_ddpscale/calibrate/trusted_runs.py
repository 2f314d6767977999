"""Runs of nodes that a site trusts: read as a judge reads them, and refused where they are no common ground."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ddpscale.errors import OptionError, RunDirectoryError
from pytest_ddpscale.evidence.evidence import Evidence, read_evidence
from pytest_ddpscale.history.recording import started_at_of, versions_by_host
from pytest_ddpscale.results.gangs import why_not_one_machine
from pytest_ddpscale.results.records import gangs_by_number
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.util.listing import first_few

FEWEST_NODES = 3
FEWEST_LAUNCHES = 2
# What changes how fast a GPU trains or talks: numbers of one version say nothing of another.
SOFTWARE = ("driver", "torch", "cuda", "nccl")
_NAMED = 3


@dataclass(frozen=True)
class TrustedRun:
    """One launch over some nodes.

    Attributes:
        name: of its directory, as it was given.
        sku: that it measured, by its own words.
        began: ISO 8601 in UTC.
        evidence: what it measured.
        gpus: UUIDs of each host's GPUs.
        versions: of the software, by host.
        is_simulated: whether no machine was measured.
        digest: of its measurements.
    """

    name: str
    sku: str
    began: str
    evidence: Evidence
    gpus: Mapping[str, tuple[str, ...]]
    versions: Mapping[str, Mapping[str, str]]
    is_simulated: bool = False
    digest: str = ""

    @property
    def hosts(self) -> list[str]:
        """Names of the nodes that took part, in order."""
        return sorted(self.gpus)


def read_trusted_run(path: Path) -> TrustedRun:
    """A run that was measured to its end.

    Raises:
        RunDirectoryError: it is none, contradicts itself, was imported, was not finished, or a study of it broke.
    """
    run = RunDirectory.open(path)
    record, records, evidence = run.read_run(), run.read_records(), read_evidence(run)
    if record.is_imported:
        raise _unusable(path, "was imported: another tool measured it", "a run that pytest-ddpscale measured")
    gangs = gangs_by_number(records).values()
    is_simulated = record.is_simulated(device for gang in gangs for device in gang.devices)
    if record.status not in ("finished", "simulated"):
        raise _unusable(path, f"is {record.status}", "a run that came to its end", f"--ddp-resume={path} finishes it.")
    broken = {**evidence.errors, **evidence.interrupted}
    if broken:
        study, why = next(iter(broken.items()))
        raise _unusable(path, f"did not measure {study} to its end ({why})", "a run of which no study broke")
    parted = why_not_one_machine(records)
    if parted:
        raise _unusable(path, f"is of no one machine: {parted}", "a run whose studies had the same nodes")
    gpus: dict[str, set[str]] = {}
    for gang in gangs:
        for host, device in zip(gang.hosts, gang.devices, strict=True):
            gpus.setdefault(host, set()).add(device)
    if not gpus:
        raise _unusable(path, "launched nothing", "a run that measured its nodes")
    return TrustedRun(
        str(path), record.sku, started_at_of(record), evidence,
        {host: tuple(sorted(devices)) for host, devices in gpus.items()},
        versions_by_host(record, records, evidence), is_simulated, run.measurements_sha256(),
    )  # fmt: skip


def _unusable(path: Path, found: str, expected: str, action: str = "Leave it out.") -> RunDirectoryError:
    return RunDirectoryError(str(path), found, expected, action)


def refuse_unlike_runs(runs: Sequence[TrustedRun], *, simulated_too: bool = False) -> None:
    """Refuse runs that cannot be calibrated from together.

    Raises:
        RunDirectoryError: one is simulated, or given twice.
        OptionError: they are of other SKUs, numbers of GPUs a node or software; there are too few nodes or launches.
    """
    for run in runs:
        if run.is_simulated and not simulated_too:
            raise RunDirectoryError(
                run.name, "was simulated: no machine was measured", "a run of real nodes",
                "For a rehearsal add --allow-simulated.",
            )  # fmt: skip
    if len({run.is_simulated for run in runs}) > 1:
        raise _unlike("some are simulated and some are not", "only one kind")
    seen: dict[str, str] = {}
    for run in runs:
        if run.digest and run.digest in seen:
            found = f"has the same measurements as {seen[run.digest]}"
            raise RunDirectoryError(run.name, found, "each launch once", "Leave one of them out.")
        seen[run.digest] = run.name
    _refuse_several("SKU", {run.name: run.sku for run in runs})
    _refuse_several("number of GPUs a node", {run.name: _per_node(run) for run in runs})
    for name in SOFTWARE:
        said = {host: version for run in runs for host, version in _said(run, name).items()}
        for run in runs:  # a node may have had one version in one run and another in the next
            for host, version in _said(run, name).items():
                if said[host] != version:
                    raise _unlike(
                        f"{host} had {name} {version} in {run.name} and {said[host]} in another", f"one {name}"
                    )
        _refuse_several(name, said)
    hosts = {host for run in runs for host in run.hosts}
    if len(hosts) < FEWEST_NODES:
        raise _unlike(f"{len(hosts)} nodes took part ({first_few(sorted(hosts))})", f"at least {FEWEST_NODES}")


def _per_node(run: TrustedRun) -> str:
    return str(run.evidence.plan.layout.ranks_per_node)


def _said(run: TrustedRun, name: str) -> dict[str, str]:
    return {host: run.versions[host][name] for host in run.hosts if name in run.versions.get(host, {})}


def _refuse_several(what: str, said: Mapping[str, str]) -> None:
    """Refuse more than one value of what should be one; what nobody says is not compared."""
    by_value: dict[str, list[str]] = {}
    for who, value in said.items():
        by_value.setdefault(value, []).append(who)
    if len(by_value) > 1:
        found = "; ".join(f"{what} {value} on {first_few(who, _NAMED)}" for value, who in sorted(by_value.items()))
        raise _unlike(f"mixed: {found}", f"one {what}", "Calibrate from the runs of one of them.")


def _unlike(found: str, expected: str, action: str = "") -> OptionError:
    return OptionError("RUN_DIR", found, expected, action)
