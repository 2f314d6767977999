"""Runs of nodes that a site trusts: read like a judge reads them, and refused if they cannot be combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ddpscale.errors import OptionError, RunDirectoryError
from pytest_ddpscale.history.recording import started_at_of, versions_by_host
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import why_not_one_machine
from pytest_ddpscale.run.verdicts import read_judged
from pytest_ddpscale.util.listing import first_few

FEWEST_NODES = 3
FEWEST_LAUNCHES = 2
# Software that affects training and communication speed: numbers of one version say nothing about another.
SOFTWARE = ("driver", "torch", "cuda", "nccl")
_NAMED = 3


@dataclass(frozen=True)
class TrustedRun:
    """One run over some nodes.

    Attributes:
        name: of its directory, as given.
        sku: as recorded in the run.
        began: start of the run, ISO 8601 in UTC.
        evidence: its measurements.
        gpus: UUIDs of each host's GPUs.
        versions: of the software, by host.
        is_simulated: whether no machine was measured.
        digest: SHA-256 of its measurements.
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
        """Names of the run's nodes, sorted."""
        return sorted(self.gpus)


def read_trusted_run(path: Path) -> TrustedRun:
    """Read a finished run.

    Raises:
        RunDirectoryError: not a run directory, contradictory, imported, unfinished, changed since it was judged, or
            with a study that failed.
    """
    run = RunDirectory.open(path)
    if run.verdicts_json.exists():
        read_judged(run, run)
    record, records, evidence = run.read_run(), run.read_records(), read_evidence(run)
    if record.is_imported:
        raise _unusable(path, "was imported: another tool measured it", "a run that pytest-ddpscale measured")
    gangs = gangs_by_number(records).values()
    is_simulated = record.is_simulated(place.uuid for gang in gangs for place in gang.places)
    if record.status not in ("finished", "simulated"):
        raise _unusable(path, f"is {record.status}", "a finished run", f"--ddp-resume={path} finishes it.")
    broken = {**evidence.errors, **evidence.interrupted}
    if broken:
        study, why = next(iter(broken.items()))
        raise _unusable(path, f"did not complete {study} ({say(why)})", "a run in which every study completed")
    parted = why_not_one_machine(records)
    if parted:
        raise _unusable(path, f"is not of one machine: {say(parted)}", "a run whose studies had the same nodes")
    gpus: dict[str, set[str]] = {}
    for gang in gangs:
        for place in gang.places:
            gpus.setdefault(place.host, set()).add(place.uuid)
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
    """Refuse runs that cannot be combined into one calibration.

    Raises:
        RunDirectoryError: a run is simulated, or given twice.
        OptionError: the runs differ in SKU, GPUs per node or software, or there are too few nodes.
    """
    for run in runs:
        if run.is_simulated and not simulated_too:
            raise RunDirectoryError(
                run.name, "was simulated: no machine was measured", "a run of real nodes",
                "For a rehearsal add --allow-simulated.",
            )  # fmt: skip
    if len({run.is_simulated for run in runs}) > 1:
        raise _unlike("some are simulated and some are not", "one kind")
    seen: dict[str, str] = {}
    for run in runs:
        if run.digest and run.digest in seen:
            found = f"has the same measurements as {seen[run.digest]}"
            raise RunDirectoryError(run.name, found, "each launch once", "Leave one of them out.")
        seen[run.digest] = run.name
    _refuse_several("SKU", {run.name: run.sku for run in runs})
    _refuse_several("number of GPUs per node", {run.name: _per_node(run) for run in runs})
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
        raise _unlike(
            f"the runs have {len(hosts)} node{'s' * (len(hosts) != 1)} ({first_few(sorted(hosts))})",
            f"at least {FEWEST_NODES}",
        )


def _per_node(run: TrustedRun) -> str:
    return str(run.evidence.plan.layout.ranks_per_node)


def _said(run: TrustedRun, name: str) -> dict[str, str]:
    return {host: run.versions[host][name] for host in run.hosts if name in run.versions.get(host, {})}


def _refuse_several(what: str, said: Mapping[str, str]) -> None:
    """Refuse more than one value of something that must be the same; unknown values are not compared."""
    by_value: dict[str, list[str]] = {}
    for who, value in said.items():
        by_value.setdefault(value, []).append(who)
    if len(by_value) > 1:
        found = "; ".join(f"{what} {value} on {first_few(who, _NAMED)}" for value, who in sorted(by_value.items()))
        raise _unlike(f"mixed: {found}", f"one {what}", "Calibrate from the runs of one of them.")


def _unlike(found: str, expected: str, action: str = "") -> OptionError:
    return OptionError("RUN_DIR", found, expected, action)
