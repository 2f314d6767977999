"""Node × requirement: what is wrong with each node, and in one row what is known of all others."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.report import text
from pytest_ddpscale.results.coverage import INFERENCE, PROBES, TRAINING
from pytest_ddpscale.results.run_json import RunRecord
from pytest_ddpscale.results.verdicts import Culprit, Judgement, Verdict

MOST_ROWS = 50
ALL_ROWS_UP_TO = 64


@dataclass(frozen=True)
class NodeRow:
    """One node that is not all green.

    Attributes:
        host: its name.
        cells: for each metric of `NodeTable.metrics`, what was found of the node; empty for nothing.
        failures: requirements that fail because of it for certain.
        remark: the first thing that was seen, or what of the node was not tested.
    """

    host: str
    cells: tuple[str, ...]
    failures: int
    remark: str


@dataclass(frozen=True)
class NodeTable:
    """Rows, the worst first; how many more there are; and what is known of the nodes that have no row.

    Attributes:
        metrics: titles of the columns: metrics of which anything did not pass.
        others: ``15 nodes: all met``, or what keeps one from saying that; and how many nodes were never heard of.
    """

    metrics: tuple[str, ...]
    rows: tuple[NodeRow, ...]
    hidden: int
    others: str


def node_table(judgement: Judgement, run: RunRecord) -> NodeTable:
    """The table of a judged run; nodes are those of its coverage, else of run.json."""
    missed = [verdict for verdict in judgement.verdicts if not verdict.passed]
    metrics = tuple(dict.fromkeys(verdict.metric for verdict in missed))
    lacks = _not_tested(judgement)
    named: dict[str, list[tuple[Verdict, Culprit]]] = {host: [] for host in lacks}
    for verdict in missed:
        for culprit in verdict.culprits:
            for host in filter(None, {culprit.host, culprit.peer_host}):
                named.setdefault(host, []).append((verdict, culprit))
    rows = [_row(host, found, metrics, lacks.get(host, "")) for host, found in named.items()]
    rows.sort(key=lambda row: (-row.failures, row.host))
    known = {node.host for node in judgement.coverage.nodes} if judgement.coverage else {one.host for one in run.hosts}
    shown = rows if len(known | named.keys()) <= ALL_ROWS_UP_TO else rows[:MOST_ROWS]
    titles = tuple(METRICS[metric].title for metric in metrics)
    others = _others(known - named.keys(), missed)
    unnamed = judgement.coverage.unnamed_nodes if judgement.coverage else 0
    silent = f"{text.count_text(unnamed, 'further node')} never answered" if unnamed else ""
    return NodeTable(titles, tuple(shown), len(rows) - len(shown), "; ".join(filter(None, (others, silent))))


def _not_tested(judgement: Judgement) -> dict[str, str]:
    """What of a node took no part, by its name."""
    coverage = judgement.coverage
    if coverage is None:
        return {}
    lacks = {node.host: f"left out: {node.left_out}" for node in coverage.nodes if node.left_out}
    idle: dict[str, int] = {}
    for node, _ in coverage.idle_gpus:
        idle[node.host] = idle.get(node.host, 0) + 1
    for host, count in idle.items():
        lacks.setdefault(host, f"{text.count_text(count, 'GPU')} not tested")
    for node in coverage.nodes:
        if not {PROBES, TRAINING, INFERENCE} & set(node.tested_by):
            lacks.setdefault(node.host, "no measurement")
    return lacks


def _row(host: str, found: list[tuple[Verdict, Culprit]], metrics: tuple[str, ...], lacks: str) -> NodeRow:
    failing = {verdict.id for verdict, culprit in found if culprit.is_certain and verdict.outcome == "failed"}
    cells = tuple(_cell([one for one in found if one[0].metric == metric]) for metric in metrics)
    remark = "; ".join(part for part in (lacks, text.culprit_text(found[0][1]) if found else "") if part)
    return NodeRow(host, cells, len(failing), remark)


def _cell(found: list[tuple[Verdict, Culprit]]) -> str:
    """``FAIL 3``: the worst word of those that name the node, and how many requirements do."""
    if not found:
        return ""
    worst = sorted({_word(*one) for one in found}, key=("FAIL", "ERROR", "suspected", "WAIVED").index)[0]
    return f"{worst} {len({verdict.id for verdict, culprit in found if _word(verdict, culprit) == worst})}"


def _word(verdict: Verdict, culprit: Culprit) -> str:
    word = text.verdict_word(verdict)
    return word if culprit.is_certain and word in {"FAIL", "ERROR", "WAIVED"} else "suspected"


def _others(hosts: Collection[str], missed: list[Verdict]) -> str:
    """What is known of nodes that nothing names: that they meet all only where nothing else is open."""
    nodes = text.count_text(len(hosts), "node")
    if not hosts:
        return ""
    if not missed:
        return f"{nodes}: all met"
    open_ones = len(list(_without_a_name(missed)))
    rest = f"; {text.count_text(open_ones, 'requirement')} not met or not measured without a node to name"
    return f"{nodes}: no fault found" + (rest if open_ones else "")


def _without_a_name(missed: list[Verdict]) -> Iterator[Verdict]:
    return (verdict for verdict in missed if not verdict.culprits)
