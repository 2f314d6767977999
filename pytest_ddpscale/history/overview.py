"""Nodes of a site compared with their past, for `ddpscale history`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from pytest_ddpscale.errors import HistoryError, OptionError
from pytest_ddpscale.history.key_values import KeyValue, KeyValueSeries
from pytest_ddpscale.history.prediction import CONFIDENCE, Compared, Reference, compared, references, shared_confidence
from pytest_ddpscale.history.regression import version_changes, versions_seen
from pytest_ddpscale.history.store import NodeRun, node_runs, reading, skus_and_hosts
from pytest_ddpscale.util.listing import first_few

# A place that was last measured longer ago is told of no more.
_TOLD_WITHIN = timedelta(days=7)
_MOST_NAMED = 8


class NodeHistory(NamedTuple):
    """One node, of one SKU.

    Attributes:
        sku: canonical name; ``simulated …`` of simulated runs.
        runs: the latest ones, oldest first; at least one; of their values only the regressed ones.
        drifts: of the values of its last week with enough earlier ones, the worst first.
        young: the other values of that week.
        changes: of the software between the last run and those before.
    """

    sku: str
    host: str
    runs: Sequence[NodeRun]
    drifts: Sequence[Compared]
    young: Sequence[KeyValue]
    changes: Sequence[str]


def read_histories(history_file: Path, sku: str | None = None, node: str | None = None) -> list[NodeHistory]:
    """All nodes with a run, by SKU and name, with the drift of their values; optionally of one SKU or one node.

    Intervals hold jointly for all these nodes: if nothing changed, the probability that any value is told to be worse
    is at most 2.5 %.

    Raises:
        HistoryError: the history does not exist, is empty, or cannot be used.
        OptionError: it does not have the SKU or node.
    """
    with reading(history_file) as connection:
        nodes = skus_and_hosts(connection)
        if not nodes:
            how = "`ddpscale history --add RUN_DIR` adds one."
            raise HistoryError(str(history_file), "has no node", "at least one run", how)
        for at, option, asked in ((0, "--gpu-sku", sku), (1, "NODE", node)):
            known = sorted({one[at] for one in nodes})
            if asked not in (None, *known):
                raise OptionError(option, f"found {asked!r}", f"one of {first_few(known, _MOST_NAMED)}")
            nodes = [one for one in nodes if asked in (None, one[at])]
        runs = (node_runs(connection, *one) for one in nodes)
        confidence = shared_confidence(CONFIDENCE, len(nodes))
        # Without runs where the only one is being replaced at this moment.
        return [_history(of_node, confidence) for of_node in runs if of_node]


def _history(runs: Sequence[NodeRun], confidence: float) -> NodeHistory:
    *before, last = runs
    # ISO 8601 in UTC sorts as the times that it means.
    since = (datetime.fromisoformat(last.started_at) - _TOLD_WITHIN).isoformat()
    values, past = dict[KeyValueSeries, KeyValue](), dict[KeyValueSeries, Reference]()
    for number, run in reversed([*enumerate(runs)]):
        # Only of the GPU that is in a slot now; another one may have been in its place.
        slots = {one.series._replace(gpu=str(one.gpu_index)): one for one in run.values}
        new = {slot: one for slot, one in slots.items() if slot not in values and run.started_at >= since}
        if new:
            values |= new
            earlier = references(one.norm for one in runs[:number])
            past |= {one.series: earlier[one.series] for one in new.values() if one.series in earlier}
    drifts = compared([*values.values()], past, confidence)
    drifts.sort(key=lambda one: (one.high >= 1, one.ratio))
    known = {one.value.series for one in drifts}
    young = [one for one in values.values() if one.series not in known]
    changes = version_changes(versions_seen(before), last.versions)
    shown = [replace(run, values=tuple(run.worse)) for run in runs]  # of many nodes all values would fill the memory
    return NodeHistory(last.sku, last.host, shown, drifts, young, changes)
