"""Charts and tables of scaling, with the verdicts' values, intervals and bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU, WEAK_SCALING_EFFICIENCY
from pytest_ddpscale.plan.study import Plan, Scaling
from pytest_ddpscale.report import svg_axes
from pytest_ddpscale.report.plotted_series import EFFICIENCY, SPEEDUP, THROUGHPUT, UTILIZATION, PlottedSeries, Quantity
from pytest_ddpscale.report.svg_axes import SERIES_COLOURS, AxisScale, cross, label, line, marker, number
from pytest_ddpscale.report.text import ABSENT, has_interval, number_text
from pytest_ddpscale.results.verdicts import Judgement, Verdict

WIDTH, _PLOT_HEIGHT = 480.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM, _KEY_HEIGHT = 52.0, 14.0, 30.0, 44.0, 19.0
_MOST_TICKS = 9
_DASHES = ("", "6 3", "2 2", "8 3 2 3")
_IDEAL = 'stroke="currentColor" stroke-opacity="0.7" stroke-dasharray="7 4"'
# Intervals are cut at this factor from the value, because a wide one would squeeze all curves into one line.
_WIDEST = 2.0


@dataclass(frozen=True)
class ChartedCurve:
    """One study in one chart, in the unit of its axis.

    Attributes:
        values: by world size: the verdict's value if there is one, else the mean over the rounds.
        verdicts: the verdict at each world size; a failed one if there are several.
    """

    name: str
    place: int
    values: dict[int, float]
    verdicts: dict[int, Verdict]
    dodge: float

    @property
    def colour(self) -> str:
        """Colour of the line."""
        return SERIES_COLOURS[self.place % len(SERIES_COLOURS)]


def scaling_chart(
    key: str,
    scaling: Scaling,
    quantity: Quantity,
    all_series: Sequence[PlottedSeries],
    judgement: Judgement,
    device: str,
) -> str:
    """One quantity of weak or strong scaling over the world size; empty if it was not measured."""
    curves = _curves(scaling, quantity, all_series, judgement)
    if not curves:
        return ""
    sizes = sorted({size for curve in curves for size in (*curve.values, *curve.verdicts)})
    if quantity is SPEEDUP:  # the ideal line starts at 1
        sizes = sorted({1, *sizes})
    keys = _keys(quantity, curves, device)
    x = AxisScale(sizes[0] / 1.35, sizes[-1] * 1.35, _LEFT, WIDTH - _RIGHT, is_log=True)
    y = _value_scale(quantity, curves)
    titles = (
        f"world size ({'GPUs' if device == 'GPU' else 'CPU ranks'})",
        f"{scaling}: {quantity.axis.format(device=device)}",
    )
    body = svg_axes.frame(x, y, _size_ticks(sizes), _value_ticks(y), titles)
    body += _ideal(quantity, curves, x, y) + "".join(_curve(curve, quantity.factor, x, y) for curve in curves)
    bottom = _PLOT_HEIGHT + 8
    body += "".join(
        f'<g transform="translate({number(_LEFT)} {number(bottom + _KEY_HEIGHT * (i + 0.5))})">{sample}'
        f"{label(40, 4, name)}</g>"
        for i, (sample, name) in enumerate(keys)
    )
    title = f"{scaling.capitalize()} scaling: {quantity.title.format(device=device)}"
    said = "; ".join(f"{curve.name}: {_in_words(curve, quantity)}" for curve in curves)
    return svg_axes.svg(key, title, said, WIDTH, bottom + _KEY_HEIGHT * len(keys) + 6, body)


def _curves(
    scaling: Scaling, quantity: Quantity, all_series: Sequence[PlottedSeries], judgement: Judgement
) -> list[ChartedCurve]:
    drawn, factor = {metric.name for metric in quantity.metrics if metric.scaling == scaling}, quantity.factor
    # Verdicts of several nodes share one place in the chart; the last one stays, so failures come last.
    judged = sorted((v for v in judgement.verdicts if v.metric in drawn), key=lambda v: v.outcome == "failed")
    measured = [
        (series, points)
        for series in all_series
        if series.scaling == scaling and (points := series.points(quantity.metrics[0]))
    ]
    curves = []
    for i, (series, points) in enumerate(measured):
        verdicts = {v.world_size: v for v in judged if v.workload == series.workload and v.placement == "packed"}
        values = {point.world_size: point.center * factor for point in points}
        values |= {k: v.value * factor for k, v in verdicts.items() if v.value is not None and math.isfinite(v.value)}
        dodge = 2 ** ((i - (len(measured) - 1) / 2) * min(0.07, 0.4 / len(measured)))
        curves.append(ChartedCurve(series.workload, i, dict(sorted(values.items())), verdicts, dodge))
    return curves


def _interval(verdict: Verdict, factor: float) -> tuple[float, float] | None:
    """A verdict's interval in the unit of the axis; None if there is none to draw."""
    if verdict.value is None or verdict.interval is None or not has_interval(verdict):
        return None
    low, high = verdict.interval
    if math.isnan(low) or math.isnan(high):
        return None
    return max(low, verdict.value / _WIDEST) * factor, min(high, verdict.value * _WIDEST) * factor


