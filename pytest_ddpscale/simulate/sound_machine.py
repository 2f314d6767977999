"""Performance of a sound machine of a SKU, from the thresholds: the source of the simulator's numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.metric_catalogue import (
    DEVICE_UTILIZATION,
    IMAGES_PER_JOULE,
    INFERENCE_THROUGHPUT,
    PEAK_MEMORY_GIB,
    STRONG_SCALING_EFFICIENCY,
    THROUGHPUT_PER_GPU,
    WEAK_SCALING_EFFICIENCY,
    Metric,
)
from pytest_ddpscale.plan.study import MOST_RANKS, Scaling
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.simulate.models import FORWARD_SHARE, model_of
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Requirement, Thresholds

# A bound without a published figure is assumed to be as far from a sound machine's value as the published ones: 5 %.
MARGIN = 0.05
_UTILIZATION = 0.985
# Copying gradients into and out of buckets, also in ddp@1 and no_sync.
DDP_OVERHEAD = 0.002
_EFFICIENCIES = (WEAK_SCALING_EFFICIENCY, STRONG_SCALING_EFFICIENCY)


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
    memory_at: tuple[float, int] | None
    power_w: float | None = None
    inferred_samples_per_s: float | None = None

    def published_size(self, scaling: Scaling, world_size: int) -> int | None:
        """The world size, or the largest published one if that is smaller; None if nothing is published."""
        published = self.efficiency.get(scaling)
        return min(world_size, max(published)) if published else None

    def efficiency_at(self, scaling: Scaling, world_size: int) -> float:
        """Efficiency, interpolated between published ones over the logarithm of the world size."""
        known = sorted({1: 1.0, **self.efficiency[scaling]}.items())
        return float(np.interp(math.log(world_size), [math.log(k) for k, _ in known], [share for _, share in known]))

    def utilization_of(self, world_size: int) -> float:
        """Utilization of the least busy GPU if nothing waits for the host: that of the nearest smaller known size."""
        nearest = max((k for k in self.utilization if k <= world_size), default=min(self.utilization, default=0))
        return self.utilization.get(nearest, _UTILIZATION)

    def memory_bytes(self, workload: Workload, batch_size: int) -> int:
        """Peak memory of a rank at a batch: scaled from the published value, or a rough estimate."""
        model = model_of(workload)
        if self.memory_at is None:
            return round(model.memory_bytes(batch_size, workload.family.image_size))
        held, at_batch = self.memory_at
        state = min(model.state_bytes, held)
        return round(state + (held - state) * batch_size / at_batch)


def expectation_of(workload: Workload, sku_name: str, file: ThresholdsFile, ranks_per_node: int = 8) -> Expectation:
    """Expectation of a workload from a SKU's requirements: what a sound machine reaches, or values derived from bounds.

    Raises:
        OptionError: no requirement gives the speed of a GPU.
    """
    lines = [r for r in file.thresholds.skus[sku_name].requirements if r.workload == workload.name]
    inference = [line for line in lines if line.definition is INFERENCE_THROUGHPUT]
    inferred = expected_value(min(inference, key=_ranks)) if inference else None
    samples_per_s = _samples_per_s(lines, file.thresholds) or (inferred and FORWARD_SHARE * inferred)
    if samples_per_s is None:
        raise OptionError(
            str(file.path), f"{sku_name} has neither throughput_per_gpu nor generation_ratio of {workload.name}",
            "a requirement with the speed of a GPU", "Add one, or leave the workload out with --workloads.",
        )  # fmt: skip
    efficiency = {metric.scaling: _published(lines, metric, ranks_per_node) for metric in _EFFICIENCIES}
    energy = next((line for line in lines if line.definition is IMAGES_PER_JOULE), None)
    peak = next((line for line in lines if line.definition is PEAK_MEMORY_GIB), None)
    return Expectation(
        samples_per_s=samples_per_s,
        inferred_samples_per_s=inferred,
        efficiency=efficiency,
        utilization={k: min(u, 1.0) for k, u in _published(lines, DEVICE_UTILIZATION, ranks_per_node).items()},
        memory_at=(expected_value(peak) * 2**30, workload.batch_size) if peak else None,
        power_w=samples_per_s * efficiency["weak"].get(_ranks(energy), 1.0) / expected_value(energy)
        if energy
        else None,
    )


def _samples_per_s(lines: Sequence[Requirement], thresholds: Thresholds) -> float | None:
    throughput = [line for line in lines if line.definition is THROUGHPUT_PER_GPU]
    if throughput:
        smallest = min(throughput, key=_ranks)
        return expected_value(smallest) * _alone_to_one_gpu(smallest)
    ratios = [line for line in lines if line.versus is not None and not line.missing]
    if not ratios:
        return None
    return expected_value(ratios[0]) * thresholds.reference_throughput(ratios[0])[0] * _alone_to_one_gpu(ratios[0])


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


def _published(lines: Sequence[Requirement], metric: Metric, ranks_per_node: int) -> dict[int, float]:
    """Values of a sound machine, published or said in a row, by number of ranks."""
    found: dict[int, float] = {}
    for line in lines:
        # Words do not give the number of ranks of a publication; a row says of any node what a sound one reaches.
        size = ranks_per_node if line.world_size == "node" and line.sound is not None else line.world_size
        if line.definition is metric and isinstance(size, int) and line.sound_value is not None:
            found[size] = line.sound_value / _alone_to_one_gpu(line)
    return found


def _ranks(line: Requirement) -> int:
    """World size of a requirement; the maximum if it is given in words."""
    return line.world_size if isinstance(line.world_size, int) else MOST_RANKS
