"""The model of one training step: computation, what communication it does not hide, and noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_ddpscale.plan.study import Arm, DeviceType, Study
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.simulate.allreduce import Topology, all_reduce_s
from pytest_ddpscale.simulate.models import BACKWARD_SHARE, FORWARD_SHARE, model_of
from pytest_ddpscale.simulate.round_noise import RoundNoise
from pytest_ddpscale.simulate.sound_machine import DDP_OVERHEAD, Expectation
from pytest_ddpscale.simulate.spread import ALIKE, NodeSpread

# DistributedDataParallel's defaults: gradients travel in buckets, the first one small.
FIRST_BUCKET_BYTES = 2**20
BUCKET_BYTES = 25 * 2**20
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """How much times vary on a sound machine.

    What a round's noise is of: each rank that waits for nobody has its own, a group of ranks that train together has
    one, and so has every probe of a group; of the arm ``alone`` a node has it, whichever rank has its turn. Ranks of a
    node share none of it, nor do the arms of a round: what they shared would cancel in ratios, and a simulated run
    should rather vary too much.

    Attributes:
        round_sd: relative standard deviation of a block's mean from round to round.
        step_sd: of a step within its block, of each rank for itself.
        rank_sd: between ranks that wait for each other in every step.
        utilization_sd: of a rank's utilization, from what its SKU is known for.
        correlation: between successive rounds of an arm, 0 … below 1.
        hiccup_share: of blocks that take longer by up to `hiccup_sds` standard deviations of a round.
        hiccup_sds: see there.
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
        """What a series of rounds varies by."""
        return RoundNoise(self.round_sd, self.correlation, hiccup_share=self.hiccup_share, hiccup_sds=self.hiccup_sds)


@dataclass(frozen=True)
class StepTime:
    """One step of a sound rank, without noise.

    Attributes:
        computation_s: until its gradients are there, whether it computes or waits for its host.
        busy_share: part of `computation_s` in which it computes, 0 … 1.
        utilization: of the least busy rank. Waiting inside an all-reduce counts as busy: NVML cannot tell.
    """

    computation_s: float
    busy_share: float
    utilization: float

    def slowed_by(self, factor: float) -> float:
        """Factor on `computation_s` of a device that computes `factor` times as long: its host hides a part of it."""
        return max(1.0, self.busy_share * factor)


@dataclass(frozen=True)
class Performance:
    """What a sound cluster of a device type, which on CPU never waits for its host, does in each arm.

    `expectations` are by workload name; `spread` is how much its nodes differ.
    """

    device_type: DeviceType
    topology: Topology
    expectations: Mapping[str, Expectation]
    noise: Noise
    spread: NodeSpread = ALIKE

    def step_time(self, study: Study, arm: Arm) -> StepTime:
        """A rank's own part of a step: nothing here waits for another rank."""
        expected = self.expectations[study.workload.name]
        busy_s = arm.batch_size / expected.img_per_s
        host_s = 0.0 if self.device_type == "cpu" else model_of(study.workload).host_step_s
        if arm.infers:
            busy_s = arm.batch_size / (expected.inferred_img_per_s or expected.img_per_s / FORWARD_SHARE)
            host_s *= FORWARD_SHARE
        is_wrapped = arm.kind in ("ddp", "no_sync")
        computation_s = max(busy_s, host_s) * (1 + DDP_OVERHEAD if is_wrapped else 1.0)
        if arm.kind == "ddp" and arm.world_size > 1:
            computation_s *= self._slower_together(study, arm, computation_s)
        busy_share = 1.0 if busy_s >= host_s else busy_s / computation_s
        return StepTime(computation_s, busy_share, busy_share * expected.utilization_of(arm.world_size))

    def exposed_s(
        self, workload: Workload, world_size: int, nodes: int, computation_s: FloatArray, link_share: float = 1.0
    ) -> FloatArray:
        """Communication that the backward pass does not hide.

        Every bucket but the last can travel while the backward pass goes on; what of them does not fit into it, and
        the last bucket, are waited for. Computation is that of steps on the slowest rank, `link_share` (0 … 1) the
        bandwidth left on the slowest node's links.
        """
        gradient_bytes = model_of(workload).gradient_bytes
        early_s, last_s = _travelling_s(gradient_bytes, world_size, nodes, self.topology, link_share)
        return np.maximum(0.0, early_s - BACKWARD_SHARE * computation_s) + last_s

    def of_cluster(self, seed: int) -> Performance:
        """The same of other nodes and GPUs of that kind: with another seed they differ otherwise."""
        return replace(self, spread=replace(self.spread, seed=seed))

    @property
    def parameters(self) -> dict[str, Any]:
        """All of them, for run.json."""
        return {
            "topology": asdict(self.topology),
            "noise": asdict(self.noise),
            "spread": asdict(self.spread),
            "img_per_s": {name: expectation.img_per_s for name, expectation in self.expectations.items()},
            "ddp_overhead": DDP_OVERHEAD,
            "backward_share": BACKWARD_SHARE,
        }

    def _slower_together(self, study: Study, arm: Arm, computation_s: float) -> float:
        """Factor on the computation at which the whole step has the published efficiency; 1 if none is published.

        Published efficiencies lie below what exposed communication explains: NCCL's kernels share the GPU with the
        backward pass, and GPUs that all work are hotter. Beyond the largest published world size: as there. They were
        measured on GPUs that differ as these do: what is waited for the slowest of them is part of the published loss.
        """
        expectation = self.expectations[study.workload.name]
        size = expectation.published_size(study.scaling, arm.world_size)
        if size is None:
            return 1.0
        batch_size = arm.batch_size * (arm.world_size // size if study.scaling == "strong" else 1)
        step_s = batch_size / expectation.img_per_s / expectation.efficiency_at(study.scaling, size)
        # In every step, for the slowest rank.
        waited = 1 + expected_maximum(size) * math.hypot(self.noise.step_sd, self.spread.gpu_sd)
        exposed_s = self.exposed_s(study.workload, size, self.topology.nodes(size), np.array(step_s))
        return max(1.0, float(step_s - exposed_s) / waited / computation_s)


def expected_maximum(count: int) -> float:
    """Mean of the largest of so many standard normal values, nearly: Blom (1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


@lru_cache(maxsize=256)
def _travelling_s(
    gradient_bytes: int, world_size: int, nodes: int, topology: Topology, link_share: float
) -> tuple[float, float]:
    """How long all buckets but the last take to be averaged, and how long the last."""
    *early_s, last_s = (
        all_reduce_s(size, world_size, nodes, topology, link_share) for size in _buckets(gradient_bytes)
    )
    return sum(early_s), last_s


def _buckets(gradient_bytes: int) -> list[int]:
    """Sizes of the buckets in the order in which the backward pass fills them."""
    first = min(FIRST_BUCKET_BYTES, gradient_bytes)
    whole, rest = divmod(gradient_bytes - first, BUCKET_BYTES)
    return [first, *([BUCKET_BYTES] * whole), *([rest] if rest else [])]
