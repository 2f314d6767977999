"""A SKU's requirements, and the rules that make a requirement meaningful."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pytest_ddpscale.plan.arm import Arm, OneGpu, Placement
from pytest_ddpscale.plan.layout import WorldSize
from pytest_ddpscale.plan.metric_catalogue import METRICS, NODE_CHECK, THROUGHPUT_PER_GPU, Metric
from pytest_ddpscale.plan.node_check import NODE_CHECKS
from pytest_ddpscale.plan.operation import operation
from pytest_ddpscale.plan.words import Precision
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.thresholds.parts import Detect, Node, Peak
from pytest_ddpscale.thresholds.waiver import Waiver

Severity = Literal["fail", "warn"]
BeyondNode = Literal["missing", "dropped"]
RequirementKey = tuple[str, str, WorldSize, Placement, str | None]
_CORRUPT = "memory errors corrupt data"
_CHECKS_THAT_STAND = {
    "gpus": "GPUs that are missing or do not answer are not tested",
    "ecc": _CORRUPT,
    "ecc_under_load": _CORRUPT,
    "transport": "it also covers links between nodes",
}
# A lower bound of 95 instead of 0.95 would fail every machine; 1.5 is impossible but unambiguous.
LARGEST_FRACTION_BOUND = 2.0
# An upper bound of 2 instead of 2 %, or of 1 instead of 1 %, would pass every machine.
LEAST_SENSELESS_UPPER_FRACTION_BOUND = 1.0


@dataclass(frozen=True)
class Source:
    """Where a number comes from.

    Attributes:
        measured: the published value, in the metric's unit; None if none was published.
        margin_pct: distance of the bound from it, in per cent of it; None if the bound is stated.
        reference: who published it, and for what.
        reasoning: why this number, or this distance from the published value.
        is_site: whether a site set the bound: its row is not in the packaged file.
    """

    measured: float | None = None
    margin_pct: float | None = None
    reference: str | None = None
    reasoning: str | None = None
    is_site: bool = False


@dataclass(frozen=True)
class Requirement:
    """One bound for one world size, one test item.

    Attributes:
        metric: a name in the catalogue.
        bound: the bound, in the metric's unit.
        source: origin of the bound.
        workload, probe, check: its subject: one of them, or none if it is about a whole node.
        world_size: ranks that work together: a number; `node`, all GPUs of one node; `2 nodes`; `all`.
        placement: ``packed`` fills a node before the next; ``spread`` deals the ranks to all nodes in turn.
        versus: the SKU that a generation_ratio is relative to.
        severity: ``warn`` is reported and never rejects.
        provisional: whether it lacks a published value, so that it cannot accept a cluster on its own.
        where: its ``file:line``.
        waiver: a waiver of its failure, or None.
        one_gpu: how the source trained the single GPU of the value or of its baseline; ``alone`` in all other cases.
        sound: what a sound machine is thought to reach, where that is not the published value; judges nothing.

    Raises:
        ValueError: it does not fit its metric, or its bound is meaningless.
    """

    metric: str
    bound: float
    source: Source
    workload: str = ""
    probe: str = ""
    check: str = ""
    world_size: WorldSize = 1
    placement: Placement = "packed"
    versus: str | None = None
    severity: Severity = "fail"
    provisional: bool = False
    where: str = ""
    waiver: Waiver | None = None
    one_gpu: OneGpu = "alone"
    sound: float | None = None

    def __post_init__(self) -> None:
        wrong = next(self._mistakes(), "")
        if wrong:
            raise ValueError(wrong)

    def _mistakes(self) -> Iterator[str]:
        """What is wrong; what comes after the first mistake is told as if that were right."""
        definition, metric, bound, size = self.definition, self.metric, self.bound, self.world_size
        wanted, is_upper = definition.subject, definition.upper_bound
        for kind, key in (("workload", "of"), ("probe", "probe"), ("check", "check")):
            if (getattr(self, kind) != "") != (kind == wanted):
                yield f"{metric} {'needs' if kind == wanted else 'takes no'} `{key}: NAME`"
        ranks = size if isinstance(size, int) else None
        if wanted == "probe":
            kind = operation(self.probe).kind
            Arm(self.probe, ranks or 2)  # refuses a world size that the operation cannot have
            if kind not in definition.probes:
                yield f"{self.probe} does not measure {metric}; expected {', '.join(definition.probes)}"
        if definition.compares_places and ranks is None and size != "node":
            yield f"{metric} compares places inside a node; expected {metric}: {{node: NUMBER}}"
        if wanted != "workload" and self.placement == "spread":
            yield f"{metric} does not depend on placement; expected no `placement: spread`"
        if wanted in ("check", "node") and size != 1:
            yield f"{metric} is about whole nodes; expected no world size"
        if definition.takes_versus != (self.versus is not None):
            yield f"{metric} {'needs' if definition.takes_versus else 'takes no'} `versus: SKU`"
        least, most = definition.minimum_world_size, definition.maximum_world_size
        if ranks is None and definition.scaling == "strong":
            yield f"{metric} shares one batch; expected a number as world size"
        if most is not None if ranks is None else not least <= ranks <= (most or ranks):
            expected = f"at least {least}" if most is None else f"{least}" if least == most else f"{least} to {most}"
            yield f"{metric} has no world size {size}; expected {expected}"
        if definition.only_bound is not None and bound != definition.only_bound:
            yield f"bound {bound:g} for {metric}: ranks must agree bit for bit; expected {definition.only_bound:g}"
        senseless = bound >= LEAST_SENSELESS_UPPER_FRACTION_BOUND if is_upper else bound > LARGEST_FRACTION_BOUND
        if definition.unit == "fraction" and senseless:
            yield f"bound {bound:g} for {metric} looks like per cent; expected a fraction, such as {bound / 100:g}"
        lowest, highest = definition.range_at(ranks or 1)
        measured, sound = self.source.measured, self.sound
        if measured is not None and (measured > highest or (measured == 0 and lowest > 0)):
            yield f"published {metric} of {measured:g} is impossible; expected a measured one"
        unit = "" if definition.unit in ("fraction", "x") else f" {definition.unit}"
        for mistake, is_so in (
            ("fail", bound >= highest if is_upper else bound < lowest),
            ("pass", bound < lowest if is_upper else bound > highest),
        ):
            if is_so:
                expected = f"no machine could {mistake} it; expected {lowest:g} to {highest:g}{unit}"
                yield f"bound {bound:g} for {metric} is meaningless: {expected}"
        if sound is not None and (sound <= 0 or (sound > bound if is_upper else sound < bound)):
            yield f"`sound` of {sound:g} would miss the bound; expected at {'most' if is_upper else 'least'} {bound:g}"
        if sound is not None and sound > highest:
            yield f"`sound` of {sound:g} is impossible; expected at most {highest:g}"
        if self.placement == "spread" and size == 1:
            yield "placement spread is not defined for world size 1; expected at least 2"

    @property
    def sound_value(self) -> float | None:
        """What a sound machine reaches: the stated value, else the published one; None if neither is known."""
        return self.source.measured if self.sound is None else self.sound

    @property
    def smallest_fault(self) -> float | None:
        """The least loss that misses the bound, as a fraction of a sound machine's value; 0.05 if it has to lose 5 %.

        For a metric of which less is better, the least excess. 0 if a sound machine only just reaches the bound. None
        if a sound machine's value is not known, or 0.
        """
        sound = self.sound_value
        if not sound:
            return None
        return max(0.0, self.bound / sound - 1 if self.definition.upper_bound else 1 - self.bound / sound)

    @property
    def definition(self) -> Metric:
        """The metric's entry in the catalogue."""
        return METRICS[self.metric]

    @property
    def times_one_gpu(self) -> bool:
        """Whether it times one GPU that the source may have trained alone or under DDP."""
        return self.definition.times_one_gpu(is_of_one=self.world_size == 1)

    @property
    def one_gpu_text(self) -> str:
        """``relative to ddp@1, one GPU under DDP``; empty if it times no such GPU."""
        if not self.times_one_gpu:
            return ""
        text = "ddp@1, one GPU under DDP" if self.one_gpu == "ddp" else "one GPU without DDP"
        return text if self.world_size == 1 else f"relative to {text}"

    @property
    def source_text(self) -> str:
        """Where its bound comes from, for the reader."""
        source = self.source
        parts = (
            "the site's bound" if source.is_site else "",
            "" if source.measured is None else f"measured {source.measured:g}",
            "" if source.margin_pct is None else f"margin {source.margin_pct:g} %",
            source.reference, source.reasoning, self.one_gpu_text,
        )  # fmt: skip
        return "; ".join(part for part in parts if part)

    @property
    def subject(self) -> str:
        """Name of its workload, probe or check; empty if it is about a whole node."""
        return self.workload or self.probe or self.check

    def key(self) -> RequirementKey:
        """Identifies the measured value; a SKU has one requirement for each."""
        return (self.metric, self.subject, self.world_size, self.placement, self.versus)

    def __str__(self) -> str:
        placed = ", spread" if self.placement == "spread" else ""
        return f"{self.metric} of {self.subject or 'nodes'} at world size {self.world_size}{placed}"