def _value_scale(quantity: Quantity, curves: Sequence[ChartedCurve]) -> AxisScale:
    values = [value for curve in curves for value in curve.values.values()]
    verdicts = [verdict for curve in curves for verdict in curve.verdicts.values()]
    values += [verdict.bound_value * quantity.factor for verdict in verdicts]
    values += [end for verdict in verdicts for end in _interval(verdict, quantity.factor) or ()]
    low, high = min(values), max(values)
    start, end = _PLOT_HEIGHT - _BOTTOM, _TOP
    if quantity is SPEEDUP:
        most = max(size for curve in curves for size in (*curve.values, *curve.verdicts))
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


def _ideal(quantity: Quantity, curves: Sequence[ChartedCurve], x: AxisScale, y: AxisScale) -> str:
    if quantity is SPEEDUP:
        low, high = max(x.low, y.low), min(x.high, y.high)
        return line(x.at(low), y.at(low), x.at(high), y.at(high), _IDEAL) if low < high else ""
    if quantity is THROUGHPUT:
        alone = [curve for curve in curves if 1 in curve.values and len(curve.values) > 1]
        style = 'stroke-opacity="0.7" stroke-dasharray="7 4"'
        return "".join(
            line(x.start, y.at(c.values[1]), x.end, y.at(c.values[1]), f'stroke="{c.colour}" {style}') for c in alone
        )
    return line(x.start, y.at(100), x.end, y.at(100), _IDEAL) if quantity is EFFICIENCY else ""


def _curve(curve: ChartedCurve, factor: float, x: AxisScale, y: AxisScale) -> str:
    places = {size: x.at(size * curve.dodge) for size in {*curve.values, *curve.verdicts}}
    points = " ".join(f"{number(places[size])},{number(y.at(value))}" for size, value in curve.values.items())
    dash = f' stroke-dasharray="{_DASHES[curve.place % 4]}"' if curve.place % 4 else ""
    parts = [f'<polyline points="{points}" fill="none" stroke="{curve.colour}" stroke-width="1.5"{dash}/>']
    for size, verdict in curve.verdicts.items():
        at, bound = places[size], y.at(verdict.bound_value * factor)
        dots = ' stroke-dasharray="2 2"' if verdict.provisional else ""
        bold = f'stroke="{curve.colour}" stroke-width="2.5"{dots}'
        parts.append(line(at - 11, bound, at + 11, bound, f'class="bound" {bold}'))
        ends = _interval(verdict, factor)
        if ends:
            low, high = map(y.at, ends)
            parts.append(
                f'<path class="interval" d="M{number(at - 4)} {number(low)}h8m-4 0V{number(high)}m-4 0h8" '
                f'fill="none" stroke="{curve.colour}" stroke-width="1.3"/>'
            )
    for size, value in curve.values.items():
        parts.append(marker(curve.place, places[size], y.at(value), curve.colour))
        if size in curve.verdicts and curve.verdicts[size].outcome == "failed":
            parts.append(cross(places[size], y.at(value)))
    return "".join(parts)


