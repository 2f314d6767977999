"""What the places of a run reached before it: enough to judge `no_regression` again without the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytest_ddpscale.history.database import reading
from pytest_ddpscale.history.key_values import KeyValueSeries
from pytest_ddpscale.history.missing_gpus import fullest_places
from pytest_ddpscale.history.prediction import MOST_VALUES, Reference
from pytest_ddpscale.history.reading import host_runs, references_of
from pytest_ddpscale.history.versions import versions_seen

BASELINE_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Baseline:
    """The past of the hosts of a run.

    Attributes:
        sku: canonical SKU name.
        before: ISO 8601 in UTC: of runs that began before.
        past: the latest twenty values of each series, summed up.
        versions: of the software in those runs, by host and name, oldest first, each once.
        places: what each GPU told in the latest of those runs in which most GPUs of its node did.
    """

    sku: str
    before: str
    past: Mapping[KeyValueSeries, Reference] = field(default_factory=dict)
    versions: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    places: frozenset[KeyValueSeries] = frozenset()

    def as_json(self) -> dict[str, Any]:
        """The content of baseline.json."""
        return {
            "schema_version": BASELINE_SCHEMA_VERSION,
            "sku": self.sku,
            "before": self.before,
            "past": [asdict(series) | asdict(reference) for series, reference in self.past.items()],
            "versions": {host: {k: list(v) for k, v in said.items()} for host, said in self.versions.items()},
            "places": sorted((asdict(series) for series in self.places), key=lambda one: tuple(map(str, one.values()))),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Baseline:
        """Read what `as_json` wrote. Raises KeyError, TypeError, AttributeError or ValueError if it did not."""
        if data["schema_version"] != BASELINE_SCHEMA_VERSION:
            raise ValueError(f"schema_version is {data['schema_version']!r}; expected {BASELINE_SCHEMA_VERSION}")
        past: dict[KeyValueSeries, Reference] = {}
        for row in data["past"]:
            series = _series(row)
            past[series] = Reference(**{name: row[name] for name in Reference.__dataclass_fields__})
        versions = {
            host: {name: tuple(map(str, found)) for name, found in said.items()}
            for host, said in data["versions"].items()
        }
        return Baseline(str(data["sku"]), str(data["before"]), past, versions, frozenset(map(_series, data["places"])))


def _series(row: Mapping[str, Any]) -> KeyValueSeries:
    fields = {name: row[name] for name in KeyValueSeries.__dataclass_fields__}
    wrong = [name for name, value in fields.items() if type(value) is not (int if name == "world_size" else str)]
    if wrong:
        raise ValueError(f"{wrong[0]} is {fields[wrong[0]]!r}")
    return KeyValueSeries(**fields)


def read_baseline(history_file: Path, sku: str, hosts: Collection[str], before_iso: str) -> Baseline:
    """What the hosts reached in runs of a SKU that began before a moment.

    Rejected runs are left out, and what had fallen: a node that broke must not become its own norm.

    Args:
        history_file: the site's.
        sku: canonical name; ``simulated …`` of simulated runs.
        hosts: of the run that is to be judged.
        before_iso: when it began, ISO 8601 in UTC with whole seconds.

    Raises:
        HistoryError: there is no history, or it cannot be used.
    """
    past: dict[KeyValueSeries, Reference] = {}
    versions: dict[str, dict[str, tuple[str, ...]]] = {}
    places: set[KeyValueSeries] = set()
    with reading(history_file) as connection:
        for host in sorted(hosts):
            runs = host_runs(connection, sku, host, before_iso)
            past |= references_of(runs)
            places |= fullest_places([one.series for one in run.values] for run in runs if run.counts)
            versions[host] = versions_seen(run.versions for run in [run for run in runs if run.counts][-MOST_VALUES:])
    return Baseline(sku, before_iso, past, versions, frozenset(places))
