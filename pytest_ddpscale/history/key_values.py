"""Key values of each place in a run: the few numbers worth comparing with other runs."""

from __future__ import annotations

import math
import statistics
from typing import Annotated, NamedTuple

from msgspec import Meta

from pytest_ddpscale.judge.values import own_values
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.place import CPU, Place
from pytest_ddpscale.run.strict_json import Record
from pytest_ddpscale.run.table import memoized


class KeyValueSeries(NamedTuple):
    """What two key values must share to be comparable: the same place and the same work.

    Attributes:
        gpu: UUID of the GPU, in any slot; ``cpu:0`` is the CPU rank of that number; empty for the whole node.
        subject: name of the workload or probe.
        world_size: ranks on this host that worked together or at the same time.
        arm: ``alone``, ``each``, ``ddp`` or ``probe``.
        definition: digest of everything else that the value depends on, such as the batch size.
    """

    host: str
    gpu: str
    metric: str
    subject: str
    world_size: int
    arm: str
    definition: str


class KeyValue(Record, array_like=True):
    """Value of one place, of a metric of which more is better.

    Attributes:
        series: the values that it may be compared with.
        gpu_index: NVML's index of the GPU, on a CPU the local rank; None for the whole node, and if it is not known.
        value: median over the rounds, in `unit`, the metric's.
        batch_size: per GPU, which distinguishes weak from strong scaling; None for a probe.
        has_regressed: whether it is worse than the runs before; then it is no baseline.
    """

    series: KeyValueSeries
    gpu_index: int | None
    value: Annotated[float, Meta(gt=0)]
    unit: str
    batch_size: int | None = None
    has_regressed: bool = False

    @property
    def what(self) -> str:
        """``throughput_per_gpu resnet50-fp16 (DDP of 8, batch 256)``: the quantity without its place."""
        ranks, series = self.series.world_size, self.series
        together = {"each": f"{ranks} at once", "ddp": f"DDP of {ranks}", "alone": "alone"}
        ranks_text = together.get(series.arm, f"{ranks} ranks" if ranks > 1 else "")
        ranks_text += f", batch {self.batch_size}" if self.batch_size is not None else ""
        return f"{series.metric} {series.subject}" + f" ({ranks_text})" * bool(ranks_text)

    @property
    def place(self) -> Place:
        """The GPU, or the node."""
        return Place(self.series.host, None, self.series.gpu.partition(":")[0], self.gpu_index)

    @property
    def where(self) -> str:
        """``GPU 3 on n1``, or the node's name."""
        return f"{self.place.number} on {self.series.host}" if self.series.gpu else self.series.host


@memoized
def key_values_of(evidence: Evidence) -> list[KeyValue]:
    """The key values of a run, one for each series: medians over rounds of what values.csv has of each place.

    Of the groups and pairs of ranks of a node the slowest counts. Too few rounds, whose median is too uncertain, and
    failed studies give none.
    """
    unique = dict[KeyValueSeries, KeyValue]()
    for own in own_values(evidence):
        arm, key_values = own.arm, dict[KeyValueSeries, KeyValue]()
        kind, batch = ("probe", None) if arm.is_probe else (arm.kind, arm.batch_size)
        together = min(arm.world_size, evidence.plan.layout.ranks_per_node)
        for place, samples in own.values.items():
            gpu = place.ends[0] if place.kind == "gpu" else Place(place.host)
            name = f"{CPU}:{gpu.index}" if gpu.uuid == CPU else gpu.uuid
            series = KeyValueSeries(place.host, name, own.metric.name, own.workload, together, kind, own.measured)
            median = statistics.median(samples.tolist())
            is_slowest = series not in key_values or median < key_values[series].value
            if len(samples) >= FEWEST_ROUNDS and 0 < median < math.inf and is_slowest:
                key_values[series] = KeyValue(series, gpu.index, median, own.unit, batch)
        # If two arms give the same series, such as each@8 and each@16, the first counts. So does the first of several
        # launches, because the values of other runs are of one launch and vary like one.
        for series, value in key_values.items():
            unique.setdefault(series, value)
    return list(unique.values())
