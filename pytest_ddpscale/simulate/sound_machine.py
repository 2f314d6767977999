"""What the thresholds say a sound machine of a SKU does: the source of the simulator's numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.metric import Metric
from pytest_ddpscale.plan.metric_catalogue import (
    DEVICE_UTILIZATION,
    IMAGES_PER_JOULE,
    PEAK_MEMORY_GIB,
    STRONG_SCALING_EFFICIENCY,
    THROUGHPUT_PER_GPU,
    WEAK_SCALING_EFFICIENCY,
)
from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.plan.study import MOST_RANKS, Scaling
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.simulate.allreduce import Topology
from pytest_ddpscale.simulate.models import model_of
from pytest_ddpscale.thresholds.cases import AnyCase, NodeCase
from pytest_ddpscale.thresholds.loading import ThresholdsFile
from pytest_ddpscale.thresholds.model import Peak, Requirement, Thresholds

# A bound that nobody measured is taken to lie as far from what a sound machine does as the published ones: 5 %.
MARGIN = 0.05
_UTILIZATION = 0.985
_OF_PEAK = 0.7  # that a probe reaches of which nobody said more
_EFFICIENCIES = (WEAK_SCALING_EFFICIENCY, STRONG_SCALING_EFFICIENCY)


@dataclass(frozen=True)
class Expectation:
    """One workload on a sound machine.

    Attributes:
        img_per_s: of one GPU alone.
        efficiency: published ones, by scaling and world size.
        utilization: of the least busy GPU, by world size.
        memory_at: bytes that a rank holds at most, and at which per-GPU batch.
        power_w: that a GPU takes while it trains, whether it computes or waits; None if nobody said.
    """

    img_per_s: float
    efficiency: Mapping[Scaling, Mapping[int, float]]
    utilization: Mapping[int, float]
    memory_at: tuple[float, int] | None
    power_w: float | None = None

    def published_size(self, scaling: Scaling, world_size: int) -> int | None:
        """The world size, or the largest published one if that is smaller; None if nothing is published."""
        published = self.efficiency.get(scaling)
        return min(world_size, max(published)) if published else None

    def efficiency_at(self, scaling: Scaling, world_size: int) -> float:
        """Efficiency between published ones by interpolation over the logarithm of the world size.

        Args:
            scaling: one with a published efficiency.
            world_size: from 1 to the largest published one.
        """
        known = {1: 1.0, **self.efficiency[scaling]}
        below = max(k for k in known if k <= world_size)
        above = min(k for k in known if k >= world_size)
        if below == above:
            return known[below]
        way = math.log(world_size / below) / math.log(above / below)
        return known[below] + way * (known[above] - known[below])

    def utilization_of(self, world_size: int) -> float:
        """Of the least busy GPU where nothing waits for the host: as at the nearest smaller known world size."""
        below = [k for k in self.utilization if k <= world_size]
        nearest = max(below) if below else min(self.utilization, default=None)
        return _UTILIZATION if nearest is None else self.utilization[nearest]


def expectation_of(workload: Workload, sku_name: str, file: ThresholdsFile) -> Expectation:
    """What a SKU's requirements say of a workload: published figures, or what bounds allow for.

    Raises:
        OptionError: no line says how fast a GPU is.
    """
    lines = [r for r in file.thresholds.skus[sku_name].requirements if r.workload == workload.name]
    img_per_s = _img_per_s(lines, file.thresholds)
    if img_per_s is None:
        raise OptionError(
            str(file.path), f"{sku_name} has neither throughput_per_gpu nor generation_ratio of {workload.name}",
            "a line that says how fast a GPU is", "Add one, or leave the workload out with --workloads.",
        )  # fmt: skip
    efficiency = {metric.scaling: _published(lines, metric) for metric in _EFFICIENCIES}
    return Expectation(
        img_per_s=img_per_s,
        efficiency=efficiency,
        utilization={k: min(u, 1.0) for k, u in _published(lines, DEVICE_UTILIZATION).items()},
        memory_at=_memory(lines, workload),
        power_w=_power_w(lines, img_per_s, efficiency["weak"]),
    )


def probe_values(
    cases: Sequence[AnyCase], probes: Sequence[Probe], peak: Peak | None, topology: Topology
) -> dict[Probe, float]:
    """What a sound machine reaches in each probe, in the unit of its metric: TFLOPS or GB/s.

    Args:
        cases: requirements; of several on a probe the highest counts.
        probes: all that are done, asked for by a requirement or not.
        peak: of the SKU; None if nobody said.
        topology: of the cluster.
    """
    asked: dict[Probe, float] = {}
    for case in cases:
        if isinstance(case, NodeCase) and case.probe is not None:
            value = min(_expected(case.requirement), case.peak or math.inf)
            asked[case.probe] = max(asked.get(case.probe, 0.0), value)
    return {probe: asked.get(probe) or _unasked(probe, peak, topology) for probe in probes}


def _unasked(probe: Probe, peak: Peak | None, topology: Topology) -> float:
    """Roughly: nobody is judged by it."""
    if probe.message_bytes is not None:
        link = topology.inside if probe.world_size <= topology.gpus_per_node else topology.between
        return link.bytes_per_s / 1e9
    if probe.kind == "matmul":
        return _OF_PEAK * ((peak.fp16_tflops if peak else None) or 1.0)
    return _OF_PEAK * ((peak.memory_bandwidth_gbps if peak else None) or 10.0)


def _img_per_s(lines: Sequence[Requirement], thresholds: Thresholds) -> float | None:
    throughput = [line for line in lines if line.definition is THROUGHPUT_PER_GPU]
    if throughput:
        return _expected(min(throughput, key=_ranks))
    ratios = [line for line in lines if line.versus is not None]
    return _expected(ratios[0]) * thresholds.reference_throughput(ratios[0])[0] if ratios else None


def memory_bytes(expectation: Expectation, workload: Workload, batch_size: int) -> int:
    """Peak memory of a rank at a batch: the published one scaled, else a rough one."""
    model = model_of(workload)
    if expectation.memory_at is None:
        return round(model.memory_bytes(batch_size, workload.image_size))
    held, at_batch = expectation.memory_at
    state = min(model.state_bytes, held)
    return round(state + (held - state) * batch_size / at_batch)


def _expected(line: Requirement) -> float:
    """What a sound machine does. A bound that is the published figure itself is what every one has to do better."""
    if line.source.measured is not None and line.source.measured != line.bound:
        return line.source.measured
    return line.bound / (1 + MARGIN) if line.definition.upper_bound else line.bound * (1 + MARGIN)


def _published(lines: Sequence[Requirement], metric: Metric) -> dict[int, float]:
    found = [line for line in lines if line.definition is metric and line.source.measured is not None]
    sized = ((line.world_size, line.source.measured) for line in found)
    # A line that says in words how many, such as `all`, does not say of how many ranks its figure is.
    return {size: measured for size, measured in sized if isinstance(size, int) and measured is not None}


def _ranks(line: Requirement) -> int:
    """As many as can be of a line that says it in words."""
    return line.world_size if isinstance(line.world_size, int) else MOST_RANKS


def _power_w(lines: Sequence[Requirement], img_per_s: float, efficiency: Mapping[int, float]) -> float | None:
    energy = [line for line in lines if line.definition is IMAGES_PER_JOULE]
    return img_per_s * efficiency.get(_ranks(energy[0]), 1.0) / _expected(energy[0]) if energy else None


def _memory(lines: Sequence[Requirement], workload: Workload) -> tuple[float, int] | None:
    peaks = [line for line in lines if line.definition is PEAK_MEMORY_GIB]
    return (_expected(peaks[0]) * 2**30, workload.batch_size) if peaks else None
