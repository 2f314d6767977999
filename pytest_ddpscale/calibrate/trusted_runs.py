"""Runs of nodes that a site trusts: read like a judge reads them, and refused if they cannot be combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ddpscale.errors import OptionError, RunDirectoryError
from pytest_ddpscale.history.store import started_at_of, versions_by_host
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.records import gangs_by_number
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import why_not_one_machine
from pytest_ddpscale.run.verdicts import read_judged
from pytest_ddpscale.util.listing import count_text, first_few

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
    gpus: dict[str, set[str]] = {}
    for gang in gangs_by_number(records).values():
        for place in gang.places:
            gpus.setdefault(place.host, set()).add(place.uuid)
    broken = [(study, say(why)) for study, why in {**evidence.errors, **evidence.interrupted}.items()]
    parted = why_not_one_machine(records)
    resume = f"--ddp-resume={path} finishes it."
    for is_so, found, expected, action in (
        (record.is_imported, "was imported: another tool measured it", "a run that pytest-ddpscale measured", ""),
        (record.status not in ("finished", "simulated"), f"is {record.status}", "a finished run", resume),
        (broken, "did not complete {} ({})".format(*(broken or [("", "")])[0]), "a run with all its studies", ""),
        (parted, f"is not of one machine: {parted and say(parted)}", "a run whose studies had the same nodes", ""),
        (not gpus, "launched nothing", "a run that measured its nodes", ""),
    ):
        if is_so:
            raise RunDirectoryError(str(path), found, expected, action or "Leave it out.")
    return TrustedRun(
        str(path), record.sku, started_at_of(record), evidence,
        {host: tuple(sorted(devices)) for host, devices in gpus.items()}, versions_by_host(record, records, evidence),
        record.is_simulated(uuid for of_host in gpus.values() for uuid in of_host), run.measurements_sha256(),
    )  # fmt: skip


def refuse_unlike_runs(runs: Sequence[TrustedRun], *, simulated_too: bool = False) -> None:
    """Refuse runs that cannot be combined into one calibration; versions that nobody says are not compared.

    Raises:
        RunDirectoryError: a run is simulated, or given twice.
        OptionError: the runs differ in SKU, GPUs per node or software, or there are too few nodes.
    """
    seen: dict[str, str] = {}
    said: dict[str, dict[str, dict[str, None]]] = {}  # by what must be the same: who has each value
    for run in runs:
        if run.is_simulated and not simulated_too:
            raise RunDirectoryError(
                run.name, "was simulated: no machine was measured", "a run of real nodes",
                "For a rehearsal add --allow-simulated.",
            )  # fmt: skip
        if run.digest and run.digest in seen:
            found = f"has the same measurements as {seen[run.digest]}"
            raise RunDirectoryError(run.name, found, "each launch once", "Leave one of them out.")
        seen[run.digest] = run.name
        per_node = str(run.evidence.plan.layout.ranks_per_node)
        of_run = [("SKU", run.sku, run.name), ("number of GPUs per node", per_node, run.name)]
        for host in run.hosts:  # which may have had one version in one run and another in the next
            versions = run.versions.get(host, {})
            of_run += [(name, versions[name], host) for name in SOFTWARE if name in versions]
        for what, value, who in of_run:
            said.setdefault(what, {}).setdefault(value, {})[who] = None
    if len({run.is_simulated for run in runs}) > 1:
        raise OptionError("RUN_DIR", "some are simulated and some are not", "one kind")
    for what, by_value in said.items():
        if len(by_value) > 1:
            mixed = (f"{what} {value} on {first_few([*who], _NAMED)}" for value, who in sorted(by_value.items()))
            action = "Calibrate from the runs of one of them."
            raise OptionError("RUN_DIR", f"mixed: {'; '.join(mixed)}", f"one {what}", action)
    hosts = sorted({host for run in runs for host in run.hosts})
    if len(hosts) < FEWEST_NODES:
        found = f"the runs have {count_text(len(hosts), 'node')} ({first_few(hosts)})"
        raise OptionError("RUN_DIR", found, f"at least {FEWEST_NODES}")
