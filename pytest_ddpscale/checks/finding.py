"""What a check finds on one node, and what that comes to for all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.results.survey_record import Survey
from pytest_ddpscale.results.telemetry_record import Telemetry
from pytest_ddpscale.results.transport_record import Transport
from pytest_ddpscale.results.verdicts import Culprit

CheckOutcome = Literal["passed", "failed", "not_measured"]
Blocks = Mapping[tuple[str, str], Collection[tuple[str, str, int]]]
_MOST_NAMED = 3


@dataclass(frozen=True)
class NodeEvidence:
    """All that checks go by.

    Attributes:
        expectation: what nodes have to be.
        surveys: host → what it is, of those that said so.
        hosts_planned: how many nodes there should be.
        telemetry: what GPUs said while they worked.
        transports: what NCCL said, of each rank.
        blocks: (host, GPU UUID) → the blocks that it took part in, by (study, arm, round); empty where nobody knows.
        post_mortems: what GPUs were after ranks had failed; empty if none did.
    """

    expectation: NodeExpectation
    surveys: Mapping[str, Survey]
    hosts_planned: int
    telemetry: Sequence[Telemetry] = ()
    transports: Sequence[Transport] = ()
    blocks: Blocks = field(default_factory=dict)
    post_mortems: Sequence[Survey] = ()


@dataclass(frozen=True)
class GpuPlace:
    """A GPU on a node.

    Attributes:
        index: local rank: place among the GPUs that ranks may use.
        uuid: as NVML has it; empty of a GPU that does not even tell that.
    """

    index: int | None
    uuid: str


@dataclass(frozen=True)
class NodeFault:
    """Something that is not as it should be.

    Attributes:
        text: what was found, and what was expected.
        gpu: on which GPU; None if it is about the node.
        stands_alone: whether it is a fault whatever other nodes are like, such as a lost GPU. Of anything else the
            expectation may be wrong, if most nodes do not meet it.
        is_certain: False if nothing says which of several that differ is the odd one.
        is_from_outside: whether it may come from what several nodes share, such as the facility's power: if most nodes
            have it, it is nobody's.
    """

    text: str
    gpu: GpuPlace | None = None
    stands_alone: bool = False
    is_certain: bool = True
    is_from_outside: bool = False


@dataclass(frozen=True)
class Finding:
    """What a check found on one node; with neither faults nor unknowns it passes.

    Attributes:
        faults: that it has.
        unknown: what would have to be known, and is not, with the reason.
        notes: what the reader should know.
        gpus: how many were looked at.
    """

    faults: tuple[NodeFault, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    gpus: int = 0

    def __add__(self, other: Finding) -> Finding:
        return Finding(
            self.faults + other.faults, self.unknown + other.unknown, self.notes + other.notes, self.gpus + other.gpus
        )


def fault(text: str, gpu: GpuPlace | None = None, *, stands_alone: bool = False) -> Finding:
    """A finding of one fault."""
    return Finding(faults=(NodeFault(text, gpu, stands_alone),))


def unknown(text: str) -> Finding:
    """A finding of one thing that is not known."""
    return Finding(unknown=(text,))


def note(text: str) -> Finding:
    """A finding of one thing to be told."""
    return Finding(notes=(text,))


@dataclass(frozen=True)
class CheckResult:
    """A check of all nodes.

    Attributes:
        name: of the check.
        outcome: ``passed`` if every planned node passes; ``failed`` if one has a fault; else ``not_measured``.
        share: of the planned nodes, those that pass: 0 … 1; None if nothing is known of any.
        reason: one sentence: why this outcome.
        culprits: nodes and GPUs at fault.
        notes: what the reader should know.
    """

    name: str
    outcome: CheckOutcome
    share: float | None
    reason: str
    culprits: tuple[Culprit, ...] = ()
    notes: tuple[str, ...] = ()


def concluded(name: str, findings: Mapping[str, Finding], hosts_planned: int) -> CheckResult:
    """What findings on nodes come to.

    Args:
        name: of the check.
        findings: by host.
        hosts_planned: how many nodes there should be.
    """
    planned = max(hosts_planned, len(findings))
    failed = {host: finding for host, finding in sorted(findings.items()) if finding.faults}
    untold = [f"{host}: {text}" for host, finding in sorted(findings.items()) for text in finding.unknown]
    missing = planned - len(findings)
    if missing:
        untold.append(f"nothing is known of {missing} of {_nodes(planned)}")
    passing = sum(not finding.faults and not finding.unknown for finding in findings.values())
    doubts = _doubts(findings, planned)
    notes = [f"{host}: {text}" for host, finding in sorted(findings.items()) for text in finding.notes]
    share = passing / planned if findings else None
    if failed:
        told = [f"{host}: {_labelled(one)}" for host, finding in failed.items() for one in finding.faults]
        reason = f"{len(failed)} of {_nodes(planned)} not as expected: {_listed(told)}"
        notes += [f"also not known: {_listed(untold)}"] if untold else []
        culprits = tuple(_culprit(host, one, doubts) for host, finding in failed.items() for one in finding.faults)
        return CheckResult(name, "failed", share, reason, culprits, (*notes, *doubts.notes))
    if untold or not findings:
        reason = f"cannot be told: {_listed(untold) or 'nothing is known of any node'}"
        return CheckResult(name, "not_measured", share, reason, (), tuple(notes))
    return CheckResult(
        name, "passed", share, f"{'' if planned == 1 else 'all '}{_nodes(planned)} as expected", (), tuple(notes)
    )


@dataclass(frozen=True)
class _Doubts:
    """Whether most nodes, or most GPUs, fail alike, so that the expectation, or what they share, may be at fault."""

    of_nodes: bool
    of_gpus: bool
    from_outside: bool
    notes: tuple[str, ...]


def _doubts(findings: Mapping[str, Finding], planned: int) -> _Doubts:
    """The rule of `failed_nodes.with_failed_nodes`; a node where some of its GPUs fail has the others to compare with.

    A single node is no majority: what it is not is its own fault.
    """
    compared = [(host, one) for host, finding in findings.items() for one in finding.faults if not one.stands_alone]
    failed_nodes = {host for host, one in compared if one.gpu is None}
    failed_gpus = {(host, one.gpu) for host, one in compared if one.gpu is not None}
    of_nodes = planned > 1 and 2 * len(failed_nodes) > planned
    has_most_nodes = 2 * len({host for host, _ in failed_gpus}) > planned
    of_gpus = has_most_nodes and 2 * len(failed_gpus) > sum(finding.gpus for finding in findings.values())
    outside = [host for host, finding in findings.items() if any(one.is_from_outside for one in finding.faults)]
    from_outside = 2 * len(outside) > planned
    notes = []
    if from_outside:
        notes.append(f"{len(outside)} of {planned} nodes are held down from outside: is it the facility?")
    if of_nodes:
        notes.append(f"{len(failed_nodes)} of {planned} nodes fail alike: is the expectation right?")
    if of_gpus:
        notes.append(f"{len(failed_gpus)} GPUs of most nodes fail alike: is the expectation right?")
    return _Doubts(
        of_nodes, of_gpus, from_outside, tuple(f"{text} No node is certain to be at fault" for text in notes)
    )


def _culprit(host: str, one: NodeFault, doubts: _Doubts) -> Culprit:
    doubted = not one.stands_alone and (doubts.of_nodes if one.gpu is None else doubts.of_gpus)
    doubted |= one.is_from_outside and doubts.from_outside
    is_certain = one.is_certain and not doubted
    if one.gpu is None:
        return Culprit("node", host, None, None, one.text, is_certain=is_certain)
    return Culprit("gpu", host, one.gpu.index, one.gpu.uuid or None, one.text, is_certain=is_certain)


def _labelled(one: NodeFault) -> str:
    return one.text if one.gpu is None else f"{gpu_label(one.gpu)}: {one.text}"


def gpu_label(gpu: GpuPlace) -> str:
    """``GPU 3 (GPU-1f…)``, as far as it is known."""
    number = "" if gpu.index is None else f" {gpu.index}"
    return f"GPU{number} ({gpu.uuid})" if gpu.uuid else f"GPU{number}"


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMED
    return "; ".join(texts[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
