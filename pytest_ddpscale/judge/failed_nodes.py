"""Failed and missing nodes of requirements that are judged node by node."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_ddpscale.judge.each import PlaceVerdict
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Culprit, Verdict
from pytest_ddpscale.util.listing import first_few


@dataclass(frozen=True)
class JudgedNode:
    """A node by its host's name."""

    name: str
    noun: str = "nodes"


def why_nodes_missing(nodes: Sequence[PlaceVerdict[JudgedNode]], evidence: Evidence) -> str:
    """Why a requirement cannot pass although no node fails; empty if all planned nodes are measured."""
    planned = evidence.plan.nodes
    measured = [node.place.name for node in nodes if node.outcome != "not_measured"]
    if len(measured) >= planned:
        return ""
    absent = [node.place.name for node in nodes if node.outcome == "not_measured"]
    if len(nodes) < planned:
        absent += sorted(set(evidence.hosts) - {node.place.name for node in nodes})
    there = f" ({first_few(measured)})" if measured else ""
    text = f"measured on {len(measured)} of {planned} nodes{there}"
    if absent:
        text += f"; {first_few(absent)} {'is' if len(absent) == 1 else 'are'} missing"
    why = {node.verdict.reason for node in nodes if node.outcome == "not_measured"}
    return f"{text}: {'; '.join(sorted(why))}" if why else text


def with_failed_nodes(verdict: Verdict, nodes: Sequence[PlaceVerdict[JudgedNode]], planned: int) -> Verdict:
    """Name the nodes that fail, with their value and the others', unless a culprit on them is already named.

    If more than half fail, no culprit is certain: a wrong bound must not drain a cluster. This does not apply to ranks
    that disagree, because no bound is involved.
    """
    failed = [node for node in nodes if node.is_failed]
    is_told_by_ranks = METRICS[verdict.metric].compares_results
    # Hosts with a certain culprit; for ranks that disagree any culprit will do.
    named = {c.host for c in verdict.culprits if c.is_certain or is_told_by_ranks}
    culprits = [
        Culprit("node", node.place.name, None, None, _evidence_on(node, nodes))
        for node in failed
        if node.place.name not in named
    ]
    found = replace(verdict, culprits=(*verdict.culprits, *culprits))
    if 2 * len(failed) <= planned or is_told_by_ranks:
        return found
    note = f"{len(failed)} of {planned} nodes fail alike: is the bound right? No node is certain to be at fault"
    uncertain = tuple(replace(culprit, is_certain=False) for culprit in found.culprits)
    return replace(found, notes=(*found.notes, note), culprits=uncertain)


def _evidence_on(node: PlaceVerdict[JudgedNode], nodes: Sequence[PlaceVerdict[JudgedNode]]) -> str:
    unit = node.verdict.unit
    others = [n.value for n in nodes if n is not node and n.value is not None]
    text = f"{node.verdict.metric} {_number(node.value, unit)} on this node alone"
    if not others:
        return text
    whom = "the other node" if len(others) == 1 else f"the median of {len(others)} other nodes"
    return f"{text}, {_number(statistics.median(others), unit)} is {whom}"


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    return f"{value:.1%}" if unit == "fraction" else f"{value:.4g} {unit}"
