"""A simulated cluster: its SKU, its size, its requirements, and what the thresholds say of a sound machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import (
    DEVICE_UTILIZATION,
    IMAGES_PER_JOULE,
    INFERENCE_THROUGHPUT,
    PEAK_MEMORY_GIB,
    RANK_UNIFORMITY,
    STRONG_SCALING_EFFICIENCY,
    THROUGHPUT_PER_GPU,
    WEAK_SCALING_EFFICIENCY,
    Metric,
)
from pytest_ddpscale.plan.node_check import NodeExpectation
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES, Question
from pytest_ddpscale.plan.study import MOST_RANKS, Plan
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.simulate.machine import (
    DDP_OVERHEAD,
    FORWARD_SHARE,
    LINK_EFFICIENCY,
    LINK_LATENCY_S,
    NIC_LATENCY_S,
    Expectation,
    Link,
    NodeSpread,
    Noise,
    Performance,
    Topology,
)
from pytest_ddpscale.simulate.options import ClusterOptions
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
from pytest_ddpscale.thresholds.model import Requirement

# Relative standard deviation of a round: for GPUs from published runs, whose steps vary by 0.1 to 0.6 %; for CPUs from
# a shared machine.
_ROUND_SD = {"cuda": 0.003, "cpu": 0.02}
# Beyond this many GPUs, blocks have the fewest steps, runs the fewest rounds, and GPUs no telemetry; otherwise files
# would grow to gigabytes.
MOST_GPUS_AT_FULL_PACE = 1024
_CPU_LINK_GBPS = 1.0  # gloo over loopback, two processes on one machine
# A bound without a published figure is assumed to be as far from a sound machine's value as the published ones: 5 %.
MARGIN = 0.05


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
    def is_watched(self) -> bool:
        """Whether its GPUs have telemetry."""
        return self.performance.device_type == "cuda" and self.gpus <= MOST_GPUS_AT_FULL_PACE

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
        # Weak scaling shows the loss at a world size, rank uniformity the slow rank.
        more = [
            Question(metric, workload, size)
            for workload in dict.fromkeys(case.workload for case in training_cases(self.cases))
            for size in world_sizes
            for metric in (WEAK_SCALING_EFFICIENCY, RANK_UNIFORMITY)
        ]
        pace = PACES[self.performance.device_type]
        if self.gpus > MOST_GPUS_AT_FULL_PACE:
            rounds, short_blocks = rounds or FEWEST_ROUNDS, True
        if short_blocks:
            pace = replace(pace, block_s=0.0)
        if rounds:
            pace = replace(pace, rounds=rounds, uncompared_rounds=rounds)
        layout = self.layout
        empty = Plan(self.sku, self.performance.device_type, (), seed, layout.nodes, layout.ranks_per_node)
        return plan_of_cases(empty, self.cases, pace, more)

    def expectation(self, plan: Plan) -> NodeExpectation:
        """What the SKU and a plan expect of every node."""
        return expected_by(plan, node_expectation(self.thresholds.thresholds.skus[self.sku]))

    def port_gbps(self, plan: Plan) -> float | None:
        """Line rate of each GPU's port in Gb/s, of which sound nodes reach 0.92 or more; None if they send nothing."""
        whole, layout = {"send-recv": 1, "all-reduce": plan.ranks_per_node or 1}, plan.layout
        probes = [arm for arm in (plan.probes.arms if plan.probes else ()) if not layout.fits_node(arm)]
        sending = [arm for arm in probes if arm.operation.kind in whole]
        gbps = (self.performance.reached(arm) / whole[arm.operation.kind] for arm in sending)
        return round(8 / 0.92 * min(gbps, default=0.0), 1) or None


def open_cluster(thresholds: ThresholdsFile, options: ClusterOptions) -> SimulatedCluster:
    """The cluster for these options.

    Raises:
        SkuError: the thresholds do not have the SKU.
        OptionError: sizes or workloads do not fit, or the thresholds lack the speed of a workload.
    """
    name, per_node, named = thresholds.sku_name(options.gpu_sku), options.gpus_per_node, options.workloads
    sku = thresholds.thresholds.skus[name]
    if named is not None and not (named and sku.workloads.keys() >= set(named)):
        raise OptionError(
            "--workloads", f"found {', '.join(named) or 'no name'}", f"some of {', '.join(sku.workloads)}"
        )

    def wanted(layout: Layout) -> list[AnyCase]:
        """Cases of the nodes: training on the selected workloads, and everything without training."""
        cases = cases_for(thresholds, name, layout)
        return [case for case in cases if named is None or not isinstance(case, Case) or case.workload.name in named]

    trained = training_cases(wanted(Layout(1, per_node)))
    gpus = options.gpus or max((case.world_size for case in trained), default=1)
    if gpus < per_node != ClusterOptions.gpus_per_node:
        raise OptionError("--gpus-per-node", f"found {per_node}", f"at most the {gpus} GPUs of the cluster")
    if gpus > per_node and gpus % per_node:
        raise OptionError("--gpus", f"found {gpus}", f"a multiple of {per_node}, the GPUs per node")
    fitting = (case for case in wanted(_layout(gpus, per_node)) if case.world_size <= gpus)
    cases = tuple(case for case in fitting if not case.missing)
    workloads = dict.fromkeys(case.workload for case in training_cases(cases))
    if not workloads:
        on_workloads = f" on {', '.join(named)}" if named else ""
        raise OptionError(
            "--gpus, --workloads", f"{name} has no training requirement{on_workloads} for {gpus} or fewer GPUs",
            f"GPUs and workloads of at least one in {thresholds.path}",
        )  # fmt: skip
    kind = device_type(sku)
    link_gbps = (sku.peak.link_bandwidth_gbps if sku.peak else None) or _CPU_LINK_GBPS
    performance = Performance(
        device_type=kind,
        topology=Topology(
            per_node,
            Link(LINK_LATENCY_S, link_gbps * 1e9 * LINK_EFFICIENCY),
            Link(NIC_LATENCY_S, options.nic_gbps * 1e9 * LINK_EFFICIENCY),
        ),
        expectations={workload.name: expectation_of(workload, name, thresholds, per_node) for workload in workloads},
        noise=Noise(
            _ROUND_SD[kind] if options.noise is None else options.noise,
            correlation=options.correlation,
            hiccup_share=options.hiccups,
        ),
        spread=NodeSpread(options.node_spread, options.gpu_spread, options.launch_spread, options.nodes_seed),
        unwaited=options.unwaited,
        heat=options.heat,
        probes=probe_values(cases),
        peak=sku.peak,
    )
    return SimulatedCluster(thresholds, name, gpus, cases, performance)


