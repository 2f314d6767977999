"""How training scales: one number for each quantity and world size, for figures and tables.

The number is the verdict's where a requirement judged it; elsewhere it is estimated as the judge would.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

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
from pytest_ddpscale.plan.study import Scaling, Study
from pytest_ddpscale.report.charts import Curve, Point
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.table import ArmRounds
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Section, Table, bullets
from pytest_ddpscale.util.listing import count_text

SATURATED_GAIN = 0.05  # a doubling that saves a smaller share of the time is not worth it
GOOD_EFFICIENCY = 0.9
IMAGENET = 1.28e6  # images of one epoch
_CONFIDENCE = 0.95  # without verdicts: a session's default
_ABSENT = "-"
_WORST_NODE = "worst node"


@dataclass(frozen=True)
class Quantity:
    """The quantity that one figure shows for each study.

    Attributes:
        title: ``{device}`` is GPU or rank.
        metric: verdicts on it give the values of studies of its kind of scaling; of others, all are estimated.
    """

    file: str
    title: str
    metric: Metric


THROUGHPUT = Quantity("throughput", "throughput per {device}", THROUGHPUT_PER_GPU)
EFFICIENCY = Quantity("efficiency", "efficiency against one {device}", WEAK_SCALING_EFFICIENCY)
SPEEDUP = Quantity("speedup", "speed-up over one {device}", STRONG_SCALING_SPEEDUP)
PLOTS: tuple[tuple[Scaling, Quantity], ...] = (
    ("weak", THROUGHPUT), ("weak", EFFICIENCY), ("strong", THROUGHPUT), ("strong", SPEEDUP),
)  # fmt: skip


def scaling_curve(study: Study, quantity: Quantity, evidence: Evidence, verdicts: Sequence[Verdict]) -> Curve:
    """The curve of one study with packed ranks, in the metric's unit, by ascending world size.

    It is named after the workload, and has no points if nothing was measured.
    """
    metric, arms = replace(quantity.metric, scaling=study.scaling), usual_arms(study)
    judged = [
        verdict for verdict in map(_as_speedup, verdicts)
        if verdict.metric == metric.name and metric.scaling == quantity.metric.scaling
        and verdict.workload == study.workload.name and verdict.placement == "packed"
    ]  # fmt: skip
    confidence = verdicts[0].confidence if verdicts else _CONFIDENCE
    of_one = {arm.kind for arm in arms if arm.world_size == 1}
    others = [verdict for verdict in verdicts if verdict.workload == study.workload.name and verdict.one_gpu in of_one]
    baselines = (verdict.one_gpu for verdict in (*judged, *others) if verdict.one_gpu)
    one_gpu: OneGpu = next(baselines, "ddp" if "ddp" in of_one else "alone")
    points = []
    for size in sorted({arm.world_size for arm in arms}):
        question = Question(metric, study.workload, size, one_gpu=one_gpu)
        of_size = [verdict for verdict in judged if verdict.world_size == size]
        # Other quantities than throughput begin at several ranks, unless somebody asks for one.
        is_shown = size > 1 or quantity is THROUGHPUT or of_size
        if not is_shown or not all((study.id, arm.name) in evidence.columns.arms for arm in question.arms):
            continue
        valued = [verdict for verdict in of_size if verdict.value is not None and math.isfinite(verdict.value)]
        # A failed one, then the one nearest to its bound.
        worst = min(valued, key=lambda verdict: (verdict.outcome != "failed", verdict.margin or 0.0), default=None)
        value = worst or worst_value(question, evidence, confidence)
        if value is not None and value.value is not None:
            is_failed = isinstance(value, Verdict) and value.outcome == "failed"
            nodes = _nodes(size, evidence.plan.layout)
            note = f"{nodes} ({value.place})" if nodes and value.place else nodes
            points.append(Point(size, value.value, value.interval, is_failed, nodes == _WORST_NODE, note))
    bounds = [Point(verdict.world_size, verdict.bound_value) for verdict in judged]
    return Curve(study.workload.name, points, bounds)


def usual_arms(study: Study) -> list[Arm]:
    """The arms of its curves: packed, as the workload says, one rank alone or several under DDP."""
    arms = [
        arm for arm in study.arms
        if arm.placement == "packed" and arm.kind in ("alone", "ddp") and arm.variant == USUAL
    ]  # fmt: skip
    if study.scaling == "weak":
        return arms
    return [arm for arm in arms if arm.world_size * arm.batch_size == study.workload.global_batch_size]


def _as_speedup(verdict: Verdict) -> Verdict:
    """A verdict on efficiency at a fixed batch as one on speed-up; others as they are."""
    if verdict.metric != STRONG_SCALING_EFFICIENCY.name:
        return verdict
    size, interval = verdict.world_size, verdict.interval
    return replace(
        verdict,
        metric=STRONG_SCALING_SPEEDUP.name,
        bound={key: bound * size for key, bound in verdict.bound.items()},
        value=None if verdict.value is None else verdict.value * size,
        interval=interval and (interval[0] * size, interval[1] * size),
    )


def _nodes(world_size: int, layout: Layout) -> str:
    """The nodes of a value; empty if it is of all."""
    if layout.nodes > 1 and world_size <= layout.ranks_per_node:
        return _WORST_NODE
    nodes = -(-world_size // layout.ranks_per_node)
    return f"first {nodes} of {layout.nodes} nodes" if nodes < layout.nodes else ""


def scaling_rows(sizes: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each size with what follows from it, ascending.

    A size has its ``ranks``, ``samples_per_s`` of all of them, ``complete_s``, and maybe an ``efficiency`` that is not
    the ratio to the smallest size. It gets ``speedup``, ``efficiency``, ``gpu_hours``, and beside the next
    smaller size ``more_samples_per_s``, ``gain`` of throughput per doubling (0.69 is 69 %), ``saved_s`` and
    ``saved_share`` of its time, and ``saved_per_doubling``, that share split evenly over the doublings between both.
    """
    rows = list[dict[str, Any]]()
    for size in sizes:
        ranks, rate, seconds = size["ranks"], size["samples_per_s"], size["complete_s"]
        least = rows[0] if rows else size
        efficiency = size.get("efficiency") or rate / ranks / (least["samples_per_s"] / least["ranks"])
        row = {"efficiency": efficiency, "speedup": efficiency * ranks, "gpu_hours": ranks * seconds / 3600}
        for before in rows[-1:]:
            shorter, doublings = seconds / before["complete_s"], math.log2(ranks / before["ranks"])
            row |= {
                "more_samples_per_s": rate - before["samples_per_s"],
                "gain": (rate / before["samples_per_s"]) ** (1 / doublings) - 1,
                "saved_s": before["complete_s"] - seconds, "saved_share": 1 - shorter,
                "saved_per_doubling": 1 - shorter ** (1 / doublings),
            }  # fmt: skip
        rows.append({**size, **row})
    return rows


