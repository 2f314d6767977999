"""One number for each quantity and world size of a scaling study, for all figures and tables.

The number is the verdict's where a requirement judged it; elsewhere it is estimated as the judge would.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_ddpscale.judge.metrics import merged
from pytest_ddpscale.judge.values import worst_value
from pytest_ddpscale.plan.arm import USUAL, Arm, OneGpu
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.metric_catalogue import (
    STRONG_SCALING_EFFICIENCY,
    STRONG_SCALING_SPEEDUP,
    THROUGHPUT_PER_GPU,
    WEAK_SCALING_EFFICIENCY,
    Metric,
)
from pytest_ddpscale.plan.planner import Question
from pytest_ddpscale.plan.study import Plan, Scaling, Study
from pytest_ddpscale.report.figures.lines import Bound, Curve, Point
from pytest_ddpscale.report.scaling_facts import MeasuredSize, energy_j_per_sample
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.util.listing import first_few

_CONFIDENCE = 0.95  # without verdicts: a session's default


@dataclass(frozen=True)
class Quantity:
    """The quantity that one chart shows for each study.

    Attributes:
        axis: label of the y axis, with its unit; ``{device}`` is GPU or rank, ``{unit}`` that of the curves.
        factor: converts the values to the unit of the axis.
        metrics: verdicts on these give its values; for a kind of scaling without one, the first is estimated.
    """

    file: str
    title: str
    axis: str
    factor: float
    metrics: tuple[Metric, ...]

    def metric(self, scaling: Scaling) -> Metric:
        """The metric to estimate for a kind of scaling."""
        found = next((metric for metric in self.metrics if metric.scaling == scaling), None)
        return found or replace(self.metrics[0], scaling=scaling)


THROUGHPUT = Quantity(
    "throughput", "throughput per {device}", "throughput per {device} ({unit})", 1.0, (THROUGHPUT_PER_GPU,)
)
EFFICIENCY = Quantity(
    "efficiency", "efficiency against one {device}", "scaling efficiency (%)", 100.0,
    (WEAK_SCALING_EFFICIENCY, STRONG_SCALING_EFFICIENCY, STRONG_SCALING_SPEEDUP),
)  # fmt: skip
SPEEDUP = Quantity(
    "speedup", "speed-up over one {device}", "speed-up (×)", 1.0, (STRONG_SCALING_SPEEDUP, STRONG_SCALING_EFFICIENCY)
)
PLOTS: tuple[tuple[Scaling, Quantity], ...] = (
    ("weak", THROUGHPUT),
    ("weak", EFFICIENCY),
    ("strong", THROUGHPUT),
    ("strong", SPEEDUP),
    ("strong", EFFICIENCY),
)


@dataclass(frozen=True)
class CurvePoint(Point):
    """One world size, `x`.

    Attributes:
        nodes: ``worst node`` or ``first 2 of 4 nodes``: the nodes of the value; empty if it is of all.
        place: name of the worst node; empty if unknown.
    """

    nodes: str = ""
    place: str = ""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return int(self.x)

    @property
    def where(self) -> str:
        """``worst node (n3)``; empty if the value is of all nodes."""
        return f"{self.nodes} ({self.place})" if self.place else self.nodes


@dataclass(frozen=True)
class ScalingCurve(Curve):
    """One quantity of one study, named after its workload, by ascending world size.

    Attributes:
        unit: of values and bounds.
        confidence: of the intervals, 0 … 1.
        one_gpu: how a single GPU was trained.
    """

    points: Sequence[CurvePoint]
    unit: str = ""
    confidence: float = _CONFIDENCE
    one_gpu: OneGpu = "alone"

    @property
    def values(self) -> dict[int, float]:
        """Value at each world size."""
        return {point.world_size: point.value for point in self.points}

    def times(self, factor: float) -> ScalingCurve:
        """The curve in another unit."""
        points = [
            replace(one, value=one.value * factor, interval=one.interval and (low * factor, high * factor))
            for one in self.points
            for low, high in [one.interval or (0.0, 0.0)]
        ]
        bounds = [replace(one, value=one.value * factor) for one in self.bounds]
        return replace(self, points=points, bounds=bounds)


def charted_curves(
    scaling: Scaling, quantity: Quantity, evidence: Evidence, verdicts: Sequence[Verdict]
) -> list[ScalingCurve]:
    """The curves of one chart in the plan's order, in the unit of its axis; studies without a value are left out."""
    studies = [study for study in evidence.plan.studies if study.scaling == scaling]
    every = [scaling_curve(study, quantity, evidence, verdicts).times(quantity.factor) for study in studies]
    return [curve for curve in every if curve.points]