def probe_values(cases: Sequence[AnyCase]) -> dict[Arm, float]:
    """Values of a sound cluster in the probes that are required, in the units of their metrics."""
    values: dict[Arm, float] = {}
    for case in cases:
        is_value = not case.requirement.definition.compares_places  # but a ratio of places
        if isinstance(case, NodeCase) and case.probe is not None and is_value:
            value = min(expected_value(case.requirement), case.peak or math.inf)
            values[case.probe] = max(values.get(case.probe, 0.0), value)
    return values


def _layout(gpus: int, gpus_per_node: int) -> Layout:
    return Layout(-(-gpus // gpus_per_node), min(gpus, gpus_per_node))


def expectation_of(workload: Workload, sku_name: str, file: ThresholdsFile, ranks_per_node: int = 8) -> Expectation:
    """Expectation of a workload from a SKU's requirements: what a sound machine reaches, or values derived from bounds.

    Raises:
        OptionError: no requirement gives the speed of a GPU.
    """
    lines = [r for r in file.thresholds.skus[sku_name].requirements if r.workload == workload.name]

    def smallest(metric: Metric) -> Requirement | None:
        return min((line for line in lines if line.definition is metric), key=_ranks, default=None)

    def known(metric: Metric) -> dict[int, float]:
        """Values of a sound machine, published or said in a row, by number of ranks."""
        by_size: dict[int, float] = {}
        for line in lines:
            # Words do not give the number of ranks of a publication; a row says of any node what a sound one reaches.
            size = ranks_per_node if line.world_size == "node" and line.sound is not None else line.world_size
            if line.definition is metric and isinstance(size, int) and line.sound_value is not None:
                by_size[size] = line.sound_value / _alone_to_one_gpu(line)
        return by_size

    inference, energy, peak = map(smallest, (INFERENCE_THROUGHPUT, IMAGES_PER_JOULE, PEAK_MEMORY_GIB))
    inferred = expected_value(inference) if inference else None
    ratio = next((line for line in lines if line.versus is not None), None)
    if alone := smallest(THROUGHPUT_PER_GPU):
        samples_per_s = expected_value(alone) * _alone_to_one_gpu(alone)
    elif ratio:
        samples_per_s = (
            expected_value(ratio) * file.thresholds.reference_throughput(ratio)[0] * _alone_to_one_gpu(ratio)
        )
    elif inferred:
        samples_per_s = FORWARD_SHARE * inferred
    else:
        raise OptionError(
            str(file.path), f"{sku_name} has neither throughput_per_gpu nor generation_ratio of {workload.name}",
            "a requirement with the speed of a GPU", "Add one, or leave the workload out with --workloads.",
        )  # fmt: skip
    weak = known(WEAK_SCALING_EFFICIENCY)
    return Expectation(
        samples_per_s=samples_per_s,
        efficiency={"weak": weak, "strong": known(STRONG_SCALING_EFFICIENCY)},
        utilization={k: min(u, 1.0) for k, u in known(DEVICE_UTILIZATION).items()},
        memory_at=(expected_value(peak) * 2**30, workload.batch_size) if peak else None,
        power_w=samples_per_s * weak.get(_ranks(energy), 1.0) / expected_value(energy) if energy else None,
        inferred_samples_per_s=inferred,
    )


def _alone_to_one_gpu(line: Requirement) -> float:
    """Speed of one GPU alone relative to the one GPU of a requirement, which may be under DDP."""
    return 1 + DDP_OVERHEAD if line.one_gpu == "ddp" else 1.0


def expected_value(line: Requirement) -> float:
    """Value of a sound machine: what the row says, or the published figure.

    If that is the bound, or nothing is said or published, a sound machine has to be better than the bound.
    """
    if line.sound is not None:
        return line.sound
    if line.source.measured is not None and line.source.measured != line.bound:
        return line.source.measured
    return line.bound / (1 + MARGIN) if line.definition.upper_bound else line.bound * (1 + MARGIN)


def _ranks(line: Requirement) -> int:
    """World size of a requirement; the maximum if it is given in words."""
    return line.world_size if isinstance(line.world_size, int) else MOST_RANKS
