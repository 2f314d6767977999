"""What a check finds on one node, and what that comes to for all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from pytest_ddpscale.evidence.gpu_blocks import Gpu, GpuBlocks
from pytest_ddpscale.evidence.telemetry_columns import NO_TELEMETRY, TelemetryColumns
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.results.survey_record import Survey
from pytest_ddpscale.results.transport_record import Transport
from pytest_ddpscale.results.verdicts import Culprit

CheckOutcome = Literal["passed", "failed", "not_measured"]
_Doubt = Literal["outside", "nodes", "gpus"]
_MOST_NAMED = 3


@dataclass(frozen=True)
class NodeEvidence:
    """All that checks go by.

    Attributes:
        expectation: what nodes have to be.
        surveys: by host, of those that said so.
        blocks: that GPUs took part in; none where nobody knows.
        post_mortems: what GPUs were after ranks had failed; empty if none did.
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
        """Of each GPU in how many blocks it took part, and of how many of those there is telemetry."""
        return self.blocks.watched(self.telemetry)


@dataclass(frozen=True)
class GpuPlace:
    """A GPU on a node: its local rank, and its UUID, empty of a GPU that does not even tell that."""

    index: int | None
    uuid: str

    @property
    def label(self) -> str:
        """``GPU 3 (GPU-1f…)``, as far as it is known."""
        number = "" if self.index is None else f" {self.index}"
        return f"GPU{number} ({self.uuid})" if self.uuid else f"GPU{number}"


@dataclass(frozen=True)
class NodeFault:
    """Something that is not as it should be: what was found, and what was expected.

    Attributes:
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
    """What a check found on one node: faults, what is not known and why, notes for the reader, and GPUs looked at."""

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
        """Whether nothing is wrong, and nothing unknown."""
        return not self.faults and not self.unknown


def summed(findings: Iterable[Finding]) -> Finding:
    """All of them as one; without any, a finding that passes."""
    return sum(findings, Finding())


def fault(text: str, gpu: GpuPlace | None = None, *, stands_alone: bool = False) -> Finding:
    """A finding of one fault."""
    return Finding(faults=(NodeFault(text, gpu, stands_alone),))


def unknown(text: str, gpu: GpuPlace | None = None) -> Finding:
    """A finding of one thing that is not known."""
    return Finding(unknown=(_labelled(text, gpu),))


def note(text: str, gpu: GpuPlace | None = None) -> Finding:
    """A finding of one thing to be told."""
    return Finding(notes=(_labelled(text, gpu),))


def _labelled(text: str, gpu: GpuPlace | None) -> str:
    return f"{gpu.label}: {text}" if gpu else text


@dataclass(frozen=True)
class CheckResult:
    """A check of all nodes.

    Attributes:
        outcome: ``passed`` if every planned node passes; ``failed`` if one has a fault; else ``not_measured``.
        share: of the planned nodes, those that pass: 0 … 1; None if nothing is known of any.
        reason: one sentence: why this outcome.
        is_partly_known: whether it failed, and something was not known besides.
    """

    name: str
    outcome: CheckOutcome
    share: float | None
    reason: str
    culprits: tuple[Culprit, ...] = ()
    notes: tuple[str, ...] = ()
    is_partly_known: bool = False


def concluded(name: str, findings: Mapping[str, Finding], hosts_planned: int) -> CheckResult:
    """What findings on nodes, by host, come to, where there should be so many nodes."""
    planned, in_order = max(hosts_planned, len(findings)), sorted(findings.items())
    faults = [(host, one) for host, finding in in_order for one in finding.faults]
    untold = [f"{host}: {text}" for host, finding in in_order for text in finding.unknown]
    notes = [f"{host}: {text}" for host, finding in in_order for text in finding.notes]
    if planned > len(findings):
        untold.append(f"nothing is known of {planned - len(findings)} of {_nodes(planned)}")
    share = sum(finding.passes for finding in findings.values()) / planned if findings else None
    if faults:
        told = [f"{host}: {_labelled(one.text, one.gpu)}" for host, one in faults]
        reason = f"{len(dict(faults))} of {_nodes(planned)} not as expected: {_listed(told)}"
        notes += [f"also not known: {_listed(untold)}"] if untold else []
        doubts = _doubts(findings, planned)
        notes += [f"{text} No node is certain to be at fault" for text in doubts.values()]
        culprits = tuple(_culprit(host, one, doubts) for host, one in faults)
        return CheckResult(name, "failed", share, reason, culprits, tuple(notes), is_partly_known=bool(untold))
    if untold or not findings:
        reason = f"cannot be told: {_listed(untold) or 'nothing is known of any node'}"
        return CheckResult(name, "not_measured", share, reason, (), tuple(notes))
    reason = f"{'' if planned == 1 else 'all '}{_nodes(planned)} as expected"
    return CheckResult(name, "passed", share, reason, (), tuple(notes))


def _doubts(findings: Mapping[str, Finding], planned: int) -> dict[_Doubt, str]:
    """Whether most nodes, or most GPUs, fail alike, so that the expectation, or what they share, may be at fault.

    The rule of `failed_nodes.with_failed_nodes`; a node where some of its GPUs fail has the others to compare with.
    A single node is no majority: what it is not is its own fault.
    """
    compared = [(host, one) for host, finding in findings.items() for one in finding.faults if not one.stands_alone]
    nodes = len({host for host, one in compared if one.gpu is None})
    gpus = {(host, one.gpu) for host, one in compared if one.gpu is not None}
    has_most_nodes = 2 * len({host for host, _ in gpus}) > planned
    outside = sum(any(one.is_from_outside for one in finding.faults) for finding in findings.values())
    doubts: dict[_Doubt, str] = {}
    if 2 * outside > planned:
        doubts["outside"] = f"{outside} of {planned} nodes are held down from outside: is it the facility?"
    if planned > 1 and 2 * nodes > planned:
        doubts["nodes"] = f"{nodes} of {planned} nodes fail alike: is the expectation right?"
    if has_most_nodes and 2 * len(gpus) > sum(finding.gpus for finding in findings.values()):
        doubts["gpus"] = f"{len(gpus)} GPUs of most nodes fail alike: is the expectation right?"
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
