"""Charts and tables of scaling, with the verdicts' values, intervals and bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU, WEAK_SCALING_EFFICIENCY
from pytest_ddpscale.plan.study import Plan, Scaling
from pytest_ddpscale.report import svg_axes
from pytest_ddpscale.report.digits import ABSENT, number_text
from pytest_ddpscale.report.scaling_curves import (
    EFFICIENCY,
    SPEEDUP,
    THROUGHPUT,
    UTILIZATION,
    LegendKind,
    Quantity,
    ScalingCurve,
    chart_legend,
)
from pytest_ddpscale.report.svg_axes import SERIES_COLOURS, AxisScale, cross, label, line, marker, number
from pytest_ddpscale.run.verdicts import Judgement
from pytest_ddpscale.util.tables import html, table

WIDTH, _PLOT_HEIGHT = 480.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM, _KEY_HEIGHT = 52.0, 14.0, 30.0, 44.0, 19.0
_MOST_TICKS = 9
_DASHES = ("", "6 3", "2 2", "8 3 2 3")
_IDEAL = 'stroke="currentColor" stroke-opacity="0.7" stroke-dasharray="7 4"'


def scaling_chart(key: str, scaling: Scaling, quantity: Quantity, curves: Sequence[ScalingCurve], device: str) -> str:
    """One quantity of weak or strong scaling over the world size; empty if it was not measured."""
    if not curves:
        return ""
    sizes = sorted(set[int]().union(*(curve.world_sizes for curve in curves)))
    if quantity is SPEEDUP:  # the ideal line starts at 1
        sizes = sorted({1, *sizes})
    keys = _keys(quantity, curves, device)
    x = AxisScale(sizes[0] / 1.35, sizes[-1] * 1.35, _LEFT, WIDTH - _RIGHT, is_log=True)
    y = _value_scale(quantity, curves)
    titles = (
        f"world size ({'GPUs' if device == 'GPU' else 'CPU ranks'})",
        f"{scaling}: {quantity.axis_of(curves, device)}",
    )
    body = svg_axes.frame(x, y, _size_ticks(sizes), _value_ticks(y), titles)
    body += _ideal(quantity, curves, x, y) + "".join(_curve(curve, x, y) for curve in curves)
    bottom = _PLOT_HEIGHT + 8
    body += "".join(
        f'<g transform="translate({number(_LEFT)} {number(bottom + _KEY_HEIGHT * (i + 0.5))})">{sample}'
        f"{label(40, 4, name)}</g>"
        for i, (sample, name) in enumerate(keys)
    )
    title = f"{scaling.capitalize()} scaling: {quantity.title.format(device=device)}"
    said = "; ".join(f"{curve.workload}: {_in_words(curve, quantity)}" for curve in curves)
    return svg_axes.svg(key, title, said, WIDTH, bottom + _KEY_HEIGHT * len(keys) + 6, body)


def _colour(curve: ScalingCurve) -> str:
    return SERIES_COLOURS[curve.number % len(SERIES_COLOURS)]


def _dash(curve: ScalingCurve) -> str:
    dash = _DASHES[curve.number % len(_DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _value_scale(quantity: Quantity, curves: Sequence[ScalingCurve]) -> AxisScale:
    values = [value for curve in curves for value in curve.extent]
    low, high = min(values), max(values)
    start, end = _PLOT_HEIGHT - _BOTTOM, _TOP
    if quantity is SPEEDUP:
        most = max(size for curve in curves for size in curve.world_sizes)
        return AxisScale(min(low, 1.0) / 1.1, max(high, float(most)) * 1.25, start, end, is_log=True)
    if quantity is THROUGHPUT:
        return AxisScale(0.0, high * 1.1, start, end)
    # Differences of a few per cent matter near 100 %, so start just below the lowest value, at a multiple of 5.
    return AxisScale(max(5.0 * math.floor((low - 1) / 5), 0.0), max(high, 100.0) + 2, start, end)


def _value_ticks(y: AxisScale) -> list[float]:
    if not y.is_log:
        return svg_axes.round_ticks(y.low, y.high)
    return [2.0**i for i in range(math.ceil(math.log2(y.low)), math.floor(math.log2(y.high)) + 1)]


def _size_ticks(sizes: Sequence[int]) -> list[float]:
    """Ticks at a subset of the world sizes, so that their numbers do not overlap."""
    return [float(size) for size in sizes[:: -(-len(sizes) // _MOST_TICKS)]]


def _ideal(quantity: Quantity, curves: Sequence[ScalingCurve], x: AxisScale, y: AxisScale) -> str:
    if quantity is SPEEDUP:
        low, high = max(x.low, y.low), min(x.high, y.high)
        return line(x.at(low), y.at(low), x.at(high), y.at(high), _IDEAL) if low < high else ""
    if quantity is THROUGHPUT:
        alone = [curve for curve in curves if 1 in curve.values and len(curve.values) > 1]
        style = 'stroke-opacity="0.7" stroke-dasharray="7 4"'
        return "".join(
            line(x.start, y.at(c.values[1]), x.end, y.at(c.values[1]), f'stroke="{_colour(c)}" {style}') for c in alone
        )
    return line(x.start, y.at(100), x.end, y.at(100), _IDEAL) if quantity is EFFICIENCY else ""


def _curve(curve: ScalingCurve, x: AxisScale, y: AxisScale) -> str:
    places, colour = {size: x.at(size * curve.dodge) for size in curve.world_sizes}, _colour(curve)
    points = " ".join(f"{number(places[size])},{number(y.at(value))}" for size, value in curve.values.items())
    parts = [f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"{_dash(curve)}/>']
    for bound in curve.bounds:
        at, height = places[bound.world_size], y.at(bound.value)
        dots = ' stroke-dasharray="2 2"' if bound.provisional else ""
        bold = f'stroke="{colour}" stroke-width="2.5"{dots}'
        parts.append(line(at - 11, height, at + 11, height, f'class="bound" {bold}'))
    for point in curve.points:
        at, ends = places[point.world_size], point.drawn_interval
        if ends:
            low, high = map(y.at, ends)
            parts.append(
                f'<path class="interval" d="M{number(at - 4)} {number(low)}h8m-4 0V{number(high)}m-4 0h8" '
                f'fill="none" stroke="{colour}" stroke-width="1.3"/>'
            )
        parts.append(marker(curve.number, at, y.at(point.value), colour))
        if point.is_failed:
            parts.append(cross(at, y.at(point.value)))
    return "".join(parts)


def _keys(quantity: Quantity, curves: Sequence[ScalingCurve], device: str) -> list[tuple[str, str]]:
    """Legend entries: samples, drawn from 0 to 30, and their meaning."""
    keys = []
    for curve in curves:
        stroke = line(0, 0, 30, 0, f'stroke="{_colour(curve)}" stroke-width="1.5"{_dash(curve)}')
        keys.append((stroke + marker(curve.number, 15, 0, _colour(curve)), curve.workload))
    if quantity is not UTILIZATION:
        keys.append((line(0, 0, 30, 0, _IDEAL), f"ideal: one per {device}" if quantity is SPEEDUP else "ideal"))
    bound = 'stroke="currentColor" stroke-width="2.5"'
    samples: dict[LegendKind, str] = {
        "bound": line(4, 0, 26, 0, bound),
        "provisional": line(4, 0, 26, 0, f'{bound} stroke-dasharray="2 2"'),
        "interval": '<path d="M11-6h8m-4 0V6m-4 0h8" fill="none" stroke="currentColor" stroke-width="1.3"/>',
        "missed": cross(15, 0),
        "note": "",
    }
    return keys + [(samples[kind], name) for kind, name in chart_legend(curves, device)]


def _in_words(curve: ScalingCurve, quantity: Quantity) -> str:
    return ", ".join(
        f"{number_text(point.value / quantity.factor, curve.unit)} on {point.world_size}"
        f"{f' ({point.where})' if point.where else ''}{', misses its bound' if point.is_failed else ''}"
        for point in curve.points
    )


def weak_table(plan: Plan, sku: str, throughputs: Sequence[ScalingCurve], efficiencies: Sequence[ScalingCurve]) -> str:
    """One row for each workload: batch, throughput of one GPU, efficiency on eight or the most GPUs measured."""
    by_name = {curve.workload: curve.values for curve in efficiencies}
    batch_sizes = {
        study.workload.name: study.workload.batch_size for study in plan.of_launch(1).studies if study.scaling == "weak"
    }
    rows = []
    for curve in throughputs:
        of_many = by_name.get(curve.workload, {})
        size = 8 if 8 in of_many else max(of_many, default=0)
        alone = curve.values.get(1)
        rows.append((
            sku, curve.workload, str(batch_sizes[curve.workload]),
            ABSENT if alone is None else number_text(alone, curve.unit),
            f"{number_text(of_many[size] / 100, WEAK_SCALING_EFFICIENCY.unit)} on {size}" if size else ABSENT,
        ))  # fmt: skip
    headings = ("SKU", "Workload", "Batch per GPU", "1 GPU", "Efficiency on 8 GPUs")
    return html(table(headings, rows)) if rows else ""


def generation_table(judgement: Judgement) -> str:
    """One row for each generation ratio, with both throughputs per GPU."""
    rows, rate = [], THROUGHPUT_PER_GPU.unit_of()
    for verdict in judgement.verdicts:
        both = verdict.compared
        if both is not None and verdict.value is not None:
            speeds = [number_text(one, rate) for one in (both.samples_per_s, both.reference_samples_per_s)]
            row = (verdict.workload, str(verdict.world_size), judgement.sku, speeds[0], both.reference, speeds[1])
            rows.append((*row, number_text(verdict.value, "x")))
    headings = ("Workload", "GPUs", "SKU", "per GPU here", "Reference", "per GPU there", "Ratio")
    return html(table(headings, rows)) if rows else ""
