"""Earlier values of a run's places: enough to judge `no_regression` again without the database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from pytest_ddpscale.history.database import reading
from pytest_ddpscale.history.key_values import KeyValueSeries
from pytest_ddpscale.history.prediction import MOST_VALUES, Reference
from pytest_ddpscale.history.reading import HostRun, host_runs, references_of

BASELINE_SCHEMA_VERSION: Literal[1] = 1
_Kind: TypeAlias = "tuple[str, str, str, str, str]"  # host, metric, subject, arm, definition


@dataclass(frozen=True)
class Baseline:
    """The past of the hosts of a run.

    Attributes:
        before: only runs that started before this moment count, ISO 8601 in UTC.
        past: summary of the latest twenty values of each series.
        versions: of the software in those runs, by host and name, oldest first, each once.
        places: series of each GPU in the latest of those runs with values of the most GPUs of its node, sorted.
    """

    sku: str
    before: str
    past: tuple[tuple[KeyValueSeries, Reference], ...] = ()
    versions: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    places: tuple[KeyValueSeries, ...] = ()
    schema_version: Literal[1] = BASELINE_SCHEMA_VERSION


def read_baseline(history_file: Path, sku: str, hosts: Collection[str], before_iso: str) -> Baseline:
    """The hosts' values in runs of a SKU that started before a moment (ISO 8601 in UTC, whole seconds).

    Rejected runs and regressed values are left out, because a broken node must not become its own baseline. Simulated
    runs have SKUs of their own, ``simulated …``.

    Raises:
        HistoryError: the history does not exist or cannot be used.
    """
    past: dict[KeyValueSeries, Reference] = {}
    versions: dict[str, dict[str, tuple[str, ...]]] = {}
    places: set[KeyValueSeries] = set()
    with reading(history_file) as connection:
        for host in sorted(hosts):
            runs = host_runs(connection, sku, host, before_iso)
            past |= references_of(runs)
            places |= fullest_places([one.series for one in run.values] for run in runs if run.counts)
            versions[host] = versions_seen(runs)
    return Baseline(sku, before_iso, tuple(past.items()), versions, tuple(sorted(places)))


def versions_seen(runs: Iterable[HostRun]) -> dict[str, tuple[str, ...]]:
    """Every version of each software in the latest twenty runs that count, oldest first, each once."""
    seen: dict[str, dict[str, None]] = {}
    for run in [run for run in runs if run.counts][-MOST_VALUES:]:
        for name, version in run.versions.items():
            seen.setdefault(name, {})[version] = None
    return {name: tuple(found) for name, found in sorted(seen.items())}


def version_changes(before: Mapping[str, tuple[str, ...]], now: Mapping[str, str]) -> tuple[str, ...]:
    """Software that had another version in any earlier run: ``torch 2.14.0 before, 2.15.0 now``.

    A change may explain a drift before any GPU does. Versions that either side does not record are not compared.
    """
    changes = []
    for name, versions in sorted(before.items()):
        others = [version for version in versions if version != now.get(name, version)]
        if others:
            changes.append(f"{name} {', '.join(others)} before, {now[name]} now")
    return tuple(changes)


def fullest_places(runs: Iterable[Iterable[KeyValueSeries]]) -> set[KeyValueSeries]:
    """For each kind of value, the GPUs' series in the latest run with values of the most GPUs.

    The very latest run may have lacked a GPU, and earlier runs may contain a replaced one. Runs are of one host, oldest
    first.
    """
    fullest: dict[_Kind, dict[str, KeyValueSeries]] = {}
    for run in runs:
        for kind, gpus in _by_kind(run).items():
            if len(gpus) >= len(fullest.get(kind, {})):
                fullest[kind] = gpus
    return {series for gpus in fullest.values() for series in gpus.values()}


def missing_gpus(before: Iterable[KeyValueSeries], now: Iterable[KeyValueSeries]) -> list[tuple[str, str]]:
    """Host and UUID of every GPU that lacks a kind of value which other GPUs of its node still have, sorted.

    A kind that no GPU of the node has now was not measured. If as many GPUs have it as before (in `fullest_places`),
    a missing GPU was replaced.
    """
    told = _by_kind(now)
    found: set[tuple[str, str]] = set()
    for kind, gpus in _by_kind(before).items():
        still = told.get(kind, {})
        if 0 < len(still) < len(gpus):
            found |= {(kind[0], gpu) for gpu in gpus if gpu not in still}
    return sorted(found)


def _by_kind(run: Iterable[KeyValueSeries]) -> dict[_Kind, dict[str, KeyValueSeries]]:
    """The GPUs with each kind of value. The world size does not distinguish kinds, because fewer GPUs may be left."""
    found: dict[_Kind, dict[str, KeyValueSeries]] = {}
    for one in run:
        if one.gpu:
            kind = (one.host, one.metric, one.subject, one.arm, one.definition)
            found.setdefault(kind, {})[one.gpu] = one
    return found