def why_it_stands(requirement: Requirement) -> str:
    """Why no site may waive a requirement, remove it or let it only warn; empty if one may."""
    is_beyond_node = isinstance(requirement.world_size, str) and requirement.world_size != "node"
    if is_beyond_node or requirement.placement == "spread":
        return "it covers links between nodes"
    if requirement.definition.compares_results:
        return "ranks with different results compute wrong ones"
    return _CHECKS_THAT_STAND.get(requirement.check, "")


def why_never_waived(requirement: Requirement) -> str:
    """Why a requirement can never be waived; empty if it can."""
    only_warns = requirement.severity == "warn" and not requirement.definition.reads_utilization  # may be unreadable
    return why_it_stands(requirement) or ("it only warns" if only_warns else "")


def check_of_nodes(name: str, severity: Severity, where: str = "") -> Requirement:
    """The requirement that every node passes a check."""
    source = Source(reasoning=f"a yes/no check, no published value: {NODE_CHECKS[name].meaning}")
    return Requirement(NODE_CHECK.name, 1.0, source, check=name, severity=severity, provisional=True, where=where)


@dataclass(frozen=True)
class PeerLimits:
    """Limits as fractions, 0.05 for 5 %; None if places are not compared.

    Attributes:
        computing: GPUs, each by its own forward passes.
        nodes: nodes, each by the median of its GPUs.
        memory: copies within the memory of a GPU.
        host: copies from and to the host.
        pairs: pairs of GPUs in a node.
    """

    computing: float | None = None
    nodes: float | None = None
    memory: float | None = None
    host: float | None = None
    pairs: float | None = None


