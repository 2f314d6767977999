"""A simulated cluster: its SKU, its size, and its requirements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import RANK_UNIFORMITY, WEAK_SCALING_EFFICIENCY
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES, Pace, Question
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.simulate.allreduce import LINK_EFFICIENCY, LINK_LATENCY_S, NIC_GBPS, NIC_LATENCY_S, Link, Topology
from pytest_ddpscale.simulate.models import UNWAITED
from pytest_ddpscale.simulate.performance import Noise, Performance
from pytest_ddpscale.simulate.sound_machine import expectation_of, expected_value
from pytest_ddpscale.simulate.spread import ALIKE, NodeSpread
from pytest_ddpscale.thresholds.cases import (
    AnyCase,
    Case,
    NodeCase,
    cases_for,
    device_type,
    expected_by,
    node_expectation,
    plan_of_cases,
    training_cases,
)
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Sku

MOST_GPUS = 1_000_000
# Relative standard deviation of a round: for GPUs from published runs, whose steps vary by 0.1 to 0.6 %; for CPUs from
# a shared machine.
_ROUND_SD: dict[DeviceType, float] = {"cuda": 0.003, "cpu": 0.02}
# Beyond this many GPUs, blocks have the fewest steps, runs the fewest rounds, and GPUs no telemetry; otherwise files
# would grow to gigabytes.
MOST_GPUS_AT_FULL_PACE = 1024
_CPU_LINK_GBPS = 1.0  # gloo over loopback, two processes on one machine
_OF_PEAK = 0.7  # share of the peak that a probe without a requirement reaches


@dataclass(frozen=True)
class ClusterOptions:
    """Options of a simulated cluster.

    Attributes:
        sku: name or alias.
        gpus: None for as many as the largest requirement needs.
        gpus_per_node: of each node.
        nic_gbps: bandwidth between nodes, in GB/s for each GPU in one direction.
        round_noise: relative standard deviation of a round; None for the device type's default.
        workloads: None for all.
        spread: differences between nodes, GPUs and launches.
        correlation: between successive rounds of an arm.
        hiccups: share of blocks that take up to 10 standard deviations of a round longer.
        unwaited: efficiency above the published one without any wait for the slowest GPU; see `Performance`.
    """

    sku: str
    gpus: int | None = None
    gpus_per_node: int = 8
    nic_gbps: float = NIC_GBPS
    round_noise: float | None = None
    workloads: tuple[str, ...] | None = None
    spread: NodeSpread = ALIKE
    correlation: float = 0.0
    hiccups: float = 0.0
    unwaited: float = UNWAITED


@dataclass(frozen=True)
class SimulatedCluster:
    """A sound machine of a SKU, ready to be simulated, with the requirements that its GPUs can be judged by."""

    thresholds: ThresholdsFile
    sku: str
    gpus: int
    cases: tuple[AnyCase, ...]
    performance: Performance

    @property
    def layout(self) -> Layout:
        """Which GPUs form a node."""
        return _layout(self.gpus, self.performance.topology.gpus_per_node)

    @property
    def device_type(self) -> DeviceType:
        """``cpu`` or ``cuda``."""
        return self.performance.device_type

    def plan(
        self,
        rounds: int | None = None,
        world_sizes: Sequence[int] = (),
        seed: int = 0,
        *,
        short_blocks: bool = False,
    ) -> Plan:
        """Plan what a session would measure here, and weak scaling of every workload at further world sizes.

        Args:
            rounds: of every study; None for the most rounds of a real run.
            world_sizes: the further world sizes.
            seed: of the plan.
            short_blocks: blocks with the fewest steps, as always on very large clusters.
        """
        workloads = dict.fromkeys(case.workload for case in training_cases(self.cases))
        # Weak scaling shows the loss at a world size, rank uniformity the slow rank.
        metrics = WEAK_SCALING_EFFICIENCY, RANK_UNIFORMITY
        sizes = [size for size in world_sizes if size > 1]
        more = [Question(metric, w, size) for w in workloads for size in sizes for metric in metrics]
        layout = self.layout
        empty = Plan(self.sku, self.device_type, (), seed, layout.nodes, layout.ranks_per_node)
        return plan_of_cases(empty, self.cases, self._pace(rounds, short_blocks=short_blocks), more)

    def probe_values(self, probes: Sequence[Arm]) -> dict[Arm, float]:
        """Values of a sound cluster in each probe, required or not, in the unit of its metric: TFLOPS or GB/s."""
        asked: dict[Arm, float] = {}
        for case in self.cases:
            is_value = not case.requirement.definition.compares_places  # but a ratio of places
            if isinstance(case, NodeCase) and case.probe is not None and is_value:
                value = min(expected_value(case.requirement), case.peak or math.inf)
                asked[case.probe] = max(asked.get(case.probe, 0.0), value)
        return {probe: asked.get(probe) or self._unasked(probe) for probe in probes}

    def port_gbps(self, plan: Plan) -> float | None:
        """Line rate of each GPU's port in Gb/s, of which sound nodes reach 0.92 or more; None if they send nothing."""
        whole, layout = {"send-recv": 1, "all-reduce": plan.ranks_per_node or 1}, plan.layout
        values = self.probe_values(plan.probes.arms if plan.probes else ())
        kinds = {one: one.operation.kind for one in values if not layout.fits_node(one)}
        gbps = (values[one] / whole[kind] for one, kind in kinds.items() if kind in whole)
        return round(8 / 0.92 * min(gbps, default=0.0), 1) or None

    def _unasked(self, probe: Arm) -> float:
        """Rough value of a probe without a requirement."""
        peak, topology = self.thresholds.thresholds.skus[self.sku].peak, self.performance.topology
        if probe.operation.message_bytes is not None:
            link = topology.inside if probe.world_size <= topology.gpus_per_node else topology.between
            return link.bytes_per_s / 1e9
        if probe.operation.kind == "matmul":
            return _OF_PEAK * ((peak.fp16_tflops if peak else None) or 1.0)
        return _OF_PEAK * ((peak.memory_bandwidth_gbps if peak else None) or 10.0)

    def expectation(self, plan: Plan) -> NodeExpectation:
        """What the SKU and a plan expect of every node."""
        return expected_by(plan, node_expectation(self.thresholds.thresholds.skus[self.sku]))

    @property
    def is_watched(self) -> bool:
        """Whether its GPUs have telemetry."""
        return self.device_type == "cuda" and self.gpus <= MOST_GPUS_AT_FULL_PACE

    def _pace(self, rounds: int | None, *, short_blocks: bool) -> Pace:
        pace = PACES[self.device_type]
        if self.gpus > MOST_GPUS_AT_FULL_PACE:
            rounds, short_blocks = rounds or FEWEST_ROUNDS, True
        if short_blocks:
            pace = replace(pace, block_s=0.0)
        return replace(pace, rounds=rounds, uncompared_rounds=rounds) if rounds else pace


