"""The history of nodes as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from pytest_ddpscale.history.key_values import KeyValue
from pytest_ddpscale.history.overview import NodeHistory, ValueComparison
from pytest_ddpscale.history.prediction import FEWEST_VALUES
from pytest_ddpscale.history.reading import HostRun
from pytest_ddpscale.report import digits
from pytest_ddpscale.run.strict_json import strict_json
from pytest_ddpscale.util.document import table, text_lines
from pytest_ddpscale.util.listing import count_text
from pytest_ddpscale.util.printable import one_line

_RUNS_SHOWN = 5


def overview_lines(nodes: Sequence[NodeHistory]) -> Iterator[str]:
    """A line for each node: its last run and its worst drift."""
    header = ("NODE", "SKU", "RUNS", "LAST RUN", "OUTCOME", "WORST DRIFT")
    last = [(node, node.last) for node in nodes]
    rows = [(one.host, one.sku, str(len(one.runs)), run.started_at, _outcome(run), _worst(one)) for one, run in last]
    yield from text_lines(table(header, rows))


def node_lines(node: NodeHistory) -> Iterator[str]:
    """One node: its last runs, and every value beside its own past."""
    yield f"{one_line(node.host)}, {one_line(node.sku)}: {count_text(len(node.runs), 'run')}"
    yield ""
    for run in reversed(node.runs[-_RUNS_SHOWN:]):
        failed = f", failed: {', '.join(map(one_line, run.failed))}" if run.failed else ""
        fell = f"  {count_text(len(run.worse), 'value')} regressed, not used as baseline" if run.worse else ""
        yield f"  {run.started_at}  {one_line(_outcome(run))}{failed}  [{one_line(run.path)}]{fell}"
    yield ""
    if node.changes:
        yield f"Software changed since the earlier runs: {one_line('; '.join(node.changes))}."
    worse = [drift for drift in node.drifts if drift.is_worse]
    values = count_text(len(node.drifts), "value")
    if not node.drifts:
        yield "The last run has no value to compare."
        return
    if any(drift.past is not None and drift.past.interval for drift in node.drifts):
        yield f"{len(worse)} of {values} worse than predicted from the node's own past."
    else:
        yield f"{values} not judged yet: that takes {FEWEST_VALUES} earlier runs."
    yield ""
    inorder = sorted(node.drifts, key=lambda drift: (not drift.is_worse, -drift.loss))
    rows = [(*_named(d.value), f"{d.value.value:.4g} {d.value.unit}", _beside(d.past)) for d in inorder]
    yield from text_lines(table(("VALUE", "PLACE", "NOW", "OWN PAST"), rows))


def json_text(nodes: Sequence[NodeHistory]) -> str:
    """One JSON array with an object for each node."""
    found: list[dict[str, Any]] = []
    for node in nodes:
        runs = [{key: value for key, value in asdict(run).items() if key != "values"} for run in node.runs]
        drifts = [asdict(drift) | {"is_worse": drift.is_worse} for drift in node.drifts]
        found.append({"sku": node.sku, "host": node.host, "changes": node.changes, "runs": runs, "drifts": drifts})
    return strict_json(found)


def _outcome(run: HostRun) -> str:
    return run.outcome.replace("_", " ")


def _worst(node: NodeHistory) -> str:
    worst = node.worst
    if worst is None:
        return "nothing was compared"
    if worst.past is None:
        return "none yet: nothing to compare with"
    what, place = _named(worst.value)
    return f"{what} of {place}: {_percent(worst.past)} from its own past{_word(worst.past)}"


def _named(value: KeyValue) -> tuple[str, str]:
    """The measured quantity and its place."""
    what = value.what
    return what, "node" if value.gpu_uuid is None else one_line(value.place.short)


def _beside(one: ValueComparison | None) -> str:
    if one is None:
        return "none"
    spread = digits.number_text(one.reference.spread, "fraction")
    others = f"{one.reference.median:.4g} ± {spread} of {count_text(one.reference.number, 'run')}"
    return f"{_percent(one)} from {others}{_word(one)}"


def _word(one: ValueComparison) -> str:
    return {"usual": "", "unknown": " (too few)"}.get(one.standing, f" {one.standing.upper()}")


def _percent(one: ValueComparison) -> str:
    change = digits.number_text(one.ratio - 1, "fraction")
    return change if change.startswith("−") else f"+{change}"
