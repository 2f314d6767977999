"""The tables of report.html other than that of requirements, as HTML."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from pytest_ddpscale.report import coverage_text, digits, text
from pytest_ddpscale.report.node_table import NodeTable
from pytest_ddpscale.run.coverage import Coverage
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_record import ranks_by_host
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.util.listing import by_number
from pytest_ddpscale.util.tables import Table, html, table

_MOST_NODES = _MOST_LOWERED = 64
_MOST_PATHS = 40
_OF_NODES = (
    "Nodes with a failure, a suspicion or an untested part, the worst first; numbers count requirements, “maybe” "
    "counts those that only suspect the node"
)


def nodes_table(nodes: NodeTable) -> Markup | str:
    """What was found on each node, with the evidence below it; the nodes without a row in a sentence."""
    if not nodes.rows:
        return Markup("<p>{}.</p>").format(text.one_line(nodes.others))
    below = {number: list(row.remarks) for number, row in enumerate(nodes.rows, 1)}
    hidden = f"{text.count_text(nodes.hidden, 'more node')} with problems: verdicts.json lists all"
    below[len(nodes.rows)] += filter(None, [hidden if nodes.hidden else "", nodes.others])
    rows = [(row.host, *(cell or digits.ABSENT for cell in row.cells)) for row in nodes.rows]
    return _markup(table(("Node", *nodes.metrics), rows), _OF_NODES, below, "nodes")


def lowered_table(judgement: Judgement) -> Markup:
    """Bounds before the site lowered them, and now."""
    rows = [(one.requirement, *digits.lowered_bounds(one)) for one in judgement.lowered]
    titles = ("Requirement", "Before", "Here")
    return _first(table(titles, rows, of_numbers=True), "Bounds that the site lowered", _MOST_LOWERED)


def coverage_tables(coverage: Coverage) -> Iterator[tuple[str, Markup]]:
    """Tested nodes, and paths between them, each with its caption."""
    nodes = table(("Node", "Tested by", "GPUs tested", "Not tested"), coverage_text.node_rows(coverage))
    titles = ("Path", "Bandwidth", "Relative to the median", "Rounds")
    paths = table(titles, coverage_text.path_rows(coverage), of_numbers=True)
    of_paths = "Pairs of nodes, each measured by itself with an all-reduce of two ranks, the slowest first"
    of_nodes = "What was tested on each node"
    for caption, found, most in ((of_nodes, nodes, _MOST_NODES), (of_paths, paths, _MOST_PATHS)):
        if found.rows:
            yield caption, _first(found, caption, most)


def hosts_table(evidence: Evidence) -> Markup:
    """The devices of each host."""
    hosts = sorted(ranks_by_host(evidence.gangs).items(), key=lambda one: by_number(one[0]))
    rows = [(host, "; ".join(f"{one.place.name}: {one.device_name}" for one in ranks[:16])) for host, ranks in hosts]
    return _first(table(("Host", "Devices"), rows), "Hosts", _MOST_NODES, "measurements.jsonl")


def software_table(evidence: Evidence, versions: dict[str, str]) -> Markup:
    """Versions, and variables of the environment."""
    rows = [*versions.items(), *sorted(evidence.environment.items())]
    return _markup(table(("Name", "Version or setting"), rows), "Software and environment")


def _first(whole: Table, caption: str, most: int, where: str = "verdicts.json") -> Markup:
    """The first rows of a table, and a row with the number of the others."""
    left_out = len(whole.rows) - most
    below = {most: [f"{left_out} more: {where} lists all"]} if left_out > 0 else {}
    return _markup(Table(whole.columns, whole.rows[:most]), caption, below)


def _markup(whole: Table, caption: str, below: dict[int, list[str]] | None = None, classes: str = "") -> Markup:
    return Markup(html(whole, caption, below or {}, classes))  # noqa: S704 (escaped within)
