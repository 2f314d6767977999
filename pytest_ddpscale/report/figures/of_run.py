"""The figures of a run in order; a figure without data is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_ddpscale.report import scaling_curves
from pytest_ddpscale.report.digits import number_text
from pytest_ddpscale.report.figures import maps, step_bars
from pytest_ddpscale.report.figures.drawing import WIDE, Drawing, bare_number, draw
from pytest_ddpscale.report.figures.lines import LineAxes, panels
from pytest_ddpscale.report.scaling_curves import EFFICIENCY, SPEEDUP, THROUGHPUT, Quantity, ScalingCurve
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_json import WATERMARK, RunRecord
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.util.tables import Table, html

_HOW = "Judged values with their intervals; sizes without a requirement are estimated alike."


@dataclass(frozen=True)
class Figure:
    """One picture, or a table or a sentence where that is clearer.

    Attributes:
        id: unique among the figures, for links; also the name of its PNG.
        title: plain text, not escaped; so is `caption`.
        shown: the picture or table; None if the caption says it all.
        caption: what the picture shows and how to read it.
        svg: once drawn, safe markup: SVG or an HTML table, with everything from outside escaped.
        png: once drawn, makes its PNG; None for what is no picture.
        is_wide: whether it needs a whole line of the page.
    """

    id: str
    title: str
    shown: Drawing | Table | None
    caption: str
    svg: str = ""
    png: Callable[[], bytes] | None = None
    is_wide: bool = False


def figures(evidence: Evidence, judgement: Judgement, run: RunRecord) -> list[Figure]:
    """All figures of a run, drawn from the same values as the verdicts."""
    watermark = WATERMARK if judgement.simulated or run.is_simulated() else ""
    found = [*_of_places(evidence, judgement), *_of_scaling(evidence, judgement), *_of_steps(evidence)]
    return [_drawn(figure, judgement.sku, watermark) for figure in found]


def write_pngs(drawn: list[Figure], directory: Path) -> list[Path]:
    """Write each picture beside the page; returns the files. Nothing is written, not even the directory, of none."""
    written = []
    for figure in drawn:
        if figure.png is not None:
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / f"{figure.id}.png"
            path.write_bytes(figure.png())
            written.append(path)
    return written


def _drawn(figure: Figure, sku: str, watermark: str) -> Figure:
    shown = figure.shown
    if isinstance(shown, Drawing):
        picture = draw(figure.id, figure.title, shown, about=sku, watermark=watermark)
        return replace(figure, svg=picture.svg, png=picture.png, is_wide=shown.width == WIDE)
    return replace(figure, svg=html(shown)) if shown else figure


def _of_places(evidence: Evidence, judgement: Judgement) -> Iterator[Figure]:
    slowness, pairs = maps.slowness_by_gpu(evidence), maps.pair_bandwidths(evidence)
    if slowness:
        yield Figure(
            "heat-map", "Step time by node and GPU", maps.heat_map(slowness, judgement.verdicts),
            "Step time without communication relative to the typical GPU; darker is slower, and GPUs at fault are "
            "outlined. The slowest workload counts, and the slowest of nodes that share a row.",
        )  # fmt: skip
    if pairs:
        yield Figure(
            "pair-matrix", "Bandwidth between nodes", maps.pair_matrix(pairs, judgement.verdicts),
            "GB/s of each pair's slowest rail, median over the rounds; darker is slower, and nodes at fault are "
            "outlined; empty was not measured. If nodes share a row, the slowest pair counts.",
        )  # fmt: skip
    slowest = ("slowest-gpus", "Slowest GPUs", maps.slowest_gpus(slowness)), (
        "slowest-pairs", "Slowest pairs", maps.slowest_pairs(pairs))  # fmt: skip
    for key, title, rows in slowest:
        if rows:
            yield Figure(key, title, rows, f"At most {maps.MOST_ROWS}, the slowest first.")


def _of_scaling(evidence: Evidence, judgement: Judgement) -> Iterator[Figure]:
    device = "GPU" if evidence.plan.device_type == "cuda" else "rank"
    for scaling, quantity in scaling_curves.PLOTS:
        curves = scaling_curves.charted_curves(scaling, quantity, evidence, judgement.verdicts)
        if curves:
            title = f"{scaling.capitalize()} scaling: {quantity.title.format(device=device)}"
            key = f"{scaling}-{quantity.file}"
            yield Figure(key, title, *_scaling_panels(quantity, curves, device))


def _scaling_panels(quantity: Quantity, every: Sequence[ScalingCurve], device: str) -> tuple[Drawing | None, str]:
    """The panels of workloads with several world sizes, None without any, and the caption, which tells all others."""
    curves = [one for one in every if len(one.xs) > 1]
    alone = [f"Only one world size: {_in_words(one, quantity, device)}." for one in every if one not in curves]
    if not curves:
        return None, " ".join(alone)
    unit, devices = curves[0].unit, "GPUs" if device == "GPU" else "CPU ranks"
    axis = quantity.axis.format(device=device, unit=" or ".join(dict.fromkeys(curve.unit for curve in curves)))
    axes = LineAxes(
        f"world size ({devices})", axis, x_is_log=True,
        number=lambda value: bare_number(value / quantity.factor, unit),
        interval=f"{100 * curves[0].confidence:g} % confidence interval",
    )  # fmt: skip
    if quantity is THROUGHPUT:
        axes = replace(axes, ideal="first", ideal_name=f"ideal: as one {device}")
    elif quantity is EFFICIENCY:
        axes = replace(axes, ideal="hundred", values="per cent")
    elif quantity is SPEEDUP:
        axes = replace(axes, ideal="diagonal", values="log 2", ideal_name=f"ideal: one per {device}")
    drawing = panels(axes, curves, is_y_shared=quantity is not THROUGHPUT)
    said = "; ".join(_in_words(curve, quantity, device) for curve in curves)
    notes = [f"{note}." for note in scaling_curves.place_notes(curves, device)]
    return drawing and replace(drawing, said=said), " ".join([_HOW, *notes, *alone])


def _in_words(curve: ScalingCurve, quantity: Quantity, device: str) -> str:
    """``resnet50-fp16: 2378.0 img/s on 8 GPUs (worst node (n3)), misses its bound``."""
    said = []
    for point in curve.points:
        devices = f"{device}{'' if point.world_size == 1 else 's'}"
        where, missed = f" ({point.where})" if point.where else "", ", misses its bound" if point.is_failed else ""
        value = number_text(point.value / quantity.factor, curve.unit)
        said.append(f"{value} on {point.world_size} {devices}{where}{missed}")
    return f"{curve.name}: {', '.join(said)}"


def _of_steps(evidence: Evidence) -> Iterator[Figure]:
    columns, plan = evidence.columns, evidence.plan
    found = (
        Figure(
            "where-time-goes", "Where the time goes", step_bars.where_time_goes(columns, plan),
            "A step of the slowest rank in each study's largest arm, median over the rounds, with utilization and "
            "power of the median GPU. The rest includes all parts that were not measured separately.",
        ),
        Figure(
            "activity", "GPU activity" if plan.device_type == "cuda" else "CPU activity",
            step_bars.activity_bars(columns, plan),
            "Median utilization over the rounds, in the DDP arm in which the device was least busy; the line is at "
            "80 %. NVML counts waiting inside a kernel as busy.",
        ),
    )  # fmt: skip
    yield from (figure for figure in found if figure.shown)