def scaling_curve(study: Study, quantity: Quantity, evidence: Evidence, verdicts: Sequence[Verdict]) -> ScalingCurve:
    """The curve of one study with packed ranks, in the metric's unit; without points if nothing was measured."""
    names = {metric.name for metric in quantity.metrics if metric.scaling == study.scaling}
    judged = [
        _in_unit_of(quantity, one)
        for one in verdicts
        if one.metric in names and one.workload == study.workload.name and one.placement == "packed"
    ]
    confidence = verdicts[0].confidence if verdicts else _CONFIDENCE
    arms = usual_arms(study)
    one_gpu = next((one.one_gpu for one in judged if one.one_gpu), None) or _one_gpu(study, evidence.plan)
    points = []
    for size in sorted({arm.world_size for arm in arms}):
        question = Question(quantity.metric(study.scaling), study.workload, size, one_gpu=one_gpu)
        of_size = [one for one in judged if one.world_size == size]
        # Other quantities than throughput begin at several ranks, unless somebody asks for one.
        is_shown = size > 1 or quantity is THROUGHPUT or of_size
        if not is_shown or not all((study.id, arm.name) in evidence.columns.arms for arm in question.arms):
            continue
        found = _worst(of_size) or worst_value(question, evidence, confidence)
        if found is not None and found.value is not None:
            is_failed = isinstance(found, Verdict) and found.outcome == "failed"
            nodes = _nodes(size, evidence.plan.layout)
            points.append(CurvePoint(size, found.value, found.interval, is_failed, nodes, found.place))
    bounds = [Bound(one.world_size, one.bound_value, one.provisional) for one in judged]
    unit = quantity.metrics[0].unit_of(study.workload.family)
    return ScalingCurve(study.workload.name, points, bounds, unit=unit, confidence=confidence, one_gpu=one_gpu)


def usual_arms(study: Study) -> list[Arm]:
    """The arms of its curves: packed, as the workload says, one rank alone or several under DDP."""
    packed = [arm for arm in study.arms if arm.placement == "packed" and arm.kind in ("alone", "ddp")]
    arms = [arm for arm in packed if arm.variant == USUAL]
    if study.scaling == "weak":
        return arms
    return [arm for arm in arms if arm.world_size * arm.batch_size == study.workload.global_batch_size]


def _one_gpu(study: Study, plan: Plan) -> OneGpu:
    """How a single GPU was trained, if no verdict says so.

    The cost of DDP on one GPU needs both ways; then the workload's other study tells which one others compare with.
    """
    ways = {one.id: {arm.kind for arm in usual_arms(one) if arm.world_size == 1} for one in plan.studies}
    own = ways[study.id]
    if len(own) > 1:
        same = [one for one in plan.studies if one.workload == study.workload]
        return "ddp" if any(ways[one.id] == {"ddp"} for one in same) else "alone"
    return "ddp" if own == {"ddp"} else "alone"


def _in_unit_of(quantity: Quantity, verdict: Verdict) -> Verdict:
    """A verdict on speed-up as one on efficiency, or the reverse."""
    own, strong = quantity.metric("strong").name, (STRONG_SCALING_SPEEDUP.name, STRONG_SCALING_EFFICIENCY.name)
    if verdict.metric == own or verdict.metric not in strong:
        return verdict
    factor = verdict.world_size if quantity is SPEEDUP else 1 / verdict.world_size
    return replace(
        verdict,
        metric=own,
        bound={key: bound * factor for key, bound in verdict.bound.items()},
        value=None if verdict.value is None else verdict.value * factor,
        interval=verdict.interval and (verdict.interval[0] * factor, verdict.interval[1] * factor),
    )


