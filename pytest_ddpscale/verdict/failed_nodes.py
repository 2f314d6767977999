"""Nodes that fail, or are missing, where each of several is judged by itself."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.results.verdicts import Culprit, Verdict
from pytest_ddpscale.util.listing import first_few
from pytest_ddpscale.verdict.each import PlaceVerdict


@dataclass(frozen=True)
class JudgedNode:
    """A node by its host's name."""

    name: str
    noun: str = "nodes"


def why_nodes_missing(nodes: Sequence[PlaceVerdict[JudgedNode]], evidence: Evidence) -> str:
    """What keeps a requirement from passing although no node fails; empty if all that were planned are measured.

    Args:
        nodes: what each of them comes to, in the order of their names.
        evidence: says how many there should be, and what others were called.
    """
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
    """The verdict with the nodes named that fail, unless something on them is, with their value beside the others'.

    If more than half fail, nobody is certain to be at fault: a bound that is wrong must not drain a cluster. Whose
    results are odd is told by the other ranks, and by no bound.

    Args:
        verdict: that of all nodes, with those named who stand out.
        nodes: what each of them comes to.
        planned: how many there should be.
    """
    failed = [node for node in nodes if node.is_failed]
    is_told_by_ranks = METRICS[verdict.metric].compares_results
    # Of which something is certainly to blame; that ranks disagree says all there is to say, certain or not.
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
    text = f"{node.verdict.metric} {_number(node.value, unit)} on this node by itself"
    if not others:
        return text
    whom = "the other node" if len(others) == 1 else f"the median of {len(others)} other nodes"
    return f"{text}, {_number(statistics.median(others), unit)} is {whom}"


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    return f"{value:.1%}" if unit == "fraction" else f"{value:.4g} {unit}"
