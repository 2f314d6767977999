"""All nodes of a site, or one, beside their past and their peers: what `ddpscale history` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from pytest_ddpscale.errors import HistoryError, OptionError
from pytest_ddpscale.history.database import reading
from pytest_ddpscale.history.drift import Drift, Observed, drifts_of
from pytest_ddpscale.history.key_values import KeyValue, KeyValueSeries
from pytest_ddpscale.history.prediction import MOST_VALUES
from pytest_ddpscale.history.reading import HostRun, host_runs, skus_and_hosts
from pytest_ddpscale.history.versions import version_changes, versions_seen
from pytest_ddpscale.util.listing import first_few

# A peer that was last measured longer ago may have been another machine by its software.
PEERS_WITHIN = timedelta(days=7)
_MOST_NAMED = 8


@dataclass(frozen=True)
class NodeHistory:
    """One node, of one SKU.

    Attributes:
        sku: canonical name; ``simulated …`` of simulated runs.
        host: its name.
        runs: the latest ones, oldest first; at least one.
        drifts: of all values of its last week.
        changes: of the software between the last run and those before.
    """

    sku: str
    host: str
    runs: tuple[HostRun, ...]
    drifts: tuple[Drift, ...]
    changes: tuple[str, ...]

    @property
    def last(self) -> HostRun:
        """The latest run."""
        return self.runs[-1]

    @property
    def worst(self) -> Drift | None:
        """What lost most: of the values that are worse, if any is, else of all."""
        return max(self.drifts, key=lambda drift: (drift.is_worse, drift.loss), default=None)


@dataclass(frozen=True)
class _Told:
    """What one run told of a place.

    Attributes:
        value: of the place.
        at: when the run began.
        counts: whether it may be a norm.
    """

    value: KeyValue
    at: str
    counts: bool


Places = Mapping[KeyValueSeries, Sequence[_Told]]  # by what the places of all hosts have in common, oldest first


def read_histories(history_file: Path, sku: str | None = None, node: str | None = None) -> list[NodeHistory]:
    """All nodes with a run, by SKU and name, with the drift of what each reached.

    Intervals hold all together: for one node those of its values, without one those of all nodes.

    Args:
        history_file: the site's.
        sku: only this one; None for all.
        node: only this one; its peers are looked up all the same.

    Raises:
        HistoryError: there is no history, it is empty, or cannot be used.
        OptionError: it has no such SKU or node.
    """
    found: list[NodeHistory] = []
    observed: list[list[Observed]] = []
    with reading(history_file) as connection:
        nodes = _asked(skus_and_hosts(connection), history_file, sku)
        asked = [one for one in nodes if node in (None, one[1])]
        if not asked:
            raise OptionError("NODE", f"found {node!r}", f"one of {_names(host for _, host in nodes)}")
        norms: dict[str, dict[str, dict[KeyValueSeries, _Told]]] = {}
        for its_sku, host in nodes:
            if its_sku in {of for of, _ in asked}:
                norms.setdefault(its_sku, {})[host] = _norm(host_runs(connection, its_sku, host, limit=MOST_VALUES))
        for its_sku, host in asked:
            runs = host_runs(connection, its_sku, host)
            if not runs:  # its only run has just been replaced
                continue
            observed.append(_observed(runs, {other: norm for other, norm in norms[its_sku].items() if other != host}))
            found.append(NodeHistory(its_sku, host, tuple(runs), (), _changes(runs)))
    drifts = iter(drifts_of([one for theirs in observed for one in theirs]))
    return [
        NodeHistory(one.sku, one.host, one.runs, tuple(next(drifts) for _ in theirs), one.changes)
        for one, theirs in zip(found, observed, strict=True)
    ]


def _asked(nodes: list[tuple[str, str]], file: Path, sku: str | None) -> list[tuple[str, str]]:
    if not nodes:
        raise HistoryError(str(file), "has no node", "at least one run", "`ddpscale history --add RUN_DIR` adds one.")
    chosen = [one for one in nodes if sku in (None, one[0])]
    if not chosen:
        raise OptionError("--sku", f"found {sku!r}", f"one of {_names(of for of, _ in nodes)}")
    return chosen


def _told(runs: Iterable[HostRun]) -> Places:
    """All that runs of one host, ordered by time, tell of each of its places."""
    found: dict[KeyValueSeries, list[_Told]] = {}
    for run in runs:
        for value in run.values:
            found.setdefault(value.peers, []).append(_Told(value, run.started_at, run.is_norm(value)))
    return found


def _norm(runs: Iterable[HostRun]) -> dict[KeyValueSeries, _Told]:
    """What each place of a host reached last that may be a norm."""
    norms = {place: [one for one in told if one.counts] for place, told in _told(runs).items()}
    return {place: told[-1] for place, told in norms.items() if told}


def _observed(runs: Sequence[HostRun], others: Mapping[str, Mapping[KeyValueSeries, _Told]]) -> list[Observed]:
    """A node's values of its last week, beside their past and those of the same places of other hosts."""
    since, until = _week_around(runs[-1].started_at)
    peers: dict[KeyValueSeries, list[float]] = {}
    for norm in others.values():
        for place, told in norm.items():
            if since <= told.at <= until:
                peers.setdefault(place, []).append(told.value.value)
    found = []
    for place, told_of in _told(runs).items():
        *earlier, last = told_of
        if since <= last.at:
            # Of the GPU that is there now, should another one have been in its place.
            uuid = last.value.gpu_uuid
            past = [one.value.value for one in earlier if one.counts and one.value.gpu_uuid == uuid]
            found.append(Observed(last.value, last.at, tuple(past), tuple(peers.get(place, ()))))
    return found


def _week_around(at: str) -> tuple[str, str]:
    """A week before and a week after, as ISO 8601 in UTC, which sorts as the times it means."""
    now = datetime.fromisoformat(at)
    return (now - PEERS_WITHIN).isoformat(), (now + PEERS_WITHIN).isoformat()


def _changes(runs: list[HostRun]) -> tuple[str, ...]:
    before = [run.versions for run in runs[:-1] if run.counts][-MOST_VALUES:]
    return version_changes(versions_seen(before), runs[-1].versions)


def _names(names: Iterable[str]) -> str:
    return first_few(sorted(set(names)), _MOST_NAMED)
