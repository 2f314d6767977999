"""The model of one training step: computation, exposed communication and noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.simulate.allreduce import WHOLE, LinkShares, Topology, all_reduce_s
from pytest_ddpscale.simulate.models import BACKWARD_SHARE, FORWARD_SHARE, UNWAITED, model_of
from pytest_ddpscale.simulate.round_noise import RoundNoise
from pytest_ddpscale.simulate.sound_machine import DDP_OVERHEAD, Expectation
from pytest_ddpscale.simulate.spread import ALIKE, NodeSpread

# DistributedDataParallel's defaults: gradients are sent in buckets, the first one small.
FIRST_BUCKET_BYTES = 2**20
BUCKET_BYTES = 25 * 2**20
FloatArray = NDArray[np.float64]


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
        correlation: between successive rounds of an arm, 0 … below 1.
        hiccup_share: share of blocks that take longer by up to `hiccup_sds` standard deviations of a round.
        hiccup_sds: see `hiccup_share`.
    """

    round_sd: float
    step_sd: float = 0.003
    rank_sd: float = 1e-5
    utilization_sd: float = 0.001
    correlation: float = 0.0
    hiccup_share: float = 0.0
    hiccup_sds: float = 10.0

    @property
    def of_rounds(self) -> RoundNoise:
        """Noise of a series of rounds."""
        return RoundNoise(self.round_sd, self.correlation, hiccup_share=self.hiccup_share, hiccup_sds=self.hiccup_sds)


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

    def slowed_by(self, factor: float) -> float:
        """Factor on `computation_s` if the device computes `factor` times as long; host-bound time hides a part."""
        return max(1.0, self.busy_share * factor)


@dataclass(frozen=True)
class Performance:
    """Performance of a sound cluster in each arm; CPUs never wait for their host.

    Attributes:
        device_type: ``cpu`` or ``cuda``.
        topology: of the links.
        expectations: by workload name.
        noise: of a sound machine.
        spread: how much its nodes and GPUs differ.
        unwaited: efficiency above the published one without any wait for the slowest rank; less than 0 for more
            communication than published.
    """

    device_type: DeviceType
    topology: Topology
    expectations: Mapping[str, Expectation]
    noise: Noise
    spread: NodeSpread = ALIKE
    unwaited: float = UNWAITED

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
        self, workload: Workload, world_size: int, nodes: int, computation_s: FloatArray, left: LinkShares = WHOLE
    ) -> FloatArray:
        """Communication that the backward pass does not hide, in seconds, of the shape of `computation_s`.

        All buckets but the last can be sent during the backward pass. The step waits for the part of them that exceeds
        it, and for the last bucket. `computation_s` is that of steps on the slowest rank.
        """
        gradient_bytes = model_of(workload).gradient_bytes
        early_s, last_s = _travelling_s(gradient_bytes, world_size, nodes, self.topology, left)
        return np.maximum(0.0, early_s - BACKWARD_SHARE * computation_s) + last_s

    def messages_per_step(self, workload: Workload) -> int:
        """All-reduces of a step: one for each bucket of gradients."""
        return len(_buckets(model_of(workload).gradient_bytes))

    def of_cluster(self, seed: int) -> Performance:
        """The same performance on other nodes and GPUs of that kind, whose differences follow from the seed."""
        return replace(self, spread=replace(self.spread, seed=seed))

    @property
    def parameters(self) -> dict[str, Any]:
        """All parameters, for run.json."""
        return {
            "topology": asdict(self.topology),
            "noise": asdict(self.noise),
            "spread": asdict(self.spread),
            "unwaited": self.unwaited,
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
        size = expectation.published_size(study.scaling, arm.world_size)
        if size is None:
            return 1.0
        batch_size = arm.batch_size * (arm.world_size // size if study.scaling == "strong" else 1)
        efficiency = expectation.efficiency_at(study.scaling, size)
        efficiency += self.unwaited * (1.0 if study.scaling == "weak" else efficiency)  # of steps as short as these
        step_s = batch_size / expectation.samples_per_s / efficiency
        exposed_s = self.exposed_s(study.workload, size, self.topology.nodes(size), np.array(step_s))
        return max(1.0, float(step_s - exposed_s) / computation_s)


@lru_cache(maxsize=256)
def _travelling_s(
    gradient_bytes: int, world_size: int, nodes: int, topology: Topology, left: LinkShares
) -> tuple[float, float]:
    """Seconds to all-reduce all buckets but the last, and the last."""
    *early_s, last_s = (all_reduce_s(size, world_size, nodes, topology, left) for size in _buckets(gradient_bytes))
    return sum(early_s), last_s


def _buckets(gradient_bytes: int) -> list[int]:
    """Sizes of the buckets in the order in which the backward pass fills them."""
    first = min(FIRST_BUCKET_BYTES, gradient_bytes)
    whole, rest = divmod(gradient_bytes - first, BUCKET_BYTES)
    return [first, *([BUCKET_BYTES] * whole), *([rest] if rest else [])]
