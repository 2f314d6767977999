"""Cases, one per requirement of a SKU: the requirement, its workload or probe, and the name of its test item.

Also what follows from cases and SKU: the plan of the measurements, and the expected state of every node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, get_args

from msgspec import convert, json

from pytest_ddpscale.families import read_family
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import NODE_UNIFORMITY, THROUGHPUT_PER_GPU
from pytest_ddpscale.plan.node_check import NODE_CHECKS, NodeExpectation
from pytest_ddpscale.plan.operation import KINDS, operation
from pytest_ddpscale.plan.planner import Pace, Question, build_plan
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.words import DeviceType, Precision
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import NO_LIMITS, PeerLimits, Requirement, Sku, Source
from pytest_ddpscale.thresholds.parts import Node


@dataclass(frozen=True)
class Case:
    """A requirement on the training of a workload, ready to be planned and judged.

    Attributes:
        requirement: the requirement of thresholds.yaml.
        world_size: number of ranks here.
        workload: the trained workload.
        name: ``resnet152-fp16-8gpu``, ``…-8gpu-spread`` or ``…-all``: the bracketed part of the test's name, unique
            within a metric and independent of the machine.
        where: ``file:line`` of the requirement.
        reference_samples_per_s: throughput per GPU of the reference generation; None without `versus`.
        reference_source: its source; empty without one.
        peers: by how much ranks and nodes may be slower than their peers.
        environment: environment variables that the site sets on purpose, with its reasons.
        peak_tflops: dense peak of one GPU in the workload's precision; None if unknown.
        floor_samples_per_s: required throughput of one GPU alone; None without a requirement.
        missing: why these nodes cannot measure it; empty if they can.
    """

    requirement: Requirement
    world_size: int
    workload: Workload
    name: str
    where: str
    reference_samples_per_s: float | None = None
    peak_tflops: float | None = None
    floor_samples_per_s: float | None = None
    missing: str = ""
    reference_source: str = ""
    peers: PeerLimits = NO_LIMITS
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> str:
        """``weak_scaling_efficiency[resnet152-fp16-8gpu]``, unique in a run."""
        return f"{self.requirement.metric}[{self.name}]"

    @property
    def unit(self) -> str:
        """Unit of its bound."""
        return self.requirement.definition.unit_of(self.workload.family)

    @property
    def question(self) -> Question:
        """The measurement needed to judge it."""
        requirement = self.requirement
        key = requirement.definition, self.workload, self.world_size, requirement.placement
        return Question(*key, requirement.one_gpu)

    @property
    def constant(self) -> float:
        """The number of the SKU to which the metric is relative; 1 without one."""
        definition = self.requirement.definition
        if not definition.takes_versus and not definition.takes_peak:
            return 1.0
        constant = self.reference_samples_per_s if definition.takes_versus else self.peak_tflops
        assert constant is not None  # checked by the thresholds model
        return constant


@dataclass(frozen=True)
class NodeCase:
    """A requirement without training: on a probe, a node check, or a node's earlier results.

    Attributes:
        requirement: a requirement of thresholds.yaml.
        name: ``all-reduce-32mib-8gpu``, ``ecc``: the bracketed part of the test's name, unique within a metric.
        where: its ``file:line``.
        expected: the SKU's nodes, for checks.
        peers: as in `Case`; `environment` too.
        probe: the probe; None for a metric that no probe measures.
        peak: data-sheet value of the probe's metric, in its unit; None if unknown.
        missing: why these nodes cannot measure it; empty if they can.
    """

    requirement: Requirement
    name: str
    where: str
    expected: NodeExpectation
    peers: PeerLimits = NO_LIMITS
    probe: Arm | None = None
    peak: float | None = None
    missing: str = ""
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def unit(self) -> str:
        """Unit of its bound."""
        return self.requirement.definition.unit

    @property
    def world_size(self) -> int:
        """Ranks that communicate here."""
        return self.probe.world_size if self.probe else 1

    @property
    def id(self) -> str:
        """``busbw_gbps[all-reduce-32mib-8gpu]``, unique in a run."""
        return f"{self.requirement.metric}[{self.name}]"


AnyCase: TypeAlias = Case | NodeCase
_FEWEST_PLACES = 4


def json_of(cases: Iterable[AnyCase]) -> tuple[dict[str, Any], ...]:
    """Compiled requirements in JSON types, as in plan.json and verdicts.json."""
    return tuple(json.decode(json.encode([*cases])))


def cases_of(requirements: Iterable[dict[str, Any]]) -> list[AnyCase]:
    """The requirements from their JSON. Raises ValueError if it is of another form."""
    as_case = partial(convert, type=Case, dec_hook=read_family)
    return [
        as_case(requirement) if "workload" in requirement else convert(requirement, NodeCase)
        for requirement in requirements
    ]


def device_type(sku: Sku) -> DeviceType:
    """``cpu`` or ``cuda``."""
    return "cpu" if sku.detect.device == "cpu" else "cuda"


def cases_for(file: ThresholdsFile, sku_name: str, layout: Layout) -> list[AnyCase]:
    """The cases of a SKU: its checks, then its requirements in the order of the file.

    Args:
        file: the thresholds file.
        sku_name: canonical name.
        layout: the available ranks, which define `node`, `2 nodes` and `all`. Requirements on several nodes are dropped
            on a single node, and those that need several ranks on a node with one rank.
    """
    sku = file.thresholds.skus[sku_name]
    unit = "ranks" if device_type(sku) == "cpu" else "GPUs"
    cases: list[AnyCase] = []
    for requirement in sku.requirements:
        size, definition = requirement.world_size, requirement.definition
        ranks = layout.ranks_in(size)
        if ranks is None or ranks < definition.minimum_world_size or not _has_peers(requirement, ranks, layout):
            continue
        is_number = isinstance(size, int) and requirement.placement == "packed" and layout.nodes > 1
        is_beyond_node = is_number and ranks > layout.ranks_per_node
        if is_beyond_node and sku.beyond_node == "dropped":
            continue
        missing = f"needs {size} {unit} on one node; a node has {layout.ranks_per_node} here"
        shared: dict[str, Any] = {
            "name": _name(sku, requirement),
            "where": requirement.where,
            "missing": missing if is_beyond_node else "",
            "peers": sku.peers,
            "environment": sku.environment,
        }
        if definition.subject != "workload":
            probe = Arm(requirement.probe, ranks) if requirement.probe else None
            peak = None  # of links, too, because a collective's bandwidth depends on its algorithm
            if sku.peak and probe and not definition.compares_places:
                kind, precision = probe.operation.kind, probe.operation.precision
                peak = sku.peak.tflops(precision) if precision and precision != "fp8" else None
                peak = sku.peak.memory_bandwidth_gbps if kind == "memory-copy" else peak
            cases.append(NodeCase(requirement, expected=node_expectation(sku), probe=probe, peak=peak, **shared))
            continue
        workload = sku.workloads[requirement.workload]
        reference, source = (
            file.thresholds.reference_throughput(requirement) if requirement.versus else (None, Source())
        )
        floors = [r.bound for r in sku.requirements if r.key()[:3] == (THROUGHPUT_PER_GPU.name, workload.name, 1)]
        cases.append(
            Case(
                requirement,
                ranks,
                workload,
                reference_samples_per_s=reference,
                reference_source=source.reference or "",
                peak_tflops=sku.peak_tflops(workload),
                floor_samples_per_s=min(floors, default=None),
                **shared,
            )
        )
    return cases


def _has_peers(requirement: Requirement, ranks: int, layout: Layout) -> bool:
    """Whether there are enough places to compare: fewer could neither pass nor fail."""
    if requirement.definition.compares_places:
        kind = operation(requirement.probe)
        if KINDS[kind.kind].peers == "memory":
            return layout.world_size >= _FEWEST_PLACES
        is_possible = kind.is_single_device or 2 <= ranks <= layout.ranks_per_node
        return is_possible and layout.nodes >= _FEWEST_PLACES
    if not requirement.definition.reads_own_pace:
        return True
    places = layout.nodes if requirement.definition is NODE_UNIFORMITY else layout.nodes * ranks
    return places >= _FEWEST_PLACES


def training_cases(cases: Iterable[AnyCase]) -> list[Case]:
    """The cases that train a workload."""
    return [case for case in cases if isinstance(case, Case)]


def nightly_uniformity(cases: Iterable[AnyCase]) -> list[Case]:
    """Uniformity that a nightly check measures: of the workloads whose replicas it compares anyway, else of the first.

    A GPU that is slow is slow in every workload, and a nightly check has five minutes.
    """
    training = training_cases(cases)
    uniform = [case for case in training if case.requirement.definition.reads_own_pace]
    trained = {case.workload for case in training if case.requirement.definition.compares_results}
    return [case for case in uniform if case.workload in (trained or {uniform[0].workload})]


def _name(sku: Sku, requirement: Requirement) -> str:
    name, size = requirement.subject or "node", requirement.world_size
    if isinstance(size, str):
        name += f"-{size.replace(' ', '')}"
    elif requirement.definition.subject == "workload" or size > 1:
        name += f"-{size}{'rank' if device_type(sku) == 'cpu' else 'gpu'}"
    if requirement.placement == "spread":
        name += "-spread"
    if requirement.versus:
        name += f"-vs-{requirement.versus}"
    return name


def plan_of_cases(empty: Plan, cases: Sequence[AnyCase], pace: Pace, more: Sequence[Question] = ()) -> Plan:
    """Fill an empty plan with the cases, with the measurements that they need, and with further questions."""
    others = [case for case in cases if isinstance(case, NodeCase)]
    wanted = [case.probe for case in others if case.probe is not None]
    checks = [case.requirement.check for case in others if case.requirement.check]
    questions = [*(case.question for case in training_cases(cases)), *more]
    empty = replace(empty, survey=bool(checks), requirements=json_of(cases))
    paced = [case for case in training_cases(cases) if case.requirement.definition is THROUGHPUT_PER_GPU]
    rejecting = [case.workload for case in paced if case.requirement.severity == "fail"]
    stretched = rejecting or [case.workload for case in paced]
    plan = build_plan(empty, questions, pace, wanted, stretched)
    # Checks under load need every rank to compute or communicate.
    read = {NODE_CHECKS[name].reads for name in checks}
    layout, probes = plan.layout, plan.probes.arms if plan.probes else ()
    arms = [arm for study in plan.studies for arm in study.arms]
    probed = [ranks for probe in probes for ranks in layout.groups_of_round(probe)]
    trained = [ranks for arm in arms if arm.kind == "ddp" for ranks in layout.groups(arm)]
    working = {rank for ranks in probed for rank in ranks}.union(layout.ranks(arms))
    talking = {rank for ranks in (*probed, *trained) if len(ranks) > 1 for rank in ranks}
    of_load = {"telemetry": working, "transport": talking}
    if not any(name in read and len(ranks) < layout.world_size for name, ranks in of_load.items()):
        return plan
    # Probes that put devices and links under load if no other measurement does.
    load = [Arm("matmul-fp16" if empty.device_type == "cuda" else "matmul-fp32")]
    if (ranks := empty.ranks_per_node or 1) > 1:
        load.append(Arm("all-reduce-32mib", ranks))
    return build_plan(empty, questions, pace, [*wanted, *load], stretched)


def node_expectation(sku: Sku) -> NodeExpectation:
    """The expected state of every node with a SKU, whatever is planned."""
    node = sku.node or Node()
    return NodeExpectation(
        device_type=device_type(sku),
        name_pattern=sku.detect.name,
        pci_device_ids=tuple(sku.detect.pci_device_ids),
        memory_gib=sku.detect.memory_band_gib,
        gpus_installed=node.gpus or 0,
        pcie_generation=node.pcie_generation,
        pcie_width=node.pcie_width,
        nvlinks=node.nvlinks,
        ecc=node.ecc,
        free_disk_gib=node.free_disk_gib,
    )


def expected_by(plan: Plan, expected: NodeExpectation) -> NodeExpectation:
    """The expectation, with what a plan needs of every node."""
    probed = [probe.operation.precision for probe in (plan.probes.arms if plan.probes else ())]
    used = {*probed, *(study.workload.precision for study in plan.studies)}
    return replace(
        expected,
        gpus_per_node=plan.layout.ranks_per_node,
        gpus_installed=max(expected.gpus_installed, plan.gpus_asked or 0),
        precisions=frozenset(precision for precision in get_args(Precision) if precision in used),
        crosses_nodes=not all(map(plan.fits_nodes, plan.study_ids)),
    )
