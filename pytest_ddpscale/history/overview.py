"""Nodes of a site compared with their past, for `ddpscale history`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

from pytest_ddpscale.errors import HistoryError, OptionError
from pytest_ddpscale.history.baseline import version_changes, versions_seen
from pytest_ddpscale.history.database import reading
from pytest_ddpscale.history.key_values import KeyValue, KeyValueSeries
from pytest_ddpscale.history.prediction import (
    CONFIDENCE,
    MOST_VALUES,
    Reference,
    is_lower_better,
    reference_of,
    shared_confidence,
)
from pytest_ddpscale.history.reading import HostRun, host_runs, skus_and_hosts
from pytest_ddpscale.util.listing import first_few

# A place that was last measured longer ago is told of no more.
_TOLD_WITHIN = timedelta(days=7)
_MOST_NAMED = 8


@dataclass(frozen=True)
class Observed:
    """The latest value of a series with the earlier ones.

    Attributes:
        value: the latest value.
        at: when its run started, ISO 8601 in UTC.
        past: earlier values of the same series, oldest first; the latest twenty count.
    """

    value: KeyValue
    at: str
    past: tuple[float, ...] = ()


@dataclass(frozen=True)
class ValueComparison:
    """A value compared with others.

    Attributes:
        reference: summary of the others.
        ratio: the value over the median of the others.
        interval: expected range in the unit of the value; None with too few others.
        standing: ``worse`` and ``better`` are outside the interval, ``unknown`` has none.
    """

    reference: Reference
    ratio: float
    interval: tuple[float, float] | None
    standing: Literal["usual", "worse", "better", "unknown"]


@dataclass(frozen=True)
class Drift:
    """A value compared with its own past; None without any."""

    value: KeyValue
    at: str
    past: ValueComparison | None

    @property
    def is_worse(self) -> bool:
        """Whether the value is worse than its own past."""
        return self.past is not None and self.past.standing == "worse"

    @property
    def loss(self) -> float:
        """Share by which it is worse than its own past; negative if better."""
        if self.past is None:
            return 0.0
        return (1 - 1 / self.past.ratio) if is_lower_better(self.value.metric) else 1 - self.past.ratio


@dataclass(frozen=True)
class NodeHistory:
    """One node, of one SKU.

    Attributes:
        sku: canonical name; ``simulated …`` of simulated runs.
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
        """The value with the largest loss, among the worse ones if there are any."""
        return max(self.drifts, key=lambda drift: (drift.is_worse, drift.loss), default=None)


class _Told(NamedTuple):
    """A run's value of a place, when the run started, and whether the value may serve as a baseline."""

    value: KeyValue
    at: str
    counts: bool


Places = Mapping[KeyValueSeries, Sequence[_Told]]  # by the series without host and UUID, oldest first


def drifts_of(observed: Sequence[Observed]) -> list[Drift]:
    """Compare all values with their past.

    A value is worse or better if it is outside the prediction interval of the others. The intervals hold jointly: if
    nothing changed, the probability that any value is flagged is at most 5 %, and half of that for worse.
    """
    references = [reference_of(one.past[-MOST_VALUES:]) for one in observed]
    each = shared_confidence(CONFIDENCE, sum(one is not None and one.is_enough for one in references))
    return [
        Drift(one.value, one.at, _compared(one.value, past, each))
        for one, past in zip(observed, references, strict=True)
    ]


def _compared(value: KeyValue, reference: Reference | None, confidence: float) -> ValueComparison | None:
    if reference is None:
        return None
    found = ValueComparison(reference, value.value / reference.median, None, "unknown")
    if not reference.is_enough:
        return found
    low, high = reference.interval(confidence)
    if low <= value.value <= high:
        return replace(found, interval=(low, high), standing="usual")
    is_worse = (value.value > high) == is_lower_better(value.metric)
    return replace(found, interval=(low, high), standing="worse" if is_worse else "better")


def read_histories(history_file: Path, sku: str | None = None, node: str | None = None) -> list[NodeHistory]:
    """All nodes with a run, by SKU and name, with the drift of their values; optionally of one SKU or one node.

    Intervals hold jointly: for one node over its values, otherwise over all nodes.

    Raises:
        HistoryError: the history does not exist, is empty, or cannot be used.
        OptionError: it does not have the SKU or node.
    """
    with reading(history_file) as connection:
        nodes = _asked(skus_and_hosts(connection), history_file, sku)
        asked = [one for one in nodes if node in (None, one[1])]
        if not asked:
            raise OptionError("NODE", f"found {node!r}", f"one of {_names(host for _, host in nodes)}")
        runs = [(*one, host_runs(connection, *one)) for one in asked]
        # Without runs where the only one is being replaced at this moment.
        found = [(its_sku, host, of_host, _observed(of_host)) for its_sku, host, of_host in runs if of_host]
    drifts = iter(drifts_of([one for *_, theirs in found for one in theirs]))
    return [
        NodeHistory(its_sku, host, tuple(of_host), tuple(next(drifts) for _ in theirs), _changes(of_host))
        for its_sku, host, of_host, theirs in found
    ]


def _asked(nodes: list[tuple[str, str]], file: Path, sku: str | None) -> list[tuple[str, str]]:
    if not nodes:
        raise HistoryError(str(file), "has no node", "at least one run", "`ddpscale history --add RUN_DIR` adds one.")
    chosen = [one for one in nodes if sku in (None, one[0])]
    if not chosen:
        raise OptionError("--gpu-sku", f"found {sku!r}", f"one of {_names(of for of, _ in nodes)}")
    return chosen


def _told(runs: Iterable[HostRun]) -> Places:
    """Values of each place of one host over its runs, ordered by time."""
    found: dict[KeyValueSeries, list[_Told]] = {}
    for run in runs:
        for value in run.values:
            found.setdefault(value.peers, []).append(_Told(value, run.started_at, run.is_norm(value)))
    return found


def _observed(runs: Sequence[HostRun]) -> list[Observed]:
    """A node's values of its last week, with their past."""
    last_at = datetime.fromisoformat(runs[-1].started_at)
    # ISO 8601 in UTC sorts as the times that it means.
    since = (last_at - _TOLD_WITHIN).isoformat()
    found = []
    for told_of in _told(runs).values():
        *earlier, last = told_of
        if since <= last.at:
            # Only values of the GPU that is there now; another one may have been in its place.
            uuid = last.value.gpu_uuid
            past = [one.value.value for one in earlier if one.counts and one.value.gpu_uuid == uuid]
            found.append(Observed(last.value, last.at, tuple(past)))
    return found


def _changes(runs: list[HostRun]) -> tuple[str, ...]:
    return version_changes(versions_seen(runs[:-1]), runs[-1].versions)


def _names(names: Iterable[str]) -> str:
    return first_few(sorted(set(names)), _MOST_NAMED)
