"""The catalogue of metrics: each is declared once, with all of its properties.

The shape of thresholds.yaml and its schema, judge, blame, reports and the page of metrics derive from it. To add a
metric, see docs/adding.md.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from pytest_ddpscale.families.family import Family
from pytest_ddpscale.plan.arm import USUAL, ArmKind, Variant
from pytest_ddpscale.plan.operation import KINDS
from pytest_ddpscale.plan.study import Scaling

# Errors of rates and ratios are relative; those of shares of time, memory and time differences are absolute.
Scale = Literal["factors", "differences"]
RangeKind = Literal["plausible", "credible", "possible"]
# A larger efficiency means that the measurement or its baseline was disturbed.
MOST_EFFICIENCY = 1.1
# Smallest and largest meaningful bound by unit, generous: from a thousand times slower than today's slowest machine to
# ten times faster than the fastest. Each family names its samples by a unit of its own (`Metric.unit_of`).
_PLAUSIBLE = {
    "samples/s": (0.001, 1e6),
    "fraction": (0.001, 1.0),
    "x": (0.001, 1000.0),
    "GiB": (0.001, 10_000.0),
    "ms": (0.01, 3.6e6),
    "TFLOPS": (0.001, 100_000.0),
    "GB/s": (0.001, 100_000.0),
    "samples/J": (1e-6, 1e6),
}


@dataclass(eq=False)
class Metric:
    """A quantity that requirements bound. Each exists once, so metrics are compared by identity.

    Attributes:
        name: as in thresholds.yaml.
        unit: of values and bounds, one of `_PLAUSIBLE`. ``fraction`` is 0 … 1 and shown as per cent; ``x`` is a ratio.
        title: heading for reports.
        meaning: one sentence for a stakeholder.
        formula: its value in one round, for the page of metrics; t is an arm's throughput per GPU and k the ranks.
        origin: publication of the formula; empty for a definition of this project.
        scaling: the kind of study that measures it.
        minimum_world_size: smallest world size for which it is defined.
        maximum_world_size: largest one; None without a limit.
        measured: the kind of arm that gives its value; ``ddp`` of one rank is ``alone`` unless that is the baseline,
            or the source of the bound trained one GPU under DDP (`times_one_gpu`).
        baseline: the kind of arm it is compared with, in the same round; None without a comparison. ``alone`` of
            many ranks is ``ddp@1`` if the source of the bound measured that.
        baseline_variant: the settings of the baseline arm.
        takes_versus: whether the requirement names a reference SKU.
        takes_peak: whether the SKU must give its peak in the workload's precision.
        upper_bound: whether its bound is ``at_most`` (True) or ``at_least`` (False).
        scale: whether errors of its per-round values are relative or absolute.
        carries_acceptance: whether meeting a bound on it can justify acceptance: not for metrics that only compare
            ranks or measure overheads, which a uniformly slow machine meets, or that are measured without training.
        subject: what a requirement on it is about: the training of a workload, a probe, a check of the nodes, or all
            results of a node.
        plausible: smallest and largest meaningful bound; None for those of its unit.
        least_credible: the smallest credible value of a measurement on GPUs; below, it or its baseline was disturbed.
        most: the largest value possible without disturbance.
        grows_with_ranks: whether largest values are per rank.
        only_bound: the only meaningful bound; None if there are others.
        slowed_by_one_rank: whether one slow rank lowers it for all: under DDP all ranks wait, and of independent ranks
            the slowest counts.
        reads_utilization: whether it is NVML's utilization, which counts a waiting kernel as busy.
        reads_own_pace: whether it compares each rank's own forward passes, which wait for nobody, with its peers'; of a
            compiled model, which does not tell them, steps of ranks that compute alone.
        compares_places: whether it compares the places of a probe with their peers, in place of a bandwidth.
        compares_results: whether it compares the ranks' computed results, so that a rank with wrong results fails it.
    """

    name: str
    unit: str
    title: str
    meaning: str
    formula: str
    _: KW_ONLY
    origin: str = ""
    scaling: Scaling = "weak"
    minimum_world_size: int = 1
    maximum_world_size: int | None = None
    measured: ArmKind = "ddp"
    baseline: ArmKind | None = None
    baseline_variant: Variant = USUAL
    takes_versus: bool = False
    takes_peak: bool = False
    upper_bound: bool = False
    scale: Scale = "factors"
    carries_acceptance: bool = False
    subject: Literal["workload", "probe", "check", "node"] = "workload"
    plausible: tuple[float, float] | None = None
    least_credible: float = -math.inf
    most: float = math.inf
    grows_with_ranks: bool = False
    only_bound: float | None = None
    slowed_by_one_rank: bool = False
    reads_utilization: bool = False
    reads_own_pace: bool = False
    compares_places: bool = False
    compares_results: bool = False

    def unit_of(self, family: Family | type[Family]) -> str:
        """Its unit for workloads of a family, whose unit stands for ``samples`` in ``samples/s``."""
        return self.unit.replace("samples", family.unit)

    @property
    def probes(self) -> tuple[str, ...]:
        """Kinds of probes that measure it."""
        by_peers = self.compares_places
        return tuple(kind for kind, one in KINDS.items() if (one.peers if by_peers else one.metric == self.name))

    @property
    def bound_key(self) -> Literal["at_most", "at_least"]:
        """Key of its bound in a thresholds file."""
        return "at_most" if self.upper_bound else "at_least"

    @property
    def reads_folder(self) -> bool:
        """Whether it compares training on samples from a folder with training on synthetic ones."""
        return self.baseline_variant.data == "synthetic"

    @property
    def communicates(self) -> bool:
        """Whether the ranks of its arm may wait for each other."""
        return self.measured not in ("no_sync", "infer") and not self.reads_own_pace

    @property
    def tells_speed(self) -> bool:
        """Whether a bound that ranks meet together shows how fast they compute or communicate."""
        is_of_speed = self.carries_acceptance or (self.subject == "probe" and not self.compares_places)
        return self.scale == "factors" and is_of_speed

    @property
    def is_rate(self) -> bool:
        """Whether it is a speed or time of one arm, so that nothing cancels the differences between launches."""
        return self.scale == "factors" and self.baseline is None and not self.reads_own_pace

    def times_one_gpu(self, *, is_of_one: bool) -> bool:
        """Whether it times one GPU, alone or under DDP depending on the source of the bound.

        The two differ by DDP's own cost on one GPU.

        Args:
            is_of_one: whether the requirement is about one rank.
        """
        if self.subject != "workload" or self.measured != "ddp":
            return False
        return is_of_one if self.baseline is None else self.baseline == "alone" and not is_of_one

    def range_at(self, world_size: int, of: RangeKind = "plausible") -> tuple[float, float]:
        """The smallest and the largest value of a kind.

        A bound that is not plausible is meaningless; of a measurement on GPUs that is not credible it or its baseline
        was disturbed; intervals are cut at what is possible.
        """
        ranges: dict[RangeKind, tuple[float, float]] = {
            "plausible": self.plausible or _PLAUSIBLE[self.unit],
            "credible": (self.least_credible, self.most),
            "possible": (0.0, self.most),
        }
        least, most = ranges[of]
        return least, most * (world_size if self.grows_with_ranks else 1)


_SHARE = (0.0, 1.0)
_EFFICIENCY: dict[str, Any] = {"plausible": (0.001, MOST_EFFICIENCY), "most": MOST_EFFICIENCY}
_SCALING: dict[str, Any] = {"minimum_world_size": 2, "baseline": "alone", "slowed_by_one_rank": True, **_EFFICIENCY}
_UNIFORMITY: dict[str, Any] = {
    "minimum_world_size": 2, "upper_bound": True, "slowed_by_one_rank": True, "plausible": (1.0, 1000.0),
    "reads_own_pace": True,
}  # fmt: skip
_COMMUNICATION: dict[str, Any] = {
    "minimum_world_size": 2, "baseline": "no_sync", "upper_bound": True, "scale": "differences",
    "slowed_by_one_rank": True,
}  # fmt: skip
_OF_DEVICE: dict[str, Any] = {"maximum_world_size": 1, "subject": "probe"}
_OF_RANKS: dict[str, Any] = {"minimum_world_size": 2, "subject": "probe"}


INFERENCE_LATENCIES = {
    per_cent: Metric(
        f"inference_latency_p{per_cent}", "ms", f"{per_cent}th percentile of the inference latency",
        f"{per_cent} % of forward passes of a batch, on any rank, finish within this time.",
        f"{per_cent}th percentile over all ranks' forward passes of a batch, in infer@k",
        measured="infer", upper_bound=True, slowed_by_one_rank=True,
    )
    for per_cent in (50, 95, 99)
}  # fmt: skip
_ALL = (
    THROUGHPUT_PER_GPU := Metric(
        "throughput_per_gpu", "samples/s", "Throughput per GPU",
        "Images per second that each GPU trains; efficiency alone would pass if every GPU were equally slow.",
        "t(ddp@k); for world size 1 t(alone), or t(ddp@1) with `baseline: ddp`",
        slowed_by_one_rank=True, carries_acceptance=True,
    ),
    WEAK_SCALING_EFFICIENCY := Metric(
        "weak_scaling_efficiency", "fraction", "Weak-scaling efficiency",
        "Throughput per GPU among many, relative to one GPU alone, at a fixed per-GPU batch.",
        "t(ddp@k) ÷ t(alone), or t(ddp@1) with `baseline: ddp`, of a typical rank, per-GPU batch fixed",
        origin="scaled speed-up (Gustafson, CACM 31(5), 1988) per GPU", **_SCALING, carries_acceptance=True,
    ),
    STRONG_SCALING_SPEEDUP := Metric(
        "strong_scaling_speedup", "x", "Strong-scaling speed-up",
        "How many times faster the same global batch is trained by many GPUs than by one.",
        "k · t(ddp@k) ÷ t(alone), or t(ddp@1) with `baseline: ddp`, of a typical rank, global batch fixed",
        origin="speed-up at a fixed size (Amdahl, AFIPS 1967)", scaling="strong", **_SCALING, grows_with_ranks=True,
        carries_acceptance=True,
    ),
    STRONG_SCALING_EFFICIENCY := Metric(
        "strong_scaling_efficiency", "fraction", "Strong-scaling efficiency",
        "Strong-scaling speed-up divided by the number of GPUs.",
        "speed-up ÷ k",
        origin="speed-up at a fixed size (Amdahl, AFIPS 1967), per GPU", scaling="strong", **_SCALING,
        carries_acceptance=True,
    ),
    RANK_UNIFORMITY := Metric(
        "rank_uniformity", "x", "Rank uniformity",
        "Time that the slowest GPU computes a forward pass, over the median of all other GPUs of the run.",
        "step time of a rank ÷ median of all others', in each@k where the study times it, else forward time in ddp@k; "
        "the worst",
        **_UNIFORMITY,
    ),
    NODE_UNIFORMITY := Metric(
        "node_uniformity", "x", "Node uniformity",
        "Time that the slowest node's GPUs compute a forward pass, over the median of all other nodes.",
        "median step time of a node's ranks ÷ median of all other nodes', in each@k where the study times it, else "
        "forward time in ddp@k; the worst",
        **_UNIFORMITY,
    ),
    EXPOSED_COMMUNICATION := Metric(
        "exposed_communication", "fraction", "Exposed communication",
        "Share of a step spent on communication that computation does not hide.",
        "1 − step time of no_sync@k ÷ that of ddp@k",
        **_COMMUNICATION, plausible=_SHARE, least_credible=-0.1, most=1.0,
    ),
    COMPUTATION_TIME := Metric(
        "computation_time", "ms", "Computation time",
        "Time of a training step under DDP without communication, with all ranks computing at once.",
        "step time of no_sync@k: zeroing gradients, forward and backward pass, optimizer; the slowest rank",
        measured="no_sync", upper_bound=True, slowed_by_one_rank=True,
    ),
    COMMUNICATION_TIME := Metric(
        "communication_time", "ms", "Communication time",
        "Extra time of a training step due to communication that computation does not hide.",
        "step time of ddp@k − that of no_sync@k",
        **_COMMUNICATION, least_credible=-10.0,
    ),
    Metric(
        "ddp_overhead", "fraction", "DDP overhead",
        "Relative extra time of a step on one GPU under DistributedDataParallel.",
        "step time of ddp@1 ÷ that of alone − 1",
        maximum_world_size=1, baseline="alone", upper_bound=True, scale="differences", plausible=_SHARE,
        least_credible=-0.1,
    ),
    Metric(
        "step_time_p95", "ms", "95th percentile of the step time",
        "95 % of steps, on any rank, finish within this time.",
        "95th percentile over the raw steps of all ranks",
        upper_bound=True, slowed_by_one_rank=True, carries_acceptance=True,
    ),
    Metric(
        "step_time_cv", "fraction", "Spread of the step time",
        "Standard deviation of the step time relative to its mean, on the rank where it is largest.",
        "standard deviation ÷ mean of the steps, on the rank where it is largest",
        upper_bound=True, scale="differences", plausible=_SHARE,
    ),
    DEVICE_UTILIZATION := Metric(
        "device_utilization", "fraction", "Device utilization",
        "Share of time in which the least busy device was busy (NVML; on a CPU the process's CPU share).",
        "utilization of the least busy rank",
        scale="differences", reads_utilization=True, most=1.0, carries_acceptance=True,
    ),
    Metric(
        "model_flops_utilization", "fraction", "Model FLOPs utilization",
        "Floating-point operations per second that the model needs, relative to the data sheet's peak.",
        "t × FLOPs per image (torch's counter, forward and backward) ÷ the data sheet's dense peak",
        origin="PaLM (Chowdhery et al., arXiv 2204.02311, appendix B)", takes_peak=True, slowed_by_one_rank=True,
        most=1.0, carries_acceptance=True,
    ),
    GENERATION_RATIO := Metric(
        "generation_ratio", "x", "Generation ratio",
        "Throughput per GPU relative to the reference generation, each at its own largest batch.",
        "t ÷ the reference SKU's published throughput of the comparable workload, each at its own batch",
        takes_versus=True, slowed_by_one_rank=True, carries_acceptance=True,
    ),
    PEAK_MEMORY_GIB := Metric(
        "peak_memory_gib", "GiB", "Peak memory",
        "Peak memory during training, on the rank with the most.",
        "peak memory of the rank with the most (GPU: allocated by torch; CPU: resident set)",
        upper_bound=True, scale="differences", carries_acceptance=True,
    ),
    Metric(
        "memory_spread", "fraction", "Memory spread",
        "Difference between the largest and the smallest peak memory of the ranks, relative to the largest.",
        "(largest − smallest) ÷ largest peak memory over the ranks",
        minimum_world_size=2, upper_bound=True, scale="differences", plausible=_SHARE, most=1.0,
    ),
    REPLICA_AGREEMENT := Metric(
        "replica_agreement", "fraction", "Replica agreement",
        "Share of ranks whose parameters, and result of one seeded step, match the others bit for bit.",
        "share of ranks whose parameters after the block, and whose own seeded step, match the others bit for bit",
        minimum_world_size=2, scale="differences", compares_results=True, only_bound=1.0, most=1.0,
    ),
    IMAGES_PER_JOULE := Metric(
        "images_per_joule", "samples/J", "Images per joule",
        "Images trained per joule, on the least efficient GPU.",
        "samples that a rank trained ÷ energy that its GPU used in the block; the lowest of all ranks",
        slowed_by_one_rank=True,
    ),
    INFERENCE_THROUGHPUT := Metric(
        "inference_throughput", "samples/s", "Inference throughput per GPU",
        "Images per second that each GPU classifies, without training, when all do so at once; the slowest GPU.",
        "t(infer@k): forward passes in evaluation mode, at the slowest rank's pace",
        measured="infer", slowed_by_one_rank=True,
    ),
    *INFERENCE_LATENCIES.values(),
    INPUT_PIPELINE_EFFICIENCY := Metric(
        "input_pipeline_efficiency", "fraction", "Input-pipeline efficiency",
        "Throughput on samples read from a folder, relative to the same training on synthetic ones.",
        "t(ddp@k) with `data: {folder: …}` ÷ t(ddp@k) with synthetic data",
        baseline="ddp", baseline_variant=Variant(data="synthetic"), **_EFFICIENCY,
    ),
    NODE_CHECK := Metric(
        "node_check", "fraction", "Node checks",
        "Share of nodes that pass a check of their GPUs, memory errors, links, clocks or software.",
        "share of nodes that pass the check; no rounds",
        scale="differences", subject="check",
    ),
    MATMUL_TFLOPS := Metric(
        "matmul_tflops", "TFLOPS", "Matrix multiplication",
        "Floating-point operations per second of one large matrix product; the slowest GPU.",
        "2n³ ÷ time of an n × n product, n as in the probe's name, else 16384 (fp32: 8192; on a CPU 1024, in half "
        "precision 512), fp32 without TF32; the slowest GPU",
        **_OF_DEVICE,
    ),
    MEMORY_BANDWIDTH_GBPS := Metric(
        "memory_bandwidth_gbps", "GB/s", "Device-memory bandwidth",
        "Bytes per second that a GPU reads and writes when it copies within its own memory; the slowest GPU.",
        "bytes read and written ÷ time of a copy within the device's memory; the slowest GPU",
        origin="STREAM's copy (McCalpin, 1995), which counts bytes read and bytes written", **_OF_DEVICE,
    ),
    HOST_BANDWIDTH_GBPS := Metric(
        "host_bandwidth_gbps", "GB/s", "Host bandwidth",
        "Bytes per second that a GPU copies from or to its host, with all GPUs at once; the slowest GPU.",
        "bytes ÷ time of a copy from or to pinned memory of the host; the slowest GPU",
        **_OF_DEVICE,
    ),
    BUSBW_GBPS := Metric(
        "busbw_gbps", "GB/s", "Bus bandwidth",
        "Bandwidth that a collective reaches on each GPU's links, by the formulas of nccl-tests.",
        "nccl-tests' bus bandwidth of the slowest rank: S/t · 2(n−1)/n for all-reduce, S/t · (n−1)/n for all-gather, "
        "reduce-scatter and all-to-all of S bytes in all, S/t for broadcast and reduce",
        origin="nccl-tests, doc/PERFORMANCE.md", **_OF_RANKS,
    ),
    PAIR_BANDWIDTH_GBPS := Metric(
        "pair_bandwidth_gbps", "GB/s", "Bandwidth of pairs",
        "Bytes per second that two GPUs send each other, in each direction; the slowest pair.",
        "bytes that each end of a pair sends ÷ time, both at once; the slowest pair of a node, or of neighbouring "
        "nodes",
        **_OF_RANKS,
    ),
    PROBE_UNIFORMITY := Metric(
        "probe_uniformity", "x", "Probe uniformity",
        "Time that the slowest place of a probe takes for the same work, over the median of its peers.",
        "bandwidth of its peers, their median ÷ that of a place; the worst. Peers are all GPUs of the run (memory), or "
        "the same GPU or pair of GPUs on other nodes (host, pairs)",
        upper_bound=True, subject="probe", plausible=(1.0, 1000.0), compares_places=True,
    ),
    Metric(
        "no_regression", "x", "No regression",
        "Values of a node relative to its own earlier runs; the one that regressed most.",
        "ratio of a value to the geometric mean of earlier runs of the same node or GPU (at least 5, the latest 20); "
        "the value that regressed most; no rounds",
        subject="node", plausible=(0.001, 1.0),
    ),
)  # fmt: skip

METRICS = {metric.name: metric for metric in _ALL}
