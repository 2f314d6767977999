"""A simulated cluster: its SKU, its size, and what its thresholds say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric import METRICS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, PACES, Pace, Question, build_plan
from pytest_ddpscale.plan.study import DeviceType, Plan
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.simulate.allreduce import LINK_EFFICIENCY, LINK_LATENCY_S, NIC_GBPS, NIC_LATENCY_S, Link, Topology
from pytest_ddpscale.simulate.performance import ROUND_SD, Noise, Performance
from pytest_ddpscale.simulate.sound_machine import expectation_of
from pytest_ddpscale.thresholds.cases import Case, cases_for, device_type, training_cases
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Sku

MOST_GPUS = 1_000_000
# Beyond this many, blocks have the fewest steps and runs the fewest rounds, or files would grow to gigabytes.
MOST_GPUS_AT_FULL_PACE = 1024
# gloo over loopback, two processes on one machine.
_CPU_LINK_GBPS = 1.0


@dataclass(frozen=True)
class ClusterOptions:
    """What a simulated cluster is like, as the command line says it.

    Attributes:
        sku: name or alias in the thresholds file.
        gpus: how many; None for as many as the largest requirement needs.
        gpus_per_node: how many share a node.
        nic_gbps: between nodes, GB/s for each GPU in one direction.
        round_noise: relative standard deviation of a round; None for the default of the kind of device.
        workloads: names; None for all that requirements name.
    """

    sku: str
    gpus: int | None = None
    gpus_per_node: int = 8
    nic_gbps: float = NIC_GBPS
    round_noise: float | None = None
    workloads: tuple[str, ...] | None = None


@dataclass(frozen=True)
class SimulatedCluster:
    """A sound machine of a SKU, ready to be simulated.

    Attributes:
        thresholds: the file that says what it does.
        sku: canonical name.
        gpus: how many there are.
        cases: requirements that so many GPUs can be asked.
        performance: the model of its steps.
    """

    thresholds: ThresholdsFile
    sku: str
    gpus: int
    cases: tuple[Case, ...]
    performance: Performance

    @property
    def topology(self) -> Topology:
        """Which GPUs form a node, and what connects them."""
        return self.performance.topology

    @property
    def device_type(self) -> DeviceType:
        """``cpu`` or ``cuda``."""
        return self.performance.device_type

    @property
    def device_name(self) -> str:
        """Of one GPU, for the record."""
        return f"simulated {self.sku}"

    def plan(
        self, rounds: int | None = None, world_sizes: Sequence[int] = (), seed: int = 0, *, short_blocks: bool = False
    ) -> Plan:
        """What a session would measure here, and weak scaling of every workload at further world sizes.

        Args:
            rounds: of every study; None for as many as a real run does at most.
            world_sizes: further ones.
            seed: of the plan.
            short_blocks: whether blocks have the fewest steps, as they always do on very large clusters.
        """
        questions = [case.question for case in self.cases]
        workloads = dict.fromkeys(case.workload for case in self.cases)
        questions += [question for w in workloads for k in world_sizes for question in _scaling_questions(w, k)]
        return build_plan(self.sku, self.device_type, questions, self._pace(rounds, short_blocks=short_blocks), seed)

    def _pace(self, rounds: int | None, *, short_blocks: bool) -> Pace:
        default = PACES[self.device_type]
        if self.gpus > MOST_GPUS_AT_FULL_PACE:
            return Pace(rounds or FEWEST_ROUNDS, 0.0, default.warmup_s)
        return Pace(rounds or default.rounds, 0.0 if short_blocks else default.block_s, default.warmup_s)


def open_cluster(thresholds: ThresholdsFile, options: ClusterOptions) -> SimulatedCluster:
    """The cluster that is asked for.

    Raises:
        SkuError: the thresholds have no such SKU.
        OptionError: a number makes no sense, or the thresholds say too little of a workload.
    """
    name = thresholds.sku_name(options.sku)
    sku = thresholds.thresholds.skus[name]
    _check_workloads(options, sku)
    gpus = options.gpus
    if gpus is None:
        one_node = Layout(1, max(1, options.gpus_per_node))
        gpus = max((case.world_size for case in _wanted(thresholds, name, one_node, options)), default=1)
    _check(options, gpus)
    per_node = options.gpus_per_node
    layout = Layout(-(-gpus // per_node), min(gpus, per_node))
    cases = tuple(case for case in _wanted(thresholds, name, layout, options) if case.world_size <= gpus)
    if not cases:
        of_workloads = f" of {', '.join(options.workloads)}" if options.workloads is not None else ""
        raise OptionError(
            "--gpus, --workloads", f"{name} has no requirement{of_workloads} that {gpus} GPUs could be asked",
            f"one of the requirements of {name} in {thresholds.path}",
        )  # fmt: skip
    return SimulatedCluster(thresholds, name, gpus, cases, _performance(thresholds, sku, name, cases, options))


def _performance(
    thresholds: ThresholdsFile, sku: Sku, name: str, cases: Sequence[Case], options: ClusterOptions
) -> Performance:
    kind = device_type(sku)
    workloads = dict.fromkeys(case.workload for case in cases)
    noise = ROUND_SD[kind] if options.round_noise is None else options.round_noise
    return Performance(
        device_type=kind,
        topology=_topology(sku, options),
        expectations={workload.name: expectation_of(workload, name, thresholds) for workload in workloads},
        noise=Noise(noise),
    )


def _topology(sku: Sku, options: ClusterOptions) -> Topology:
    link_gbps = sku.peak.link_bandwidth_gbps if sku.peak and sku.peak.link_bandwidth_gbps else _CPU_LINK_GBPS
    inside = Link(LINK_LATENCY_S, link_gbps * 1e9 * LINK_EFFICIENCY)
    between = Link(NIC_LATENCY_S, options.nic_gbps * 1e9 * LINK_EFFICIENCY)
    return Topology(options.gpus_per_node, inside, between)


def _scaling_questions(workload: Workload, world_size: int) -> list[Question]:
    """What tells how a workload scales to a world size, and who holds it back."""
    names = ("weak_scaling_efficiency", "rank_uniformity")
    return [Question(METRICS[name], workload, world_size) for name in names] if world_size > 1 else []


def _wanted(thresholds: ThresholdsFile, name: str, layout: Layout, options: ClusterOptions) -> list[Case]:
    cases = training_cases(cases_for(thresholds, name, layout))
    return [case for case in cases if options.workloads is None or case.workload.name in options.workloads]


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
    if options.gpus_per_node < 1:
        raise OptionError("--gpus-per-node", f"found {options.gpus_per_node}", "a whole number from 1 up")
    if not 0 < options.nic_gbps < 1e6:
        raise OptionError("--nic-gbps", f"found {options.nic_gbps:g}", "GB/s for each GPU, more than 0")
    if options.round_noise is not None and not 0 <= options.round_noise <= 0.2:
        raise OptionError("--noise", f"found {options.round_noise:g}", "a fraction from 0 to 0.2, such as 0.003")