NO_LIMITS = PeerLimits()


@dataclass(frozen=True)
class Sku:
    """One GPU model and its requirements.

    Attributes:
        description: full name for readers.
        detect: how to recognise a device.
        aliases: additional names.
        peak, node: data-sheet values of a GPU and of a node.
        workloads: workloads of its requirements, by name.
        beyond_node: what to do with a world size larger than a node, given as a number: ``missing`` (never measured) or
            ``dropped`` (no requirement).
        peers: by how much places may be slower than their peers.
        environment: environment variables that the site sets on purpose, with its reasons.
        requirements: node checks first, as their results come first; then in the order of the file.
    """

    description: str
    detect: Detect
    aliases: tuple[str, ...] = ()
    peak: Peak | None = None
    node: Node | None = None
    workloads: Mapping[str, Workload] = field(default_factory=dict)
    beyond_node: BeyondNode = "missing"
    requirements: tuple[Requirement, ...] = ()
    peers: PeerLimits = NO_LIMITS
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def checks(self) -> dict[str, Severity]:
        """Severity of each node check, by name."""
        return {requirement.check: requirement.severity for requirement in self.requirements if requirement.check}

    def unit_of(self, requirement: Requirement) -> str:
        """Unit of a requirement's bound."""
        workload = self.workloads.get(requirement.workload)
        return requirement.definition.unit_of(workload.family) if workload else requirement.definition.unit

    def peak_tflops(self, workload: Workload) -> float | None:
        """Dense peak of one GPU in the workload's precision, in TFLOPS; None if it is not known."""
        precision: Precision = workload.precision
        return None if self.peak is None else self.peak.tflops(precision)


@dataclass(frozen=True)
class Thresholds:
    """The valid SKUs of a thresholds file, by name."""

    skus: Mapping[str, Sku]

    def canonical_name(self, name: str) -> str | None:
        """The SKU with this name or alias, ignoring case; None if there is none."""
        wanted = name.casefold()
        named = (sku for sku, entry in self.skus.items() if wanted in map(str.casefold, (sku, *entry.aliases)))
        return next(named, None)

    def reference_throughput(self, requirement: Requirement) -> tuple[float, Source]:
        """Throughput per GPU of the reference generation for a generation_ratio.

        Returns:
            samples/s per GPU published for `requirement.versus` and the workload of the same name, and its source.

        Raises:
            LookupError: the reference has no such value; this cannot happen with a loaded file, which was checked.
        """
        name = requirement.versus or ""
        reference = self.skus[name]
        wanted = (THROUGHPUT_PER_GPU.name, requirement.workload, requirement.world_size, requirement.placement, None)
        for candidate in reference.requirements:
            if candidate.key() == wanted and candidate.source.measured is not None:
                return candidate.source.measured, candidate.source
        raise LookupError(f"{name} publishes no {THROUGHPUT_PER_GPU.name} for {requirement.workload}")
