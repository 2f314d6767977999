"""A sound machine as a model: its links, what it trains, how long a step takes, and how much times vary.

The time of an all-reduce is latency and bandwidth (α–β) over two levels of links.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.families.image import FORWARD_MACS
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.operation import operation_of
from pytest_ddpscale.plan.study import Scaling, Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.plan.workload import BYTES_PER_GRADIENT, Workload
from pytest_ddpscale.simulate.options import ClusterOptions
from pytest_ddpscale.thresholds.parts import Peak
from pytest_ddpscale.util.arrays import FloatArray

# Share of a link's data-sheet bandwidth that NCCL's all-reduce of large messages reaches: 8x A100 with NVLink3 (300
# GB/s in one direction) show 230 to 240 GB/s of bus bandwidth in nccl-tests.
LINK_EFFICIENCY = 0.8
LINK_LATENCY_S, NIC_LATENCY_S = 2e-6, 5e-6
# Shares of a step: the backward pass costs two forward passes and can hide communication.
BACKWARD_SHARE = 2 / 3
FORWARD_SHARE = 1 - BACKWARD_SHARE
# Copying gradients into and out of buckets, also in ddp@1 and no_sync.
DDP_OVERHEAD = 0.002
# DistributedDataParallel's defaults: gradients are sent in buckets, the first one small.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20
# Share of the time in which a GPU computes in the rounds, and how long it takes to become hot.
DUTY, HEATING_S = 0.44, 20.0
COMPUTING = "computing"  # shared by training and matrix products
_UTILIZATION = 0.985
_OF_PEAK = 0.7  # share of the peak that a probe without a requirement reaches
_TABLE_PX = 224
# Weight, gradient, SGD's momentum and DDP's bucket, in fp32.
_STATE_BYTES_PER_PARAMETER = 16
# Published peaks of ResNet-152: 44.1 GiB at 512 images and 22.4 GiB at 256 (willgpaik/pytorch-ddp-scaling-benchmark,
# A100): 86.7 MiB an image, at 11.5 billion multiply-accumulates. ViT-B/16 needs half as much for each of them.
_ACTIVATION_BYTES_PER_MAC = 7.9e-3


@dataclass(frozen=True)
class Link:
    """One level of the network from one rank: latency of a message, and bandwidth in one direction."""

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Topology:
    """Nodes of equal size, with consecutive ranks as torchrun numbers them; `between` is each GPU's link."""

    gpus_per_node: int
    inside: Link
    between: Link


def ring_s(size_bytes: float, ranks: int, link: Link, share: float = 1.0) -> float:
    """Ring all-reduce over this share of a link's bandwidth: 2(n−1) messages of one n-th each.

    Patarasuk and Yuan (2009), "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    J. Parallel Distrib. Comput. 69(2): every rank sends 2(n−1)/n of the data, the least possible.
    """
    return 2 * (ranks - 1) * (link.latency_s + size_bytes / ranks / (link.bytes_per_s * share))


def tree_s(size_bytes: float, ranks: int, link: Link, share: float = 1.0) -> float:
    """Double binary tree, pipelined: twice the data, but only 2 log2(n) latencies.

    Sanders, Speck and Träff (2009), "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
    Parallel Computing 35(12); NCCL uses it where a ring is too long.
    """
    return 2 * math.ceil(math.log2(ranks)) * link.latency_s + 2 * size_bytes / (link.bytes_per_s * share)


