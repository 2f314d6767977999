"""Table of nodes by metric: what is wrong with each node, and one line about all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.report import text
from pytest_ddpscale.run.coverage import INFERENCE, PROBES, TRAINING
from pytest_ddpscale.run.verdicts import Culprit, Judgement, Verdict
from pytest_ddpscale.util.listing import by_number

MOST_ROWS = 50
ALL_ROWS_UP_TO = 64
MOST_REMARKS = 5  # of a node
_SUSPECTED = "maybe"  # short like the other words, so that the columns fit on paper
_WORDS = ("FAIL", "ERROR", _SUSPECTED, "WAIVED")  # the worst first
_Found = list[tuple[Verdict, Culprit]]
_THEM = {False: "it", True: "them"}
_IN_WORDS = {"not_measured": "not measured", "inconclusive": "undecided", "error": "ended in an error"}


@dataclass(frozen=True)
class NodeRow:
    """One node with a failure, a suspicion, or a part that was not tested.

    Attributes:
        host: its name.
        cells: for each metric of `NodeTable.metrics`, what was found on the node; empty for nothing.
        failures: number of requirements that certainly fail because of it.
        remarks: what was not tested on the node, then the evidence for each of its named GPUs and links.
    """

    host: str
    cells: tuple[str, ...]
    failures: int
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class NodeTable:
    """Rows with the worst first, the number of rows left out, and a summary of the nodes without a row.

    Attributes:
        metrics: titles of the columns: metrics whose failures name a node.
        hidden: rows left out.
        others: ``15 other nodes: all requirements met``, or why that is not certain; and how many nodes never answered.
    """

    metrics: tuple[str, ...]
    rows: tuple[NodeRow, ...]
    hidden: int
    others: str


def node_table(judgement: Judgement, hosts: Collection[str]) -> NodeTable:
    """The table of a judged run, with the nodes of its coverage, or the hosts if it has none."""
    missed = [verdict for verdict in judgement.verdicts if not verdict.passed]
    lacks = _not_tested(judgement)
    named: dict[str, _Found] = {host: [] for host in lacks}
    for verdict in missed:
        for culprit in verdict.accused:
            for host in culprit.hosts:
                named.setdefault(host, []).append((verdict, culprit))
    metrics = tuple(dict.fromkeys(verdict.metric for verdict in missed if verdict.accused))
    rows = [_row(host, named[host], metrics, lacks.get(host, "")) for host in named]
    rows.sort(key=lambda row: (-row.failures, by_number(row.host)))
    known = {node.host for node in judgement.coverage.nodes} if judgement.coverage else {*hosts}
    shown = rows if len(known | named.keys()) <= ALL_ROWS_UP_TO else rows[:MOST_ROWS]
    titles = tuple(METRICS[metric].title for metric in metrics)
    unnamed = judgement.coverage.unnamed_nodes if judgement.coverage else 0
    silent = f"{text.count_text(unnamed, 'further node')} never answered" if unnamed else ""
    others = (_others(sorted(known - named.keys()), len(rows), missed), _without_a_name(missed), silent)
    return NodeTable(titles, tuple(shown), len(rows) - len(shown), "; ".join(filter(None, others)))


def _not_tested(judgement: Judgement) -> dict[str, str]:
    """What was not tested on each node, by host name."""
    coverage = judgement.coverage
    if coverage is None:
        return {}
    lacks = {node.host: f"left out: {node.left_out}" for node in coverage.nodes if node.left_out}
    for host, count in Counter(gpu.place.host for gpu in coverage.idle_gpus).items():
        lacks.setdefault(host, f"{text.count_text(count, 'GPU')} not tested")
    for node in coverage.nodes:
        if not {PROBES, TRAINING, INFERENCE} & set(node.tested_by):
            lacks.setdefault(node.host, "no measurement")
    return lacks


def _row(host: str, found: _Found, metrics: tuple[str, ...], lacks: str) -> NodeRow:
    failing = {verdict.id for verdict, culprit in found if culprit.is_certain and verdict.outcome == "failed"}
    cells = tuple(_cell([one for one in found if one[0].metric == metric]) for metric in metrics)
    return NodeRow(host, cells, len(failing), (*filter(None, [lacks]), *_remarks(found)))


def _remarks(found: _Found) -> Iterator[str]:
    """One line for each named GPU, link or node, the certain ones first."""
    seen: dict[str, str] = {}
    for _, culprit in sorted(found, key=lambda one: not one[1].is_certain):
        doubt = "" if culprit.is_certain else "suspected: "
        seen.setdefault(text.culprit_name(culprit, full_uuid=True), doubt + text.culprit_text(culprit))
    remarks = list(seen.values())
    yield from remarks[:MOST_REMARKS]
    if remarks[MOST_REMARKS:]:
        yield f"{len(remarks) - MOST_REMARKS} more: culprits.csv lists all"


def _cell(found: _Found) -> str:
    """``FAIL 3``: the worst verdict that names the node, and the number of requirements with it."""
    if not found:
        return ""
    worst = min((_word(*one) for one in found), key=_WORDS.index)
    return f"{worst} {len({verdict.id for verdict, culprit in found if _word(verdict, culprit) == worst})}"


def _word(verdict: Verdict, culprit: Culprit) -> str:
    word = text.verdict_word(verdict)
    return word if culprit.is_certain and word in {"FAIL", "ERROR", "WAIVED"} else _SUSPECTED


def _others(hosts: Sequence[str], named: int, missed: list[Verdict]) -> str:
    """Summary of the nodes that no failure names; they meet all requirements only if everything passed."""
    if not hosts:
        return ""
    are_many = len(hosts) > 1
    who = text.count_text(len(hosts), "other node" if named else "node") if named or are_many else hosts[0]
    return f"{who}: {f'no failure names {_THEM[are_many]}' if missed else 'all requirements met'}"


def _without_a_name(missed: Sequence[Verdict]) -> str:
    """``2 requirements failed, 1 not measured, without naming a node``."""
    counts = Counter(one.outcome for one in missed if not one.accused)
    if not counts:
        return ""
    (first, number), *rest = ((_IN_WORDS.get(outcome, outcome), number) for outcome, number in counts.items())
    more = "".join(f", {number} {outcome}" for outcome, number in rest)
    return f"{text.count_text(number, 'requirement')} {first}{more}, without naming a node"