def open_cluster(thresholds: ThresholdsFile, options: ClusterOptions) -> SimulatedCluster:
    """The cluster for these options.

    Raises:
        SkuError: the thresholds do not have the SKU.
        OptionError: a number is out of range, or the thresholds lack the speed of a workload.
    """
    name = thresholds.sku_name(options.sku)
    sku = thresholds.thresholds.skus[name]
    _check_workloads(options, sku)
    gpus = options.gpus
    if gpus is None:
        one_node = Layout(1, max(1, options.gpus_per_node))
        trained = training_cases(_wanted(thresholds, name, one_node, options))
        gpus = max((case.world_size for case in trained), default=1)
    _check(options, gpus)
    found = _wanted(thresholds, name, _layout(gpus, options.gpus_per_node), options)
    cases = tuple(case for case in found if case.world_size <= gpus and not case.missing)
    workloads = dict.fromkeys(case.workload for case in training_cases(cases))
    if not workloads:
        on_workloads = f" on {', '.join(options.workloads)}" if options.workloads is not None else ""
        raise OptionError(
            "--gpus, --workloads", f"{name} has no training requirement{on_workloads} for {gpus} or fewer GPUs",
            f"GPUs and workloads of at least one in {thresholds.path}",
        )  # fmt: skip
    kind = device_type(sku)
    performance = Performance(
        device_type=kind,
        topology=_topology(sku, options),
        expectations={
            workload.name: expectation_of(workload, name, thresholds, options.gpus_per_node) for workload in workloads
        },
        noise=Noise(
            _ROUND_SD[kind] if options.round_noise is None else options.round_noise,
            correlation=options.correlation,
            hiccup_share=options.hiccups,
        ),
        spread=options.spread,
        unwaited=options.unwaited,
    )
    return SimulatedCluster(thresholds, name, gpus, cases, performance)


