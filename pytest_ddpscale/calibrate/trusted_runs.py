"""Runs of nodes that a site trusts: read like a judge reads them, and refused if they cannot be combined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from pytest_ddpscale.errors import OptionError, RunDirectoryError
from pytest_ddpscale.history.past_run import PastRun, past_run
from pytest_ddpscale.report.words.reasons import say
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_record import why_not_one_machine
from pytest_ddpscale.run.verdicts import read_judged
from pytest_ddpscale.util.listing import count_text, first_few

FEWEST_NODES = 3
FEWEST_LAUNCHES = 2
# Software that affects training and communication speed: numbers of one version say nothing about another.
SOFTWARE = ("driver", "torch", "cuda", "nccl")
_NAMED = 3


def read_trusted_run(path: Path) -> PastRun:
    """Read a finished run.

    Raises:
        RunDirectoryError: not a run directory, contradictory, imported, unfinished, changed since it was judged, or
            with a study that failed.
    """
    run = RunDirectory.open(path)
    past = past_run(run, read_judged(run, run) if run.verdicts_json.exists() else None)
    record, evidence = past.record, past.evidence
    broken = [
        f"did not complete {study} ({say(why)})" for study, why in {**evidence.errors, **evidence.interrupted}.items()
    ]
    parted = why_not_one_machine(run.read_records())
    for is_so, found, expected, action in (
        (record.is_imported, "was imported: another tool measured it", "a run that pytest-ddpscale measured", ""),
        (record.status not in ("finished", "simulated"), f"is {record.status}", "a finished run",
         f"--ddp-resume={path} finishes it."),
        (broken, "; ".join(broken[:1]), "a run with all its studies", ""),
        (parted, f"is not of one machine: {parted and say(parted)}", "a run whose studies had the same nodes", ""),
        (not evidence.gangs, "launched nothing", "a run that measured its nodes", ""),
    ):  # fmt: skip
        if is_so:
            raise RunDirectoryError(str(path), found, expected, action or "Leave it out.")
    return past


def refuse_unlike_runs(runs: Sequence[PastRun], *, simulated_too: bool = False) -> None:
    """Refuse runs that cannot be combined into one calibration; versions that nobody says are not compared.

    Raises:
        RunDirectoryError: a run is simulated, or given twice.
        OptionError: the runs differ in SKU, GPUs per node or software, or there are too few nodes.
    """
    seen = dict[str, str]()
    by_subject = defaultdict[str, dict[str, dict[str, None]]](dict)  # by what must be the same: who has each value
    for run in runs:
        if run.is_simulated and not simulated_too:
            raise RunDirectoryError(
                run.path, "was simulated: no machine was measured", "a run of real nodes",
                "For a rehearsal add --allow-simulated.",
            )  # fmt: skip
        if run.digest in seen:
            found = f"has the same measurements as {seen[run.digest]}"
            raise RunDirectoryError(run.path, found, "each launch once", "Leave one of them out.")
        seen[run.digest] = run.path
        per_node, kind = run.evidence.plan.layout.ranks_per_node, "simulated" if run.is_simulated else "measured"
        of_run = [
            ("kind", kind, run.path),
            ("SKU", run.record.sku, run.path),
            ("number of GPUs per node", str(per_node), run.path),
        ]
        for host in run.hosts:  # which may have had one version in one run and another in the next
            versions = run.versions.get(host, {})
            of_run += [(name, versions[name], host) for name in SOFTWARE if name in versions]
        for subject, value, who in of_run:
            by_subject[subject].setdefault(value, {})[who] = None
    for subject, by_value in by_subject.items():
        if len(by_value) > 1:
            mixed = (f"{subject} {value} on {first_few([*who], _NAMED)}" for value, who in sorted(by_value.items()))
            action = "Calibrate from the runs of one of them."
            raise OptionError("RUN_DIR", f"mixed: {'; '.join(mixed)}", f"one {subject}", action)
    hosts = sorted({host for run in runs for host in run.hosts})
    if len(hosts) < FEWEST_NODES:
        found = f"the runs have {count_text(len(hosts), 'node')} ({first_few(hosts)})"
        raise OptionError("RUN_DIR", found, f"at least {FEWEST_NODES}")
