"""A metric and its properties; metrics are declared in `pytest_ddpscale.plan.metric_catalogue`."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from pytest_ddpscale.plan.arm import USUAL, ArmKind, Variant
from pytest_ddpscale.plan.image_family import ImageFamily
from pytest_ddpscale.plan.operation import KINDS
from pytest_ddpscale.plan.study import Scaling
from pytest_ddpscale.plan.workload import Family

# Of samples, which each family names by its own unit (`Metric.unit_of`), or of anything else.
Unit = Literal["samples/s", "fraction", "x", "GiB", "ms", "TFLOPS", "GB/s", "samples/J"]
# Errors of rates and ratios are relative; those of shares of time, memory and time differences are absolute.
Scale = Literal["factors", "differences"]
# What a requirement is about: the training of a workload, a probe, a check of the nodes, or all results of a node.
Subject = Literal["workload", "probe", "check", "node"]
RangeKind = Literal["plausible", "credible", "possible"]
# A larger efficiency means that the measurement or its baseline was disturbed.
MOST_EFFICIENCY = 1.1
# Generous: from a thousand times slower than today's slowest machine to ten times faster than the fastest.
_PLAUSIBLE: dict[Unit, tuple[float, float]] = {
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
        unit: of values and bounds. ``fraction`` is 0 … 1 and shown as per cent; ``x`` is a ratio.
        title: heading for reports.
        meaning: one sentence for a stakeholder.
        formula: its value in one round, for docs/metrics.md; t is an arm's throughput per GPU and k the ranks.
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
        subject: what a requirement on it is about.
        plausible: smallest and largest meaningful bound; None for those of its unit.
        credible: smallest and largest credible value of a measurement on GPUs; beyond, it or its baseline was
            disturbed.
        possible: smallest and largest value possible without disturbance; intervals are cut there.
        grows_with_ranks: whether the upper ends of all three are per rank.
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
    unit: Unit
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
    subject: Subject = "workload"
    plausible: tuple[float, float] | None = None
    credible: tuple[float, float] = (-math.inf, math.inf)
    possible: tuple[float, float] = (0.0, math.inf)
    grows_with_ranks: bool = False
    only_bound: float | None = None
    slowed_by_one_rank: bool = False
    reads_utilization: bool = False
    reads_own_pace: bool = False
    compares_places: bool = False
    compares_results: bool = False

    def unit_of(self, family: Family = ImageFamily) -> str:
        """Its unit for workloads of a family: ``img/s`` for ``samples/s``; by default for those of images."""
        return self.unit.replace("samples", family.unit)

    @property
    def probes(self) -> tuple[str, ...]:
        """Kinds of probes that measure it."""
        if self.compares_places:
            return tuple(kind for kind, one in KINDS.items() if one.peers)
        return tuple(kind for kind, one in KINDS.items() if one.metric == self.name)

    @property
    def bound_key(self) -> Literal["at_most", "at_least"]:
        """Key of its bound in a thresholds file."""
        return "at_most" if self.upper_bound else "at_least"

    @property
    def compared_scale(self) -> Scale:
        """How to compare values of two runs: by ratio, or by difference for shares and differences, which may be 0."""
        may_be_nothing = self.unit == "fraction" or self.baseline is not None
        return "differences" if self.scale == "differences" and may_be_nothing else "factors"

    @property
    def reads_folder(self) -> bool:
        """Whether it compares training on images from a folder with training on synthetic ones."""
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
    def errs_by_chance(self) -> bool:
        """Whether its rounds scatter, so that a bound may be missed by chance; not for counts and exact comparisons."""
        return self.subject in ("workload", "probe") and self.only_bound is None

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
        """The smallest and the largest value of one of its three ranges; a bound that is not plausible is meaningless.

        What is credible is so of a measurement on GPUs.
        """
        least, most = getattr(self, of) or _PLAUSIBLE[self.unit]
        return least, most * (world_size if self.grows_with_ranks else 1)