def _keys(quantity: Quantity, curves: Sequence[ChartedCurve], device: str) -> list[tuple[str, str]]:
    """Legend entries: samples, drawn from 0 to 30, and their meaning."""
    keys = []
    for curve in curves:
        dash = f' stroke-dasharray="{_DASHES[curve.place % 4]}"' if curve.place % 4 else ""
        stroke = line(0, 0, 30, 0, f'stroke="{curve.colour}" stroke-width="1.5"{dash}')
        keys.append((stroke + marker(curve.place, 15, 0, curve.colour), curve.name))
    if quantity is not UTILIZATION:
        keys.append((line(0, 0, 30, 0, _IDEAL), f"ideal: one per {device}" if quantity is SPEEDUP else "ideal"))
    verdicts = [verdict for curve in curves for verdict in curve.verdicts.values()]
    for provisional, name in ((False, "bound"), (True, "provisional bound")):
        if any(verdict.provisional == provisional for verdict in verdicts):
            dots = ' stroke-dasharray="2 2"' if provisional else ""
            keys.append((line(4, 0, 26, 0, f'stroke="currentColor" stroke-width="2.5"{dots}'), name))
    if any(_interval(verdict, 1.0) for verdict in verdicts):
        bar = '<path d="M11-6h8m-4 0V6m-4 0h8" fill="none" stroke="currentColor" stroke-width="1.3"/>'
        levels = sorted({verdict.confidence for verdict in verdicts})
        keys.append((bar, f"{' and '.join(f'{100 * level:.0f} %' for level in levels)} confidence interval"))
    if any(verdict.outcome == "failed" for verdict in verdicts):
        keys.append((cross(15, 0), "misses its bound"))
    return keys


def _in_words(curve: ChartedCurve, quantity: Quantity) -> str:
    unit = quantity.metrics[0].unit
    said = []
    for size, value in curve.values.items():
        verdict = curve.verdicts.get(size)
        failed = ", misses its bound" if verdict is not None and verdict.outcome == "failed" else ""
        said.append(f"{number_text(value / quantity.factor, unit)} on {size}{failed}")
    return ", ".join(said)


def weak_table(plan: Plan, all_series: Sequence[PlottedSeries], judgement: Judgement) -> str:
    """One row for each workload: batch, images per second on one GPU, efficiency on eight or the most GPUs measured."""
    throughputs, efficiencies = (
        {curve.name: curve.values for curve in _curves("weak", quantity, all_series, judgement)}
        for quantity in (THROUGHPUT, EFFICIENCY)
    )
    rows = []
    for study in plan.of_launch(1).studies:
        name = study.workload.name
        if study.scaling == "weak" and name in throughputs:
            of_many = efficiencies.get(name, {})
            size = 8 if 8 in of_many else max(of_many, default=0)
            alone = throughputs[name].get(1)
            rows.append((
                judgement.sku, name, str(study.workload.batch_size),
                ABSENT if alone is None else number_text(alone, THROUGHPUT_PER_GPU.unit),
                f"{number_text(of_many[size] / 100, WEAK_SCALING_EFFICIENCY.unit)} on {size}" if size else ABSENT,
            ))  # fmt: skip
    headings = ("SKU", "Workload", "Batch per GPU", "1 GPU", "Efficiency on 8 GPUs")
    return svg_axes.table(headings, rows) if rows else ""


def generation_table(judgement: Judgement) -> str:
    """One row for each generation ratio, with both throughputs per GPU."""
    rows = []
    for verdict in judgement.verdicts:
        both = verdict.compared
        if both is not None and verdict.value is not None:
            speeds = (number_text(both.img_per_s, "img/s"), number_text(both.reference_img_per_s, "img/s"))
            row = (verdict.workload, str(verdict.world_size), judgement.sku, speeds[0], both.reference, speeds[1])
            rows.append((*row, number_text(verdict.value, "x")))
    headings = ("Workload", "GPUs", "SKU", "per GPU here", "Reference", "per GPU there", "Ratio")
    return svg_axes.table(headings, rows) if rows else ""
