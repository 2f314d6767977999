"""Findings of a check on one node, and their conclusion over all nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.run.gpu_blocks import Gpu, GpuBlocks
from pytest_ddpscale.run.survey_record import Survey
from pytest_ddpscale.run.telemetry import NO_TELEMETRY, TelemetryColumns
from pytest_ddpscale.run.transport_record import Transport
from pytest_ddpscale.run.verdicts import Culprit

CheckOutcome = Literal["passed", "failed", "not_measured"]
_Doubt = Literal["outside", "nodes", "gpus"]
_MOST_NAMED = 3


@dataclass(frozen=True)
class NodeEvidence:
    """All inputs of the checks.

    Attributes:
        expectation: expected state of a node.
        surveys: by host; hosts that sent none are absent.
        blocks: blocks that each GPU ran; empty if unknown.
        post_mortems: surveys taken after ranks failed; empty if none did.
    """

    expectation: NodeExpectation
    surveys: Mapping[str, Survey]
    hosts_planned: int
    telemetry: TelemetryColumns = NO_TELEMETRY
    transports: Sequence[Transport] = ()
    blocks: GpuBlocks = field(default_factory=GpuBlocks)
    post_mortems: Sequence[Survey] = ()

    @cached_property
    def windows(self) -> Mapping[str, Mapping[str, TelemetryColumns]]:
        """Telemetry by host and GPU UUID."""
        found: dict[str, dict[str, TelemetryColumns]] = {}
        for windows in self.telemetry.by_gpu:
            place = windows.place_of(0)
            found.setdefault(place.host, {})[place.device] = windows
        return found

    @cached_property
    def watched(self) -> Mapping[Gpu, tuple[int, int]]:
        """By GPU: the number of blocks it ran, and of those with telemetry."""
        return self.blocks.watched(self.telemetry)


@dataclass(frozen=True)
class GpuPlace:
    """A GPU on a node: its local rank, and its UUID (empty if the GPU does not give one)."""

    index: int | None
    uuid: str

    @property
    def label(self) -> str:
        """``GPU 3 (GPU-1f…)``, as far as it is known."""
        number = "" if self.index is None else f" {self.index}"
        return f"GPU{number} ({self.uuid})" if self.uuid else f"GPU{number}"


@dataclass(frozen=True)
class NodeFault:
    """A deviation from the expectation: what was found, and what was expected.

    Attributes:
        gpu: the GPU concerned; None for the whole node.
        stands_alone: whether it is a fault regardless of other nodes, such as a lost GPU. For other faults the
            expectation may be wrong if most nodes do not meet it.
        is_certain: False if several nodes differ and it is unclear which of them is wrong.
        is_from_outside: whether the cause may be shared by several nodes, such as the facility's power; no node is
            certain to be at fault if most nodes have it.
    """

    text: str
    gpu: GpuPlace | None = None
    stands_alone: bool = False
    is_certain: bool = True
    is_from_outside: bool = False


@dataclass(frozen=True)
class Finding:
    """Result of a check on one node: faults, missing data with reasons, notes, and the number of GPUs checked."""

    faults: tuple[NodeFault, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    gpus: int = 0

    def __add__(self, other: Finding) -> Finding:
        return Finding(
            self.faults + other.faults, self.unknown + other.unknown, self.notes + other.notes, self.gpus + other.gpus
        )

    @property
    def passes(self) -> bool:
        """Whether there is neither a fault nor missing data."""
        return not self.faults and not self.unknown


def summed(findings: Iterable[Finding]) -> Finding:
    """Combine findings into one; none at all give a finding that passes."""
    return sum(findings, Finding())


def fault(text: str, gpu: GpuPlace | None = None, *, stands_alone: bool = False) -> Finding:
    """A finding with one fault."""
    return Finding(faults=(NodeFault(text, gpu, stands_alone),))


def unknown(text: str, gpu: GpuPlace | None = None) -> Finding:
    """A finding with one item of missing data."""
    return Finding(unknown=(_labelled(text, gpu),))


def note(text: str, gpu: GpuPlace | None = None) -> Finding:
    """A finding with one note."""
    return Finding(notes=(_labelled(text, gpu),))


def _labelled(text: str, gpu: GpuPlace | None) -> str:
    return f"{gpu.label}: {text}" if gpu else text


@dataclass(frozen=True)
class CheckResult:
    """The result of a check over all nodes.

    Attributes:
        outcome: ``passed`` if every planned node passes; ``failed`` if one has a fault; else ``not_measured``.
        share: share of the planned nodes that pass, 0 … 1; None without data from any node.
        reason: why this outcome, in one sentence.
        is_partly_known: whether the check failed and data was missing too.
    """

    name: str
    outcome: CheckOutcome
    share: float | None
    reason: str
    culprits: tuple[Culprit, ...] = ()
    notes: tuple[str, ...] = ()
    is_partly_known: bool = False


def concluded(name: str, findings: Mapping[str, Finding], hosts_planned: int) -> CheckResult:
    """Conclude from the findings by host, where `hosts_planned` nodes were expected."""
    planned, in_order = max(hosts_planned, len(findings)), sorted(findings.items())
    faults = [(host, one) for host, finding in in_order for one in finding.faults]
    untold = [f"{host}: {text}" for host, finding in in_order for text in finding.unknown]
    notes = [f"{host}: {text}" for host, finding in in_order for text in finding.notes]
    if planned > len(findings):
        untold.append(f"{planned - len(findings)} of {_nodes(planned)} reported nothing")
    share = sum(finding.passes for finding in findings.values()) / planned if findings else None
    if faults:
        told = [f"{host}: {_labelled(one.text, one.gpu)}" for host, one in faults]
        reason = f"{len(dict(faults))} of {_nodes(planned)} not as expected: {_listed(told)}"
        notes += [f"also missing data: {_listed(untold)}"] if untold else []
        doubts = _doubts(findings, planned)
        notes += [f"{text} No node is certain to be at fault" for text in doubts.values()]
        culprits = tuple(_culprit(host, one, doubts) for host, one in faults)
        return CheckResult(name, "failed", share, reason, culprits, tuple(notes), is_partly_known=bool(untold))
    if untold or not findings:
        reason = f"missing data: {_listed(untold) or 'no node reported anything'}"
        return CheckResult(name, "not_measured", share, reason, (), tuple(notes))
    reason = f"{'' if planned == 1 else 'all '}{_nodes(planned)} as expected"
    return CheckResult(name, "passed", share, reason, (), tuple(notes))


def _doubts(findings: Mapping[str, Finding], planned: int) -> dict[_Doubt, str]:
    """Doubts that arise if most nodes or most GPUs fail: the expectation, or something they share, may be at fault.

    The rule of `failed_nodes.with_failed_nodes`; a node where only some GPUs fail has the others to compare with. With
    one node there is nothing to compare with, so a mismatch is the node's fault.
    """
    compared = [(host, one) for host, finding in findings.items() for one in finding.faults if not one.stands_alone]
    nodes = len({host for host, one in compared if one.gpu is None})
    gpus = {(host, one.gpu) for host, one in compared if one.gpu is not None}
    has_most_nodes = 2 * len({host for host, _ in gpus}) > planned
    outside = sum(any(one.is_from_outside for one in finding.faults) for finding in findings.values())
    doubts: dict[_Doubt, str] = {}
    if 2 * outside > planned:
        doubts["outside"] = f"{outside} of {planned} nodes are throttled by a power brake: is it the facility?"
    if planned > 1 and 2 * nodes > planned:
        doubts["nodes"] = f"{nodes} of {planned} nodes fail: is the expectation right?"
    if has_most_nodes and 2 * len(gpus) > sum(finding.gpus for finding in findings.values()):
        doubts["gpus"] = f"{len(gpus)} GPUs of most nodes fail: is the expectation right?"
    return doubts


def _culprit(host: str, one: NodeFault, doubts: Collection[_Doubt]) -> Culprit:
    doubted = not one.stands_alone and ("nodes" if one.gpu is None else "gpus") in doubts
    doubted |= one.is_from_outside and "outside" in doubts
    is_certain = one.is_certain and not doubted
    if one.gpu is None:
        return Culprit("node", host, None, None, one.text, is_certain=is_certain)
    return Culprit("gpu", host, one.gpu.index, one.gpu.uuid or None, one.text, is_certain=is_certain)


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_NAMED
    return "; ".join(texts[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
