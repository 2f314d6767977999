"""Curves over message sizes: bandwidth, which rises to the link's limit, and time, which falls to its latency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_ddpscale.plan.collective_sweep import size_text
from pytest_ddpscale.report import svg_axes
from pytest_ddpscale.report.svg_axes import SERIES_COLOURS, AxisScale, cross, label, line, marker, number

_WIDTH, _PLOT_HEIGHT = 480.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM, _KEY_HEIGHT = 58.0, 14.0, 30.0, 44.0, 19.0
_DASHES = ("", "6 3", "2 2", "8 3 2 3")
_MOST_TICKS = 6
# Intervals are cut at this factor from the value, because a wide one would squeeze all curves into one line.
_WIDEST = 2.0


class SweptPoint(NamedTuple):
    """One message size.

    Attributes:
        size_bytes: size of the message in the probe's name, not rounded down to a multiple of the ranks.
        value: in the unit of the chart, above 0.
        interval: of the value; None without one.
        bound: of the requirement; None without one.
        has_failed: whether the value misses the bound.
    """

    size_bytes: int
    value: float
    interval: tuple[float, float] | None = None
    bound: float | None = None
    has_failed: bool = False


@dataclass(frozen=True)
class SweptCurve:
    """One operation.

    Attributes:
        name: in the legend.
        points: by size, ascending.
        place: index of its colour and marker, the same in all charts of a page.
    """

    name: str
    points: tuple[SweptPoint, ...]
    place: int

    @property
    def colour(self) -> str:
        """Colour of the line."""
        return SERIES_COLOURS[self.place % len(SERIES_COLOURS)]

    @property
    def dash(self) -> str:
        """Dash pattern of the line, so that curves differ without colour."""
        pattern = _DASHES[self.place % len(_DASHES)]
        return f' stroke-dasharray="{pattern}"' if pattern else ""


def sweep_chart(key: str, title: str, axis: str, curves: Sequence[SweptCurve], *, is_log: bool = False) -> str:
    """Values over the message size, on a logarithmic axis; empty without any.

    Args:
        key: unique in the page.
        title: text alternative of the picture.
        axis: name of the values, with their unit.
        curves: one for each operation.
        is_log: whether the value axis is logarithmic, as for times.
    """
    drawn = [curve for curve in curves if curve.points]
    if not drawn:
        return ""
    sizes = sorted({point.size_bytes for curve in drawn for point in curve.points})
    x = AxisScale(sizes[0] / 1.6, sizes[-1] * 1.6, _LEFT, _WIDTH - _RIGHT, is_log=True)
    y = _value_scale([point for curve in drawn for point in curve.points], is_log=is_log)
    ticks = [float(size) for size in sizes[:: -(-len(sizes) // _MOST_TICKS)]]
    body = svg_axes.frame(x, y, ticks, _value_ticks(y), ("message size", axis), _size_name)
    body += "".join(_curve(curve, x, y) for curve in drawn)
    keys, bottom = _keys(drawn), _PLOT_HEIGHT + 8
    for i, (sample, name) in enumerate(keys):
        at = f"translate({number(_LEFT)} {number(bottom + _KEY_HEIGHT * (i + 0.5))})"
        body += f'<g transform="{at}">{sample}{label(40, 4, name)}</g>'
    said = "; ".join(_in_words(curve, axis) for curve in drawn)
    return svg_axes.svg(key, title, said, _WIDTH, bottom + _KEY_HEIGHT * len(keys) + 6, body)


def _value_scale(points: Sequence[SweptPoint], *, is_log: bool) -> AxisScale:
    values = [point.value for point in points]
    values += [point.bound for point in points if point.bound is not None]
    values += [end for point in points for end in _drawn_interval(point) or ()]
    low, high = min(values), max(values)
    start, end = _PLOT_HEIGHT - _BOTTOM, _TOP
    return (
        AxisScale(low / 1.3, high * 1.3, start, end, is_log=True) if is_log else AxisScale(0, high * 1.08, start, end)
    )


def _value_ticks(y: AxisScale) -> list[float]:
    if not y.is_log:
        return svg_axes.round_ticks(y.low, y.high)
    powers = range(math.ceil(math.log10(y.low)), math.floor(math.log10(y.high)) + 1)
    return [10.0**power for power in powers] or [y.low * 1.3]


def _drawn_interval(point: SweptPoint) -> tuple[float, float] | None:
    if point.interval is None:
        return None
    low, high = point.interval
    return max(low, point.value / _WIDEST), min(high, point.value * _WIDEST)


def _curve(curve: SweptCurve, x: AxisScale, y: AxisScale) -> str:
    at = " ".join(f"{number(x.at(point.size_bytes))},{number(y.at(point.value))}" for point in curve.points)
    parts = [f'<polyline points="{at}" fill="none" stroke="{curve.colour}" stroke-width="1.5"{curve.dash}/>']
    for point in curve.points:
        across, up = x.at(point.size_bytes), y.at(point.value)
        ends = _drawn_interval(point)
        if ends is not None:
            low, high = map(y.at, ends)
            parts.append(
                f'<path class="interval" d="M{number(across - 4)} {number(low)}h8m-4 0V{number(high)}m-4 0h8" '
                f'fill="none" stroke="{curve.colour}" stroke-width="1.3"/>'
            )
        if point.bound is not None:
            bound = y.at(point.bound)
            style = f'class="bound" stroke="{curve.colour}" stroke-width="2.5"'
            parts.append(line(across - 11, bound, across + 11, bound, style))
        parts.append(marker(curve.place, across, up, curve.colour))
        if point.has_failed:
            parts.append(cross(across, up))
    return "".join(parts)


def _keys(curves: Sequence[SweptCurve]) -> list[tuple[str, str]]:
    """Legend entries: samples, drawn from 0 to 30, and their meaning."""
    keys = []
    for curve in curves:
        stroke = line(0, 0, 30, 0, f'stroke="{curve.colour}" stroke-width="1.5"{curve.dash}')
        keys.append((stroke + marker(curve.place, 15, 0, curve.colour), curve.name))
    points = [point for curve in curves for point in curve.points]
    if any(point.bound is not None for point in points):
        keys.append((line(4, 0, 26, 0, 'stroke="currentColor" stroke-width="2.5"'), "bound"))
    if any(point.has_failed for point in points):
        keys.append((cross(15, 0), "misses its bound"))
    return keys


def _in_words(curve: SweptCurve, axis: str) -> str:
    first, last = curve.points[0], curve.points[-1]
    ends = [f"{point.value:.3g} at {_size_name(point.size_bytes)}" for point in dict.fromkeys((first, last))]
    failed = [f"misses its bound at {_size_name(point.size_bytes)}" for point in curve.points if point.has_failed]
    return f"{curve.name}, {axis}: {', '.join([*ends, *failed])}"


def _size_name(size_bytes: float) -> str:
    return size_text(int(size_bytes))