def sweet_spots(rows: Sequence[Mapping[str, Any]], device: str, deadline_s: float | None = None) -> Iterator[str]:
    """What the rows of one training or study say about choosing a size, among the measured ones."""
    least = rows[0]["ranks"]
    if least > 1:
        yield f"one {device} was not measured: relative to {count_text(least, device)}"
    if deadline_s is not None:
        in_time = [row["ranks"] for row in rows if row["complete_s"] <= deadline_s]
        fewest = count_text(in_time[0], device) if in_time else f"met by no measured number of {device}s"
        yield f"sweet spot for a deadline of {deadline_s:g} s: {fewest}"
    if efficient := [row["ranks"] for row in rows if row["efficiency"] >= GOOD_EFFICIENCY]:
        yield f"sweet spot for efficiency of {percent(GOOD_EFFICIENCY)}: {count_text(efficient[-1], device)}"
    for key, cost in {"gpu_hours": f"{device}-hours", "kwh": "energy", "price": "price"}.items():
        costs = [(row[key], row["ranks"]) for row in rows if row.get(key) is not None]
        if costs:
            yield f"sweet spot for {cost}: {count_text(min(costs)[1], device)}"
    for row, after in itertools.pairwise(rows):
        if after["saved_per_doubling"] < SATURATED_GAIN:
            saves = f"a doubling saves less than {percent(SATURATED_GAIN)} of the time"
            yield f"saturated at {count_text(row['ranks'], device)}: {saves}"
            break


def scaling_of(study: Study, evidence: Evidence, verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Rows of a study's sizes, for one epoch of ImageNet, with the numbers of `scaling_curve`."""
    compared = EFFICIENCY if study.scaling == "weak" else SPEEDUP
    relative = {point.x: point.value for point in scaling_curve(study, compared, evidence, verdicts).points}
    arms, sizes = {arm.world_size: arm for arm in usual_arms(study)}, []
    for point in scaling_curve(study, THROUGHPUT, evidence, verdicts).points:
        size, efficiency = int(point.x), relative.get(point.x)
        if efficiency is not None and compared is SPEEDUP:
            efficiency /= size
        energy_j = energy_j_per_sample(merged(evidence.columns, study.id, arms[size], evidence.plan.layout))
        sizes.append({
            "ranks": size, "samples_per_s": size * point.value, "complete_s": IMAGENET / (size * point.value),
            "efficiency": efficiency, "kwh": energy_j and energy_j * IMAGENET / 3.6e6, "nodes": point.note,
        })  # fmt: skip
    return scaling_rows(sizes)


def energy_j_per_sample(groups: ArmRounds) -> float | None:
    """Joules per image over all blocks of an arm; None if unknown."""
    cells = groups.present
    energy = float(groups.reading("energy_j")[cells].sum())
    images = float((groups.work * groups.count)[cells].sum())
    return energy / images if math.isfinite(energy) and energy > 0 else None


def scaling_tables(evidence: Evidence, verdicts: Sequence[Verdict]) -> list[Section]:
    """Each study with at least two sizes: a table for one epoch of ImageNet, and what follows for choosing a size."""
    device, sections = evidence.plan.device, list[Section]()
    for study in evidence.plan.studies:
        rows, unit = scaling_of(study, evidence, verdicts), study.workload.family.unit
        titles = f"{device}s", f"{unit}/s", "speed-up", "efficiency", "gain", "time", "saved", f"{device}-hours", "kWh"
        shown = Table((*titles, "nodes"), [*map(_cells, rows)], names=0)
        if len(rows) > 1:
            sections.append(
                Section(f"{study.scaling}/{study.workload.name}", [shown, bullets(sweet_spots(rows, device))])
            )
    return sections


def _cells(row: Mapping[str, Any]) -> list[str]:
    share = partial(percent, decimals=1)
    forms: dict[str, Callable[[Any], str]] = {
        "ranks": str, "samples_per_s": "{:.0f}".format, "speedup": "{:.2f}x".format, "efficiency": share, "gain": share,
        "complete_s": "{:.0f} s".format, "saved_share": share, "gpu_hours": "{:.2f}".format, "kwh": "{:.2f}".format,
        "nodes": str,
    }  # fmt: skip
    return [_ABSENT if row.get(key) is None else form(row[key]) for key, form in forms.items()]
