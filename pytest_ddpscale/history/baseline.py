"""What the places of a run reached before it: enough to judge `no_regression` again without the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pytest_ddpscale.history.database import reading
from pytest_ddpscale.history.key_values import KeyValueSeries
from pytest_ddpscale.history.missing_gpus import fullest_places
from pytest_ddpscale.history.prediction import MOST_VALUES, Reference
from pytest_ddpscale.history.reading import host_runs, references_of
from pytest_ddpscale.history.versions import versions_seen

BASELINE_SCHEMA_VERSION: Literal[1] = 1


@dataclass(frozen=True)
class Baseline:
    """The past of the hosts of a run.

    Attributes:
        sku: canonical SKU name.
        before: ISO 8601 in UTC: of runs that began before.
        past: the latest twenty values of each series, summed up.
        versions: of the software in those runs, by host and name, oldest first, each once.
        places: what each GPU told in the latest of those runs in which most GPUs of its node did, in order.
        schema_version: of baseline.json.
    """

    sku: str
    before: str
    past: tuple[tuple[KeyValueSeries, Reference], ...] = ()
    versions: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    places: tuple[KeyValueSeries, ...] = ()
    schema_version: Literal[1] = BASELINE_SCHEMA_VERSION


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
    return Baseline(sku, before_iso, tuple(past.items()), versions, tuple(sorted(places)))
