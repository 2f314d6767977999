"""The catalogue of metrics: one name per idea, the same in YAML, tests, verdicts and reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_ddpscale.plan.probe import COLLECTIVES, ProbeKind
from pytest_ddpscale.plan.study import Arm, ArmKind, Placement, Scaling
from pytest_ddpscale.plan.workload import Workload

Unit = Literal["img/s", "fraction", "x", "GiB", "ms", "TFLOPS", "GB/s", "img/J"]
# Rates and ratios err by factors; shares of time, memory and differences of times by differences.
Scale = Literal["factors", "differences"]
# What a requirement is about: the training of a workload, a probe, a check of the nodes, or all that a node reached.
Subject = Literal["workload", "probe", "check", "node"]


@dataclass(frozen=True)
class Metric:
    """What a requirement may be about.

    Attributes:
        name: as in thresholds.yaml.
        unit: of values and bounds. ``fraction`` is 0 … 1 and shown as per cent; ``x`` is a ratio.
        scaling: the kind of study that measures it.
        title: heading for reports.
        meaning: one sentence for a stakeholder.
        minimum_world_size: smallest world size for which it means anything.
        maximum_world_size: largest one; None without a limit.
        measured: the kind of arm that gives its value; ``ddp`` of one rank is ``alone`` unless that is the baseline.
        baseline: the kind of arm it is compared with, in the same round; None if it stands for itself.
        takes_versus: whether the requirement names a reference SKU.
        upper_bound: whether its bound is ``at_most`` (True) or ``at_least`` (False).
        scale: how its per-round values err.
        carries_acceptance: whether a machine may be accepted because a bound of it was kept. Not what says
            only that ranks are alike, or cost little: a machine on which everything is equally slow keeps that.
            Nor what no model was trained for.
        subject: what a requirement of it is about.
        probes: kinds of probes that measure it.
        plausible: least and greatest value that any machine could have; None for that of its unit.
    """

    name: str
    unit: Unit
    scaling: Scaling
    title: str
    meaning: str
    minimum_world_size: int = 1
    maximum_world_size: int | None = None
    measured: ArmKind = "ddp"
    baseline: ArmKind | None = None
    takes_versus: bool = False
    upper_bound: bool = False
    scale: Scale = "factors"
    carries_acceptance: bool = True
    subject: Subject = "workload"
    probes: tuple[ProbeKind, ...] = ()
    plausible: tuple[float, float] | None = None

    @property
    def tells_speed(self) -> bool:
        """Whether a bound of it, kept by ranks together, says how fast they work or communicate."""
        return self.scale == "factors" and (self.carries_acceptance or self.subject == "probe")

    def range_at(self, world_size: int) -> tuple[float, float]:
        """The least and the greatest value that any machine could have: a bound beyond them judges nothing."""
        if self.name == "strong_scaling_speedup":
            return _PLAUSIBLE[self.unit][0], MOST_EFFICIENCY * world_size
        return self.plausible or _PLAUSIBLE[self.unit]


# Generous: a thousand times slower than the slowest machine of today, and ten times faster than the fastest.
_PLAUSIBLE: dict[Unit, tuple[float, float]] = {
    "img/s": (0.001, 1e6),
    "fraction": (0.001, 1.0),
    "x": (0.001, 1000.0),
    "GiB": (0.001, 10_000.0),
    "ms": (0.01, 3.6e6),
    "TFLOPS": (0.001, 100_000.0),
    "GB/s": (0.001, 100_000.0),
    "img/J": (1e-6, 1e6),
}
# Costs, which may be nothing at all.
_COST = (0.0, 1.0)
# More is a sign that the measurement or its baseline was disturbed.
MOST_EFFICIENCY = 1.1

_ALL = (
    Metric(
        "throughput_per_gpu", "img/s", "weak", "Throughput per GPU",
        "Images each GPU trains per second: efficiency alone would pass if every GPU were equally slow.",
    ),
    Metric(
        "weak_scaling_efficiency", "fraction", "weak", "Weak-scaling efficiency",
        "Throughput per GPU among many, relative to one GPU alone, at a fixed per-GPU batch.",
        minimum_world_size=2, baseline="alone", plausible=(0.001, MOST_EFFICIENCY),
    ),
    Metric(
        "strong_scaling_speedup", "x", "strong", "Strong-scaling speed-up",
        "How many times faster the same global batch is trained by many GPUs than by one.",
        minimum_world_size=2, baseline="alone",
    ),
    Metric(
        "strong_scaling_efficiency", "fraction", "strong", "Strong-scaling efficiency",
        "Strong-scaling speed-up divided by the number of GPUs.",
        minimum_world_size=2, baseline="alone", plausible=(0.001, MOST_EFFICIENCY),
    ),
    Metric(
        "rank_uniformity", "x", "weak", "Rank uniformity",
        "Step time of the slowest GPU over that of its peers, each computing by itself at the same time.",
        minimum_world_size=2, measured="each", upper_bound=True, carries_acceptance=False, plausible=(1.0, 1000.0),
    ),
    Metric(
        "exposed_communication", "fraction", "weak", "Exposed communication",
        "Share of a step that waits for communication which computation does not hide.",
        minimum_world_size=2, baseline="no_sync", upper_bound=True, scale="differences", carries_acceptance=False,
        plausible=_COST,
    ),
    Metric(
        "ddp_overhead", "fraction", "weak", "DDP overhead",
        "How much longer a step of one GPU takes under DistributedDataParallel than without it.",
        maximum_world_size=1, baseline="alone", upper_bound=True, scale="differences", carries_acceptance=False,
        plausible=_COST,
    ),
    Metric(
        "step_time_p95", "ms", "weak", "95th percentile of the step time",
        "Nineteen of twenty steps, of any rank, take no longer.",
        upper_bound=True,
    ),
    Metric(
        "step_time_cv", "fraction", "weak", "Spread of the step time",
        "Standard deviation of the step time relative to its mean, on the rank where it is largest.",
        upper_bound=True, scale="differences", carries_acceptance=False, plausible=_COST,
    ),
    Metric(
        "device_utilization", "fraction", "weak", "Device utilization",
        "Share of time the least busy device was busy (NVML; on CPU the process's CPU share).",
        scale="differences",
    ),
    Metric(
        "model_flops_utilization", "fraction", "weak", "Model FLOPs utilization",
        "Floating-point operations the model needs per second, relative to the data sheet's peak.",
    ),
    Metric(
        "generation_ratio", "x", "weak", "Generation ratio",
        "Throughput per GPU relative to the reference generation, each at its own largest batch.",
        takes_versus=True,
    ),
    Metric(
        "peak_memory_gib", "GiB", "weak", "Peak memory",
        "Most memory any rank held while it trained.",
        upper_bound=True, scale="differences",
    ),
    Metric(
        "memory_spread", "fraction", "weak", "Memory spread",
        "Difference between the most and the least memory that ranks held, relative to the most.",
        minimum_world_size=2, upper_bound=True, scale="differences", carries_acceptance=False, plausible=_COST,
    ),
    Metric(
        "replica_agreement", "fraction", "weak", "Replica agreement",
        "Share of ranks whose parameters, and own result of one seeded step, are bit for bit those of the others.",
        minimum_world_size=2, scale="differences", carries_acceptance=False,
    ),
    Metric(
        "images_per_joule", "img/J", "weak", "Images per joule",
        "Images trained per joule that the GPUs take; the least efficient of them.",
        carries_acceptance=False,
    ),
    Metric(
        "node_check", "fraction", "weak", "Node checks",
        "Share of nodes that are as they should be: their GPUs, memory errors, links, clocks and software.",
        scale="differences", carries_acceptance=False, subject="check",
    ),
    Metric(
        "matmul_tflops", "TFLOPS", "weak", "Matrix multiplication",
        "Floating-point operations per second of one large matrix product; the slowest GPU.",
        maximum_world_size=1, carries_acceptance=False, subject="probe", probes=("matmul",),
    ),
    Metric(
        "memory_bandwidth_gbps", "GB/s", "weak", "Device-memory bandwidth",
        "What a GPU reads and writes per second when it copies within its own memory; the slowest GPU.",
        maximum_world_size=1, carries_acceptance=False, subject="probe", probes=("memory-copy",),
    ),
    Metric(
        "host_bandwidth_gbps", "GB/s", "weak", "Host bandwidth",
        "What a GPU copies per second from or to its host, all GPUs at once; the slowest GPU.",
        maximum_world_size=1, carries_acceptance=False, subject="probe", probes=("host-to-device", "device-to-host"),
    ),
    Metric(
        "busbw_gbps", "GB/s", "weak", "Bus bandwidth",
        "Bandwidth that a collective reaches on each GPU's links, by the formulas of nccl-tests.",
        minimum_world_size=2, carries_acceptance=False, subject="probe", probes=COLLECTIVES,
    ),
    Metric(
        "pair_bandwidth_gbps", "GB/s", "weak", "Bandwidth of pairs",
        "What two GPUs of a node send each other per second, in each direction; the slowest pair.",
        minimum_world_size=2, carries_acceptance=False, subject="probe", probes=("send-recv",),
    ),
    Metric(
        "no_regression", "x", "weak", "No regression",
        "What a node reaches relative to its own earlier runs; the value that fell most.",
        carries_acceptance=False, subject="node", plausible=(0.001, 1.0),
    ),
)  # fmt: skip

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
# Those that are told by training a workload.
TRAINING_METRICS: dict[str, Metric] = {name: metric for name, metric in METRICS.items() if metric.subject == "workload"}


def measured_arm(metric: Metric, workload: Workload, world_size: int, placement: Placement = "packed") -> Arm:
    """The arm whose blocks give this metric's value.

    Raises:
        ValueError: strong scaling without a global batch, or one that the ranks cannot share evenly.
    """
    batch_size = _batch_size_per_gpu(metric.scaling, workload, world_size)
    is_alone = world_size == 1 and metric.measured == "ddp" and metric.baseline is None
    return Arm("alone", 1, batch_size) if is_alone else Arm(metric.measured, world_size, batch_size, placement)


def baseline_arm(metric: Metric, workload: Workload, world_size: int, placement: Placement = "packed") -> Arm | None:
    """The arm that the measured one is compared with; None if it stands for itself. Raises as `measured_arm`."""
    if metric.baseline is None:
        return None
    if metric.baseline == "alone":
        return Arm("alone", 1, _batch_size_per_gpu(metric.scaling, workload, 1))
    return Arm(metric.baseline, world_size, _batch_size_per_gpu(metric.scaling, workload, world_size), placement)


def required_arms(metric: Metric, workload: Workload, world_size: int, placement: Placement = "packed") -> list[Arm]:
    """Every arm that has to be timed for this metric, baseline first."""
    baseline = baseline_arm(metric, workload, world_size, placement)
    return [*([baseline] if baseline else []), measured_arm(metric, workload, world_size, placement)]


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
