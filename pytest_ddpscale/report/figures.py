"""The figures of a run, from the values that its verdicts have; a figure without data is left out."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ddpscale.judge.links import gpu_pairs_of
from pytest_ddpscale.judge.metrics import merged, slowness_of
from pytest_ddpscale.judge.sustained import sustained_loads
from pytest_ddpscale.judge.values import values_of_probe
from pytest_ddpscale.plan.metric_catalogue import PAIR_BANDWIDTH_GBPS
from pytest_ddpscale.plan.study import Plan, Scaling
from pytest_ddpscale.report.charts import About, BarRow, Cells, Curve, LineAxes, Point, bars, curves, matrix
from pytest_ddpscale.report.digits import bare_number, number_text
from pytest_ddpscale.report.scaling import (
    EFFICIENCY,
    PLOTS,
    SPEEDUP,
    THROUGHPUT,
    Quantity,
    scaling_curve,
)
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_json import WATERMARK, RunRecord
from pytest_ddpscale.run.table import NO_ROUNDS
from pytest_ddpscale.run.verdicts import Judgement, Verdict
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Picture
from pytest_ddpscale.util.listing import by_number

_PARTS = (
    "compute, typical rank", "waiting for the slowest rank", "DDP without communication", "exposed communication",
    "the rest, not measured separately",
)  # fmt: skip
_HEAT_MAP = (
    "Step time without communication relative to the typical {device}; "
    "darker is slower, and {device}s at fault are outlined. "
    "The slowest workload counts; of more than 64 nodes the slowest are shown."
)
_PAIRS = (
    "GB/s of each pair's slowest rail, median over the rounds; darker is slower, "
    "and nodes at fault are outlined; of more than 64 nodes those of the slowest pairs are shown. "
    "The search for slow nodes measured them, if there was one: "
    "requirements judge other probes, whose GB/s differ."
)
_SCALING = (
    "Judged values with their intervals; "
    "sizes without a requirement are estimated alike. "
    "Sizes that fit on one of several nodes are those of the worst node; "
    "no line joins them to larger sizes."
)
_TIME = (
    "A step of the slowest rank in each study's largest arm, median over the rounds. "
    "The rest includes all parts that were not measured separately."
)

# Panels of the overview: kind of scaling, quantity, and whether it is divided by the number of GPUs.
_OVERVIEW: dict[str, tuple[Scaling, Quantity, bool]] = {
    "weak: throughput": ("weak", THROUGHPUT, False), "weak: efficiency": ("weak", EFFICIENCY, False),
    "strong: speed-up": ("strong", SPEEDUP, False), "strong: efficiency": ("strong", SPEEDUP, True),
}  # fmt: skip
_STRETCH = "Pace of each two seconds over that of the later rounds, on the slowest node; heat makes it fall."


def figures(evidence: Evidence, judgement: Judgement, run: RunRecord) -> list[Picture]:
    """All figures of a run, in the order of the page."""
    mark = WATERMARK if judgement.simulated or run.is_simulated() else ""
    about, plan, device = partial(About, mark=mark), evidence.plan, evidence.plan.device
    pictures = [
        heat_map(
            about("heat-map", f"Step time by node and {device}", _HEAT_MAP.format(device=device)),
            evidence, judgement.verdicts,
        ),
        pair_matrix(
            about("pair-matrix", "Bandwidth between nodes", _PAIRS), pair_bandwidths(evidence), judgement.verdicts
        ),
    ]  # fmt: skip
    drawn = {
        (scaling, quantity): [
            scaling_curve(study, quantity, evidence, judgement.verdicts)
            for study in plan.studies if study.scaling == scaling
        ]
        for scaling, quantity in PLOTS
    }  # fmt: skip
    pictures.append(overview(about("scaling-overview", f"Scaling overview: {plan.sku}", _SCALING), drawn, plan))
    for (scaling, quantity), some in drawn.items():
        title = f"{scaling.capitalize()} scaling: {quantity.title.format(device=device)}"
        panels = {curve.name: [curve] for curve in some if curve.points}
        axes = _axes(quantity, device, quantity.metric.unit.replace("samples", plan.unit))
        pictures.append(curves(about(f"{scaling}-{quantity.file}", title, _SCALING), axes, panels))
    pictures += [
        where_time_goes(about("where-time-goes", "Where the time goes", _TIME), evidence),
        paces(about("sustained", "Pace in one stretch of training", _STRETCH), evidence),
    ]
    return [picture for picture in pictures if picture]


def write_pngs(drawn: list[Picture], directory: Path) -> None:
    """Write pictures also as files beside the page, which they then name. Of none, not even the directory is made."""
    for at, picture in enumerate(drawn):
        png, path = picture.png(), directory / f"{picture.key}.png"
        directory.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png)
        drawn[at] = picture._replace(path=f"{directory.name}/{path.name}")


def heat_map(about: About, evidence: Evidence, verdicts: Iterable[Verdict]) -> Picture | None:
    """Step time of nodes as rows and their GPUs as columns; whoever is at fault is outlined."""
    cells: dict[tuple[str, str], float] = {}
    for study in evidence.plan.studies:
        for arm in (arm for arm in study.arms if arm.kind == "each"):
            rounds = merged(evidence.columns, study.id, arm, evidence.plan.layout)
            slowness = slowness_of(rounds.mean_step_s, [np.arange(len(rounds.ranks))]).tolist()
            for place, factor in zip(rounds.ranks.rank_places, slowness if len(rounds) else (), strict=False):
                gpu = place.host, place.number
                cells[gpu] = max(factor, cells.get(gpu, 0.0))
    blamed = {
        (culprit.host, None if culprit.kind == "node" else culprit.place.number)
        for verdict in verdicts for culprit in verdict.culprits
        if culprit.is_certain and (culprit.kind == "gpu" or (culprit.kind == "node" and culprit.slowdown is not None))
    }  # fmt: skip
    # Shades are those of the numbers in cells, as they are rounded.
    titles, scale = ("node", evidence.plan.device, "relative step time"), ("typical", "≥ 1.02×", "≥ 1.10×")
    return matrix(about, titles, cells, "x", blamed, (1.0, 1.015, 1.095), scale)


def pair_matrix(about: About, values: Cells, verdicts: Iterable[Verdict] = ()) -> Picture | None:
    """A matrix of nodes, or of ranks within a node; dark is slow, and whoever is at fault is outlined."""
    typical = statistics.median(values.values() or [1.0])
    blamed = {
        (culprit.hosts[0], culprit.hosts[1] if culprit.hosts[1:] else None)
        for verdict in verdicts if verdict.metric == PAIR_BANDWIDTH_GBPS.name
        for culprit in verdict.culprits if culprit.is_certain
    }  # fmt: skip
    scale = f"typical: {number_text(typical, 'GB/s')}", "≤ 95 % of it", "≤ 80 % of it"
    weights = -1 / typical, -0.95, -0.8
    return matrix(about, ("one", "other", "bandwidth"), values, "GB/s", blamed, weights, scale, are_pairs=True)


def pair_bandwidths(evidence: Evidence, *, within_nodes: bool = False) -> Cells:
    """GB/s of each pair of nodes by name: the slowest rail, each rail as the median of its rounds.

    The values come from the search for slow nodes and links, or from send-recv probes if there was no search.
    Within nodes they are of each pair of local ranks, on the slowest node, from such probes.
    """
    if within_nodes:
        return _slowest(_probed(evidence, is_between=False), lambda end: f"rank {end.local_rank}")
    rails, measured = defaultdict[Any, list[float]](list), gpu_pairs_of(evidence)
    for ends, gbps in zip(measured.places[measured.ends].tolist(), measured.gbps.tolist(), strict=True):
        rails[tuple(ends)].append(gbps)
    return _slowest(rails or _probed(evidence, is_between=True), lambda end: end.host)


def _probed(evidence: Evidence, *, is_between: bool) -> dict[Any, Any]:
    """GB/s of each pair between nodes, or within them, in each round of the send-recv probe of the largest message."""
    sent = [
        arm for arm in (evidence.plan.probes.arms if evidence.plan.probes else ()) if arm.operation.kind == "send-recv"
    ]
    for probe in sorted(sent, key=lambda arm: -(arm.operation.message_bytes or 0)):
        values = values_of_probe(probe, evidence).items()
        if by_pair := {place.ends: gbps for place, gbps in values if place.is_between_nodes == is_between}:
            return by_pair
    return {}


def _slowest(rails: Mapping[Any, Sequence[float]], name: Callable[[Any], str]) -> Cells:
    """The lowest median of the rounds of each pair of names."""
    by_nodes, key = dict[tuple[str, str], float](), cache(by_number)
    for ends, gbps in rails.items():
        one, other = sorted(map(name, ends), key=key)
        by_nodes[one, other] = min(float(statistics.median(gbps)), by_nodes.get((one, other), math.inf))
    return by_nodes


def overview(
    about: About, drawn: Mapping[tuple[Scaling, Quantity], Sequence[Curve]], plan: Plan
) -> Picture | None:  # fmt: skip
    """All workloads together, in a panel for each of `_OVERVIEW`. What is relative to one GPU begins there."""
    panels, own = dict[str, list[Curve]](), dict[str, LineAxes]()
    for title, (scaling, quantity, is_per_gpu) in _OVERVIEW.items():
        of = {study.workload.name: Curve("", ()) for study in plan.studies}  # each has its colour in all panels
        for curve in (curve for curve in drawn[scaling, quantity] if curve.points):
            points = [*curve.points]
            if is_per_gpu:
                points = [replace(point, value=point.value / point.x, interval=None) for point in points]
            if quantity is not THROUGHPUT and points[0].x > 1:
                points.insert(0, Point(1, 1.0, is_apart=points[0].is_apart))
            of[curve.name] = Curve(curve.name, points)
            panels[title] = [*of.values()]
            own[title] = _axes(EFFICIENCY if is_per_gpu else quantity, plan.device, f"{plan.unit}/s")
    return curves(about, LineAxes(f"world size ({plan.device}s)", "", x_is_log=True), panels, own)


def _axes(quantity: Quantity, device: str, unit: str) -> LineAxes:
    axes = LineAxes(
        f"world size ({device}s)", f"throughput per {device} ({unit})", x_is_log=True,
        number=partial(bare_number, unit=unit),
    )  # fmt: skip
    if quantity is EFFICIENCY:
        return replace(axes, y="scaling efficiency (%)", scale="near", tick="{x:.1%}", ideal=lambda _: 1.0)
    return replace(axes, y="speed-up (×)", scale="log", ideal=float) if quantity is SPEEDUP else axes


def paces(about: About, evidence: Evidence) -> Picture | None:
    """The pace of training in one stretch on the slowest node, relative to the rounds; None if it was not measured."""
    loads = [load for study in evidence.plan.studies for load in sustained_loads(evidence, study)[:1]]
    points = [Point(*part) for of in loads for part in zip(of.times_s, of.ratios, strict=True) if not np.isnan(part[1])]
    axes = LineAxes(
        "seconds", "pace, of the rounds'", scale="near", tick="{x:.1%}", number=partial(percent, decimals=1)
    )
    return curves(about, axes, {"": [Curve("pace", points)]})


def where_time_goes(about: About, evidence: Evidence) -> Picture | None:
    """A step of each study's largest arm, split by the time of the same ranks without communication.

    Each part is a difference of medians over the rounds: noise may hide it, but it is never negative.
    """
    rows = []
    for study in evidence.plan.studies:
        # Arms with real data also wait for it, and no arm here measures that part.
        measured = [
            (arm, merged(evidence.columns, study.id, arm, evidence.plan.layout))
            for arm in sorted(study.arms, key=lambda arm: arm.world_size)
            if arm.placement == "packed" and arm.data_of(study.workload) == "synthetic"
        ]  # fmt: skip
        for arm, rounds in [one for one in measured if one[0].kind == "ddp" and len(one[1])][-1:]:
            alike = {one.kind: of for one, of in measured
                     if one.batch_size == arm.batch_size and one.world_size <= arm.world_size}  # fmt: skip
            together, alone, silent = (alike.get(kind, NO_ROUNDS) for kind in ("each", "alone", "no_sync"))
            # A rank timed alone is rarely the slowest one, so only `each` shows the wait for the slowest.
            compute, start, parts = together if len(together) else alone, 0.0, list[tuple[str, float]]()
            total, last = float(np.nanmedian(rounds.step_s)), _PARTS[3 if len(silent) else 4]
            seconds = compute.mean_step_s, together.step_s, silent.step_s, rounds.step_s
            for part, times_s in zip((*_PARTS[:3], last), seconds, strict=True):
                if len(times_s):
                    end = max(start, min(float(np.nanmedian(times_s)), total))
                    parts.append((part, (end - start) / total))
                    start = end
            if len(compute):
                rows.append(BarRow(f"{study.id}, {arm.name}", parts, number_text(total * 1000, "ms")))
    return bars(about, "share of a step", rows, are_shares=True)