def _layout(gpus: int, gpus_per_node: int) -> Layout:
    return Layout(-(-gpus // gpus_per_node), min(gpus, gpus_per_node))


def _topology(sku: Sku, options: ClusterOptions) -> Topology:
    link_gbps = sku.peak.link_bandwidth_gbps if sku.peak and sku.peak.link_bandwidth_gbps else _CPU_LINK_GBPS
    inside = Link(LINK_LATENCY_S, link_gbps * 1e9 * LINK_EFFICIENCY)
    between = Link(NIC_LATENCY_S, options.nic_gbps * 1e9 * LINK_EFFICIENCY)
    return Topology(options.gpus_per_node, inside, between)


def _wanted(thresholds: ThresholdsFile, name: str, layout: Layout, options: ClusterOptions) -> list[AnyCase]:
    """Cases of the nodes: training on the selected workloads, and everything without training."""
    named = options.workloads
    cases = cases_for(thresholds, name, layout)
    return [case for case in cases if named is None or not isinstance(case, Case) or case.workload.name in named]


def _check_workloads(options: ClusterOptions, sku: Sku) -> None:
    if options.workloads is None:
        return
    unknown = [name for name in options.workloads if name not in sku.workloads]
    if unknown or not options.workloads:
        found = f"found {unknown[0]!r}" if unknown else "found no name"
        raise OptionError("--workloads", found, f"some of {', '.join(sku.workloads)}")


def _check(options: ClusterOptions, gpus: int) -> None:
    if not 1 <= gpus <= MOST_GPUS:
        raise OptionError("--gpus", f"found {gpus}", f"a whole number from 1 to {MOST_GPUS}")
    per_node = options.gpus_per_node
    if per_node < 1:
        raise OptionError("--gpus-per-node", f"found {per_node}", "a whole number from 1 up")
    if gpus < per_node != ClusterOptions.gpus_per_node:
        raise OptionError("--gpus-per-node", f"found {per_node}", f"at most the {gpus} GPUs of the cluster")
    if gpus > per_node and gpus % per_node:
        raise OptionError("--gpus", f"found {gpus}", f"a multiple of {per_node}, the GPUs per node")
    _check_noise(options)


def _check_noise(options: ClusterOptions) -> None:
    """Raises OptionError."""
    for option, found, most, example in (
        ("--noise", options.round_noise, 0.2, "0.003"),
        ("--gpu-spread", options.spread.gpu_sd, 0.2, "0.01"),
        ("--node-spread", options.spread.node_sd, 0.2, "0.005"),
        ("--launch-spread", options.spread.launch_sd, 0.2, "0.002"),
        ("--correlation", options.correlation, 0.99, "0.5"),
        ("--hiccups", options.hiccups, 1.0, "0.05"),
    ):
        if found is not None and not 0 <= found <= most:
            raise OptionError(option, f"found {found:g}", f"a fraction from 0 to {most:g}, such as {example}")
    if options.spread.seed < 0:
        raise OptionError("--nodes-seed", f"found {options.spread.seed}", "a whole number from 0 up")