def all_reduce_s(
    size_bytes: float, world_size: int, nodes: int, topology: Topology, inside: float = 1.0, between: float = 1.0
) -> float:
    """Reduce-scatter in each node, all-reduce of each GPU's part between nodes, all-gather in each node.

    Ranks are spread evenly over the nodes, and each has all the data. All ranks wait for the slowest links: shares of
    bandwidth, 0 … 1, are left on those `inside` nodes and `between` them.
    """
    local = -(-world_size // nodes)
    among_nodes = size_bytes / local, nodes, topology.between, between
    return ring_s(size_bytes, local, topology.inside, inside) + min(ring_s(*among_nodes), tree_s(*among_nodes))


@dataclass(frozen=True)
class Model:
    """One torchvision classification model.

    Attributes:
        parameters: their number, with a head of 1000 classes.
        forward_macs: multiply-accumulates of one 224 px image's forward pass.
        host_step_s: least time of a step at any batch, for Python and kernel launches.
        area: of an image, over that of 224 px. Work scales with it: exact for 224 px, close enough for others.
    """

    parameters: int
    forward_macs: float
    host_step_s: float
    area: float = 1.0

    @property
    def buckets(self) -> list[int]:
        """Bytes of the all-reduces of one step, in the order in which the backward pass fills them."""
        gradient_bytes = self.parameters * BYTES_PER_GRADIENT
        first = min(FIRST_BUCKET_BYTES, gradient_bytes)
        whole, rest = divmod(gradient_bytes - first, BUCKET_BYTES)
        return [first, *([BUCKET_BYTES] * whole), *([rest] if rest else [])]

    @property
    def flops_per_sample(self) -> float:
        """FLOPs of a training step per image, 2 per multiply-accumulate; the backward pass costs two forward passes."""
        return 6 * self.forward_macs * self.area

    @property
    def state_bytes(self) -> float:
        """Memory of a rank that does not depend on the batch, in bytes."""
        return _STATE_BYTES_PER_PARAMETER * self.parameters

    @property
    def bytes_per_sample(self) -> float:
        """Memory of one image's activations, roughly, in bytes."""
        return _ACTIVATION_BYTES_PER_MAC * self.forward_macs * self.area


# Parameters: torchvision's model documentation. Host times: published host-bound rows take about 100 ms a step at any
# batch for ResNet-152 (A100 and V100) and about 60 ms for ViT-B/16 (V100); the others follow from their layers.
MODELS = {
    "shufflenet_v2_x0_5": Model(1_366_792, FORWARD_MACS["shufflenet_v2_x0_5"], 0.015),
    "squeezenet1_1": Model(1_235_496, FORWARD_MACS["squeezenet1_1"], 0.010),
    "resnet18": Model(11_689_512, FORWARD_MACS["resnet18"], 0.012),
    "resnet34": Model(21_797_672, FORWARD_MACS["resnet34"], 0.022),
    "resnet50": Model(25_557_032, FORWARD_MACS["resnet50"], 0.033),
    "resnet101": Model(44_549_160, FORWARD_MACS["resnet101"], 0.066),
    "resnet152": Model(60_192_808, FORWARD_MACS["resnet152"], 0.100),
    "resnext50_32x4d": Model(25_028_904, FORWARD_MACS["resnext50_32x4d"], 0.033),
    "resnext101_32x8d": Model(88_791_336, FORWARD_MACS["resnext101_32x8d"], 0.066),
    "vit_b_16": Model(86_567_656, FORWARD_MACS["vit_b_16"], 0.060),
    "vit_b_32": Model(88_224_232, FORWARD_MACS["vit_b_32"], 0.060),
    "vit_l_16": Model(304_326_632, FORWARD_MACS["vit_l_16"], 0.120),
}


def model_of(workload: Workload) -> Model:
    """The model that a workload trains.

    Raises:
        OptionError: the simulator does not know the model, or the workload trains only part of it.
    """
    name = workload.family.trained
    if name not in MODELS:
        raise OptionError(
            f"workload {workload.name}", f"trains {name}, which the simulator does not know",
            f"one of {', '.join(MODELS)}", "Name the other workloads with --workloads.",
        )  # fmt: skip
    return replace(MODELS[name], area=(workload.family.image_size / _TABLE_PX) ** 2)


@dataclass(frozen=True)
class Noise:
    """How much times vary on a sound machine.

    Noise of a round is drawn per rank if ranks do not wait for each other, per group if they train or probe together,
    and per node for the arm ``alone``, whichever rank has its turn. Ranks of a node share no noise, nor do the arms of
    a round: shared noise would cancel in ratios, and a simulated run should rather vary too much.

    Attributes:
        round_sd: relative standard deviation of a block's mean from round to round.
        step_sd: relative standard deviation of a step within its block, per rank.
        rank_sd: relative standard deviation between ranks that wait for each other in every step.
        utilization_sd: standard deviation of a rank's utilization about its SKU's value.
        correlation: between successive rounds of an arm, of a stationary AR(1) process, 0 … below 1.
        hiccup_share: share of blocks that take longer by up to `hiccup_sds` standard deviations of a round, uniformly
            distributed.
        hiccup_sds: see `hiccup_share`.
    """

    round_sd: float
    step_sd: float = 0.003
    rank_sd: float = 1e-5
    utilization_sd: float = 0.001
    correlation: float = 0.0
    hiccup_share: float = 0.0
    hiccup_sds: float = 10.0

    def of_rounds(self, chance: np.random.Generator, rounds: int, count: int = 1) -> FloatArray:
        """Logarithms of times about their value without noise, (count, rounds); above 0 is slower."""
        fresh = self.innovations(chance, (count, rounds))
        fresh[:, 1:] *= math.sqrt(1 - self.correlation**2)
        for i in range(1, rounds):
            fresh[:, i] += self.correlation * fresh[:, i - 1]
        logs = self.round_sd * fresh
        if self.hiccup_share:
            is_hiccup = chance.random(logs.shape) < self.hiccup_share
            logs += self.round_sd * self.hiccup_sds * is_hiccup * chance.random(logs.shape)
        return logs

    def innovations(self, chance: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        """What is new in each round, of variance 1."""
        return chance.standard_normal(shape)


@dataclass(frozen=True)
class NodeSpread:
    """Relative standard deviations of the time that sound ranks take for the same work.

    Attributes:
        node_sd: between nodes, the same in all launches.
        gpu_sd: between GPUs of a node, the same in all launches. Not in what they do together: the bandwidth that a
            sound node reaches is that of its slowest GPU already.
        launch_sd: of each node between launches.
        seed: of the cluster; the same seed gives the same nodes and GPUs.
    """

    node_sd: float = 0.0
    gpu_sd: float = 0.0
    launch_sd: float = 0.0
    seed: int = 0

    def factors(self, quantity: str, layout: Layout, launch: int) -> FloatArray:
        """Factor on each rank's time, (ranks,).

        Args:
            quantity: `COMPUTING` or the name of a probe; each has its own slow nodes.
            layout: of the ranks.
            launch: number of the launch.
        """
        if not (self.node_sd or self.gpu_sd or self.launch_sd):
            return np.ones(layout.world_size)
        probe, stream = operation_of(quantity), [self.seed, zlib.crc32(quantity.encode())]
        gpu_sd = self.gpu_sd if probe is None or probe.is_single_device else 0.0
        # Drawn node by node, so that a node's values do not depend on the number of nodes.
        lasting = np.random.default_rng(stream).standard_normal((layout.nodes, layout.ranks_per_node + 1))
        of_launch = np.random.default_rng([*stream, launch]).standard_normal((layout.nodes, 1))
        logs = self.node_sd * lasting[:, :1] + gpu_sd * lasting[:, 1:] + self.launch_sd * of_launch
        return np.asarray(np.exp(logs).ravel())


@dataclass(frozen=True)
class Expectation:
    """One workload on a sound machine.

    Attributes:
        samples_per_s: of one GPU alone.
        efficiency: published efficiencies relative to that, or those of a sound machine, by scaling and world size.
        utilization: of the least busy GPU, by world size.
        memory_at: peak memory of a rank in bytes, and its per-GPU batch; None if unknown.
        power_w: of a GPU while it trains, whether it computes or waits; None if unknown.
        inferred_samples_per_s: images per second that one GPU infers; None if unknown.
    """

    samples_per_s: float
    efficiency: Mapping[Scaling, Mapping[int, float]]
    utilization: Mapping[int, float]
    memory_at: tuple[float, int] | None = None
    power_w: float | None = None
    inferred_samples_per_s: float | None = None

    def published(self, scaling: Scaling, world_size: int) -> tuple[int, float] | None:
        """The world size, or the largest published one if that is smaller, with its efficiency; None if nothing is
        published. Between published sizes it is interpolated over the logarithm of the size."""
        published = self.efficiency.get(scaling)
        if not published:
            return None
        size, known = min(world_size, max(published)), sorted({1: 1.0, **published}.items())
        shares = [share for _, share in known]
        return size, float(np.interp(math.log(size), [math.log(one) for one, _ in known], shares))

    def utilization_of(self, world_size: int) -> float:
        """Utilization of the least busy GPU if nothing waits for the host: that of the nearest smaller known size."""
        nearest = max((k for k in self.utilization if k <= world_size), default=min(self.utilization, default=0))
        return self.utilization.get(nearest, _UTILIZATION)

    def memory_bytes(self, workload: Workload, batch_size: int) -> int:
        """Peak memory of a rank at a batch: scaled from the published value, or a rough estimate."""
        model = model_of(workload)
        if self.memory_at is None:
            return round(model.state_bytes + model.bytes_per_sample * batch_size)
        held, at_batch = self.memory_at
        state = min(model.state_bytes, held)
        return round(state + (held - state) * batch_size / at_batch)


@dataclass(frozen=True)
class StepTime:
    """One step of a sound rank, without noise.

    Attributes:
        computation_s: time until its gradients are ready, including waiting for the host.
        busy_share: part of `computation_s` in which it computes, 0 … 1.
        utilization: of the least busy rank. Waiting inside an all-reduce counts as busy, as in NVML.
    """

    computation_s: float
    busy_share: float
    utilization: float

    def slowed_by(self, factor: FloatArray) -> FloatArray:
        """Factor on `computation_s` if the device computes `factor` times as long; host-bound time hides a part."""
        return np.maximum(1.0, self.busy_share * factor)


@dataclass(frozen=True)
class Performance:
    """Performance of a sound cluster in each arm; CPUs never wait for their host.

    Attributes:
        device_type: ``cpu`` or ``cuda``.
        topology: of the links.
        expectations: by workload name.
        noise: of a sound machine.
        spread: how much its nodes and GPUs differ.
        unwaited: as in `ClusterOptions`.
        heat: how much longer computing takes on GPUs that never rest, once they are hot; in rounds `DUTY` of it.
        probes: values of a sound cluster in probes, in the units of their metrics: TFLOPS or GB/s.
        peak: of a GPU, by which other probes are estimated.
    """

    device_type: DeviceType
    topology: Topology
    expectations: Mapping[str, Expectation]
    noise: Noise
    spread: NodeSpread = NodeSpread()
    unwaited: float = ClusterOptions.unwaited
    heat: float = 0.0
    probes: Mapping[Arm, float] = field(default_factory=dict)
    peak: Peak | None = None

    def step_time(self, study: Study, arm: Arm) -> StepTime:
        """A rank's own part of a step, without waiting for other ranks."""
        expected = self.expectations[study.workload.name]
        busy_s = arm.batch_size / expected.samples_per_s
        host_s = 0.0 if self.device_type == "cpu" else model_of(study.workload).host_step_s
        if arm.infers:
            busy_s = arm.batch_size / (expected.inferred_samples_per_s or expected.samples_per_s / FORWARD_SHARE)
            host_s *= FORWARD_SHARE
        is_wrapped = arm.kind in ("ddp", "no_sync")
        computation_s = max(busy_s, host_s) * (1 + DDP_OVERHEAD if is_wrapped else 1.0)
        if arm.kind == "ddp" and arm.world_size > 1:
            computation_s *= self._slower_together(study, arm, computation_s)
        busy_share = 1.0 if busy_s >= host_s else busy_s / computation_s
        return StepTime(computation_s, busy_share, busy_share * expected.utilization_of(arm.world_size))

    def exposed_s(
        self, model: Model, world_size: int, nodes: int, computation_s: FloatArray, *left: float
    ) -> FloatArray:
        """Communication that the backward pass does not hide, in seconds, of the shape of `computation_s`.

        All buckets but the last can be sent during the backward pass. The step waits for the part of them that exceeds
        it, and for the last bucket. `computation_s` is that of steps on the slowest rank; `left` as in `all_reduce_s`.
        """
        early_s, last_s = _travelling_s(model, world_size, nodes, self.topology, *left)
        return np.maximum(0.0, early_s - BACKWARD_SHARE * computation_s) + last_s

    def reached(self, probe: Arm) -> float:
        """Value of a sound cluster in a probe, in the unit of its metric; a rough one if nothing is known."""
        if probe in self.probes:
            return self.probes[probe]
        if probe.operation.message_bytes is not None:
            is_inside = probe.world_size <= self.topology.gpus_per_node
            return (self.topology.inside if is_inside else self.topology.between).bytes_per_s / 1e9
        if probe.operation.kind == "matmul":
            return _OF_PEAK * ((self.peak.fp16_tflops if self.peak else None) or 1.0)
        return _OF_PEAK * ((self.peak.memory_bandwidth_gbps if self.peak else None) or 10.0)

    @property
    def parameters(self) -> dict[str, Any]:
        """All parameters, for run.json."""
        return {
            "topology": asdict(self.topology),
            "noise": asdict(self.noise),
            "spread": asdict(self.spread),
            "unwaited": self.unwaited,
            "heat": self.heat,
            "samples_per_s": {name: expectation.samples_per_s for name, expectation in self.expectations.items()},
            "ddp_overhead": DDP_OVERHEAD,
            "backward_share": BACKWARD_SHARE,
        }

    def _slower_together(self, study: Study, arm: Arm, computation_s: float) -> float:
        """Factor on the computation that gives the step the published efficiency; 1 if none is published.

        Published efficiencies are lower than exposed communication explains: NCCL's kernels share the GPU with the
        backward pass, and GPUs that all work are hotter. Beyond the largest published world size, its value holds.
        What ranks wait for the slowest of them is not part of it, but comes on top: it depends on how much they differ.
        """
        expectation = self.expectations[study.workload.name]
        published = expectation.published(study.scaling, arm.world_size)
        if published is None:
            return 1.0
        size, efficiency = published
        batch_size = arm.batch_size * (arm.world_size // size if study.scaling == "strong" else 1)
        efficiency += self.unwaited * (1.0 if study.scaling == "weak" else efficiency)  # of steps as short as these
        step_s = batch_size / expectation.samples_per_s / efficiency
        nodes = -(-size // self.topology.gpus_per_node)
        exposed_s = self.exposed_s(model_of(study.workload), size, nodes, np.array(step_s))
        return max(1.0, float(step_s - exposed_s) / computation_s)


@lru_cache(maxsize=256)
def _travelling_s(model: Model, world_size: int, nodes: int, topology: Topology, *left: float) -> tuple[float, float]:
    """Seconds to all-reduce all buckets but the last, and the last."""
    *early_s, last_s = (all_reduce_s(size, world_size, nodes, topology, *left) for size in model.buckets)
    return sum(early_s), last_s
