"""A run directory, read for a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_ddpscale.history.store import versions_by_host
from pytest_ddpscale.run.evidence import Evidence, read_evidence
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.verdicts import Judgement, read_judged


@dataclass(frozen=True)
class ComparedRun:
    """A run's measurements and judgement.

    Attributes:
        path: of its directory, as given.
        versions: of the software, by host.
        digest: SHA-256 of its measurements.
    """

    path: str
    record: RunRecord
    evidence: Evidence
    judgement: Judgement
    versions: Mapping[str, Mapping[str, str]]
    digest: str

    @property
    def is_simulated(self) -> bool:
        """Whether no machine was measured."""
        return self.judgement.simulated or self.record.is_simulated(self.evidence.columns.devices)

    @property
    def hosts(self) -> list[str]:
        """Names of the run's nodes, sorted."""
        return sorted({*self.evidence.columns.hosts, *self.evidence.hosts})


def read_compared_run(path: Path) -> ComparedRun:
    """Read a run with its verdicts.

    Raises:
        BadInput: it is not a run directory, contradicts itself, or was not judged.
    """
    run = RunDirectory.open(path)
    record, records, evidence = run.read_run(), run.read_records(), read_evidence(run)
    return ComparedRun(
        str(path), record, evidence, read_judged(run, run), versions_by_host(record, records, evidence),
        run.measurements_sha256(),
    )  # fmt: skip
