"""The catalogue of metrics: one name per idea, the same in YAML, tests, verdicts and reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_ddpscale.plan.study import Arm, Scaling
from pytest_ddpscale.plan.workload import Workload

Unit = Literal["img/s", "fraction", "x", "GiB"]


@dataclass(frozen=True)
class Metric:
    """What a requirement may be about.

    Attributes:
        name: as in thresholds.yaml.
        unit: of values and bounds. ``fraction`` is 0 … 1 and shown as per cent; ``x`` is a ratio.
        scaling: the kind of study that measures it.
        minimum_world_size: smallest world size for which it means anything.
        relative_to_alone: whether the arm ``alone`` is needed as its baseline.
        takes_versus: whether the requirement names a reference SKU.
        upper_bound: whether its bound is ``at_most`` (True) or ``at_least`` (False).
        title: heading for reports.
        meaning: one sentence for a stakeholder.
    """

    name: str
    unit: Unit
    scaling: Scaling
    minimum_world_size: int
    relative_to_alone: bool
    takes_versus: bool
    upper_bound: bool
    title: str
    meaning: str


_ALL = (
    Metric(
        "throughput_per_gpu", "img/s", "weak", 1, False, False, False, "Throughput per GPU",
        "Images each GPU trains per second: efficiency alone would pass if every GPU were equally slow.",
    ),
    Metric(
        "weak_scaling_efficiency", "fraction", "weak", 2, True, False, False, "Weak-scaling efficiency",
        "Throughput per GPU among many, relative to one GPU alone, at a fixed per-GPU batch.",
    ),
    Metric(
        "strong_scaling_speedup", "x", "strong", 2, True, False, False, "Strong-scaling speed-up",
        "How many times faster the same global batch is trained by many GPUs than by one.",
    ),
    Metric(
        "strong_scaling_efficiency", "fraction", "strong", 2, True, False, False, "Strong-scaling efficiency",
        "Strong-scaling speed-up divided by the number of GPUs.",
    ),
    Metric(
        "device_utilization", "fraction", "weak", 1, False, False, False, "Device utilization",
        "Share of time the least busy device was busy (NVML; on CPU the process's CPU share).",
    ),
    Metric(
        "generation_ratio", "x", "weak", 1, False, True, False, "Generation ratio",
        "Throughput per GPU relative to the reference generation, each at its own largest batch.",
    ),
    Metric(
        "peak_memory_gib", "GiB", "weak", 1, False, False, True, "Peak memory",
        "Most memory any rank held while it trained.",
    ),
)  # fmt: skip

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}


def measured_arm(metric: Metric, workload: Workload, world_size: int) -> Arm:
    """The arm whose blocks give this metric's value.

    Raises:
        ValueError: strong scaling without a global batch, or one that the ranks cannot share evenly.
    """
    batch_size = _batch_size_per_gpu(metric.scaling, workload, world_size)
    return Arm("alone" if world_size == 1 else "ddp", world_size, batch_size)


def baseline_arm(metric: Metric, workload: Workload) -> Arm:
    """The arm ``alone`` that a ratio is taken against. Raises ValueError as `measured_arm`."""
    return Arm("alone", 1, _batch_size_per_gpu(metric.scaling, workload, 1))


def required_arms(metric: Metric, workload: Workload, world_size: int) -> list[Arm]:
    """Every arm that has to be timed for this metric, baseline first."""
    arms = [measured_arm(metric, workload, world_size)]
    if metric.relative_to_alone:
        arms.insert(0, baseline_arm(metric, workload))
    return arms


def _batch_size_per_gpu(scaling: Scaling, workload: Workload, world_size: int) -> int:
    if scaling == "weak":
        return workload.batch_size
    if workload.global_batch_size is None:
        raise ValueError(f"workload {workload.name} has no global_batch_size, which strong scaling divides")
    if workload.global_batch_size % world_size:
        raise ValueError(
            f"global_batch_size {workload.global_batch_size} of {workload.name} "
            f"cannot be shared evenly by {world_size} ranks"
        )
    return workload.global_batch_size // world_size