def _worst(judged: Sequence[Verdict]) -> Verdict | None:
    """Of the verdicts with a value a failed one, then the one nearest to its bound; None without any."""
    valued = [one for one in judged if one.value is not None and math.isfinite(one.value)]
    return min(valued, key=lambda one: (one.outcome != "failed", one.margin or 0.0), default=None)


def _nodes(world_size: int, layout: Layout) -> str:
    if layout.nodes > 1 and world_size <= layout.ranks_per_node:
        return "worst node"
    nodes = -(-world_size // layout.ranks_per_node)
    return f"first {nodes} of {layout.nodes} nodes" if nodes < layout.nodes else ""


def place_notes(curves: Sequence[ScalingCurve], device: str) -> list[str]:
    """``1, 8 GPUs: worst node (n3)``: the nodes of the values, for each world size whose value is not of all nodes."""
    sizes: dict[str, list[str]] = {}
    for size in sorted({size for curve in curves for size in curve.values}):
        points = [one for curve in curves for one in curve.points if one.world_size == size and one.nodes]
        if points:
            places = first_few(list(dict.fromkeys(one.place for one in points if one.place)))
            sizes.setdefault(replace(points[0], place=places).where, []).append(str(size))
    return [f"{', '.join(some)} {device}{'' if some == ['1'] else 's'}: {where}" for where, some in sizes.items()]


@dataclass(frozen=True)
class ScalingSeries:
    """One study and its sizes, ascending.

    Attributes:
        study: ``weak/resnet50-fp16``.
        unit: of the samples, ``img``.
        notes: at which nodes the values were measured.
    """

    study: str
    sizes: tuple[MeasuredSize, ...]
    unit: str
    notes: tuple[str, ...] = ()

    @property
    def has_one_gpu(self) -> bool:
        """Whether one GPU was measured; otherwise efficiency is relative to the smallest size."""
        return bool(self.sizes) and self.sizes[0].gpus == 1


def scaling_series(evidence: Evidence, verdicts: Sequence[Verdict]) -> list[ScalingSeries]:
    """A series for each study with a measured round, in the plan's order, with the numbers of `scaling_curve`."""
    device, found = "GPU" if evidence.plan.device_type == "cuda" else "rank", []
    for study in evidence.plan.studies:
        throughput = scaling_curve(study, THROUGHPUT, evidence, verdicts)
        efficiency = scaling_curve(study, EFFICIENCY, evidence, verdicts)
        arms = {
            arm.world_size: arm for arm in usual_arms(study) if arm.world_size > 1 or arm.kind == throughput.one_gpu
        }
        sizes = tuple(
            MeasuredSize(gpus, gpus * value, _energy(study, arms.get(gpus), evidence), efficiency.values.get(gpus))
            for gpus, value in throughput.values.items()
        )
        if sizes:
            notes = place_notes([throughput, efficiency], device)
            if {"alone", "ddp"} <= {arm.kind for arm in usual_arms(study) if arm.world_size == 1}:
                notes.append(f"one {device} trained {'alone' if efficiency.one_gpu == 'alone' else 'under DDP'}")
            name, unit = f"{study.scaling}/{study.workload.name}", study.workload.family.unit
            found.append(ScalingSeries(name, sizes, unit, tuple(notes)))
    return found


def _energy(study: Study, arm: Arm | None, evidence: Evidence) -> float | None:
    """Joules per image over all nodes, the mean of the launches that measured the arm; None if unknown."""
    if arm is None:
        return None
    same = [one for one in evidence.plan.studies if (one.scaling, one.workload) == (study.scaling, study.workload)]
    rounds = [merged(evidence.columns, one.id, arm, evidence.plan.layout) for one in same]
    energies = [energy_j_per_sample(one) for one in rounds if len(one)]
    known = [energy for energy in energies if energy is not None]
    return statistics.fmean(known) if known and len(known) == len(energies) else None
