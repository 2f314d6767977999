"""A requirement that fits one node, judged on each of several: it passes if every node that was planned passes.

Each node is judged at the confidence that was asked for. That all pass though one should not is then no likelier than
on one node. That any fails though none should is, with N nodes, up to N times as likely: a failure counts only if it
also holds at 1 - (1 - confidence) / N (Bonferroni).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_ddpscale.blame.replicas import METRIC as REPLICA_AGREEMENT
from pytest_ddpscale.evidence.evidence import Evidence
from pytest_ddpscale.metrics.rounds import Rounds
from pytest_ddpscale.metrics.samples import Sample
from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.results.verdicts import Culprit, Verdict, VerdictOutcome
from pytest_ddpscale.util.listing import first_few

UNDECIDED = "more rounds may fail further nodes: undecided on "


@dataclass(frozen=True)
class NodeVerdict:
    """What one node comes to.

    Attributes:
        host: its name.
        verdict: as if there were no other node.
        measured: its complete rounds of the arm in question.
    """

    host: str
    verdict: Verdict
    measured: Rounds


JudgeNode = Callable[[str, float], NodeVerdict]  # host and confidence


def judge_nodes(judge: JudgeNode, hosts: Iterable[str], planned: int, confidence: float) -> list[NodeVerdict]:
    """Judge each node; what fails, at the confidence that holds for all together.

    Args:
        judge: judges one.
        hosts: names of the nodes that were measured.
        planned: how many there should be.
        confidence: of the verdict on all of them, 0 … 1.
    """
    names = list(hosts)
    of = max(planned, len(names))
    return [_judge_again_if_failed(judge, judge(host, confidence), of, confidence) for host in names]


def combined(blank: Verdict, nodes: Sequence[NodeVerdict], evidence: Evidence) -> Verdict:
    """One verdict of those on the nodes.

    Args:
        blank: on the same requirement, ``not_measured``.
        nodes: in the order of their names.
        evidence: says how many there should be, and what others were called.

    Returns:
        ``failed`` if any node fails; else ``error`` if one is that, ``not_measured`` if one is that or is missing,
        ``inconclusive`` if one is that; else ``passed``. Value and interval are those of the worst node with that
        outcome, rounds the fewest of any.
    """
    planned = evidence.plan.nodes
    measured = [node for node in nodes if node.verdict.outcome != "not_measured"]
    absent = [node.host for node in nodes if node.verdict.outcome == "not_measured"]
    if len(nodes) < planned:
        absent += sorted(set(evidence.hosts) - {node.host for node in nodes})
    outcome = _outcome(measured, planned)
    if outcome == "not_measured":
        return replace(blank, reason=_missing(measured, absent, planned, nodes))
    deciding = [node for node in measured if node.verdict.outcome == outcome]
    worst = min(deciding, key=_badness)
    return replace(
        worst.verdict,
        rounds=min(node.verdict.rounds for node in measured),
        reason=_reason(worst, deciding, planned),
        notes=_notes(measured, deciding),
        culprits=tuple(dict.fromkeys(c for node in deciding for c in node.verdict.culprits)),
    )


def with_failed_nodes(verdict: Verdict, nodes: Sequence[NodeVerdict], planned: int) -> Verdict:
    """The verdict with the nodes named that fail, unless something on them is, with their value beside the others'.

    If more than half fail, nobody is certain to be at fault: a bound that is wrong must not drain a cluster. Whose
    results are odd is told by the other ranks, and by no bound.

    Args:
        verdict: that of all nodes, with those named who stand out.
        nodes: what each of them comes to.
        planned: how many there should be.
    """
    failed = [node for node in nodes if node.verdict.outcome == "failed"]
    named = _hosts_named(verdict)
    culprits = [Culprit("node", n.host, None, None, _evidence_on(n, nodes)) for n in failed if n.host not in named]
    found = replace(verdict, culprits=(*verdict.culprits, *culprits))
    if 2 * len(failed) <= planned or verdict.metric == REPLICA_AGREEMENT:
        return found
    note = f"{len(failed)} of {planned} nodes fail alike: is the bound right? No node is certain to be at fault"
    uncertain = tuple(replace(culprit, is_certain=False) for culprit in found.culprits)
    return replace(found, notes=(*found.notes, note), culprits=uncertain)


def _hosts_named(verdict: Verdict) -> set[str]:
    """Of which something is certainly to blame; that ranks disagree says all there is to say, certain or not."""
    return {c.host for c in verdict.culprits if c.is_certain or verdict.metric == REPLICA_AGREEMENT}


def worst_per_round(samples: Sequence[Sequence[Sample]], metric: Metric) -> list[Sample]:
    """Of the values of several nodes, the worst of each round, as far as all nodes have rounds."""
    worst = max if metric.upper_bound else min
    return [worst(of_round, key=lambda sample: sample.value) for of_round in zip(*samples, strict=False)]


def _judge_again_if_failed(judge: JudgeNode, found: NodeVerdict, planned: int, confidence: float) -> NodeVerdict:
    if found.verdict.outcome != "failed":
        return found
    again = judge(found.host, 1 - (1 - confidence) / planned)
    if again.verdict.outcome == "failed":
        return again
    reason = f"{found.verdict.reason}, though not so clearly that it could not be chance on one of {planned} nodes"
    return replace(again, verdict=replace(again.verdict, outcome="inconclusive", reason=reason))


def _outcome(measured: Sequence[NodeVerdict], planned: int) -> VerdictOutcome:
    found = {node.verdict.outcome for node in measured}
    if "failed" in found:
        return "failed"
    if "error" in found:
        return "error"
    if len(measured) < planned:
        return "not_measured"
    return "passed" if found == {"passed"} else "inconclusive"


def _badness(node: NodeVerdict) -> float:
    """Margin of the value: the smaller the worse; without a value worst of all."""
    margin = node.verdict.margin
    return float("-inf") if margin is None else margin


def _reason(worst: NodeVerdict, deciding: Sequence[NodeVerdict], planned: int) -> str:
    if worst.verdict.outcome == "passed":
        return f"{worst.verdict.reason} on each of {planned} nodes; {worst.host} is nearest to it"
    others = [node.host for node in deciding if node is not worst]
    more = f" ({worst.verdict.outcome} too: {first_few(others)})" if others else ""
    return f"{worst.host}, one of {planned} nodes: {worst.verdict.reason}{more}"


def _missing(measured: Sequence[NodeVerdict], absent: Sequence[str], planned: int, nodes: Sequence[NodeVerdict]) -> str:
    there = f" ({first_few([node.host for node in measured])})" if measured else ""
    text = f"measured on {len(measured)} of {planned} nodes{there}"
    if absent:
        text += f"; {first_few(absent)} {'is' if len(absent) == 1 else 'are'} missing"
    why = {node.verdict.reason for node in nodes if node.verdict.outcome == "not_measured"}
    return f"{text}: {'; '.join(sorted(why))}" if why else text


def _notes(nodes: Sequence[NodeVerdict], deciding: Sequence[NodeVerdict]) -> tuple[str, ...]:
    """What is to be known of all nodes that decide as it is, of others with their names."""
    hosts: dict[str, list[str]] = {}
    for node in nodes:
        for note in node.verdict.notes:
            hosts.setdefault(note, []).append(node.host)
    decide = {node.host for node in deciding}
    notes = [note if decide.issubset(on) else f"{first_few(on)}: {note}" for note, on in hosts.items()]
    undecided = [node.host for node in nodes if node.verdict.outcome == "inconclusive"]
    if undecided and deciding[0].verdict.outcome == "failed":
        notes.append(f"{UNDECIDED}{first_few(undecided)}")
    return tuple(notes)


def _evidence_on(node: NodeVerdict, nodes: Sequence[NodeVerdict]) -> str:
    unit = node.verdict.unit
    others = [n.verdict.value for n in nodes if n.host != node.host and n.verdict.value is not None]
    text = f"{node.verdict.metric} {_number(node.verdict.value, unit)} on this node by itself"
    if not others:
        return text
    whom = "the other node" if len(others) == 1 else f"the median of {len(others)} other nodes"
    return f"{text}, {_number(statistics.median(others), unit)} is {whom}"


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    return f"{value:.1%}" if unit == "fraction" else f"{value:.4g} {unit}"
