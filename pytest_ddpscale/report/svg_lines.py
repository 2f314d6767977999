"""Curves over any quantity, with a second axis if needed, and bars by category."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddpscale.report import svg_axes
from pytest_ddpscale.report.svg_axes import SERIES_COLOURS, AxisScale, label, line, marker, number, rectangle

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM, _KEY_HEIGHT = 480.0, 300.0, 58.0, 14.0, 30.0, 44.0, 19.0
_SECOND_RIGHT = 44.0
_DASHES = ("", "6 3", "2 2", "8 3 2 3")
_IDEAL = 'stroke="currentColor" stroke-opacity="0.7" stroke-dasharray="7 4"'
_MOST_MARKS = 40  # more markers would hide the curve
_MOST_TICKS = 9
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class LineCurve:
    """One curve with points in ascending x; `second` puts its values on the right axis."""

    name: str
    points: Points
    second: bool = False


@dataclass(frozen=True)
class LineAxes:
    """Titles of the axes, and which are logarithmic (base 2).

    Attributes:
        second: title of the right axis; empty without one.
        ideal: whether to draw y = x, the ideal speed-up.
    """

    x: str
    y: str
    x_is_log: bool = False
    y_is_log: bool = False
    second: str = ""
    ideal: bool = False


def line_chart(key: str, title: str, axes: LineAxes, curves: Sequence[LineCurve]) -> str:
    """A picture of all curves that have points; empty without any.

    Args:
        key: unique in the page.
        title: text alternative of the picture.
    """
    drawn = [curve for curve in curves if curve.points]
    if not drawn:
        return ""
    xs = sorted({x for curve in drawn for x, _ in curve.points})
    right = _WIDTH - (_SECOND_RIGHT if axes.second else _RIGHT)
    margin = (xs[-1] - xs[0]) * 0.03 or 1.0
    low, high = (xs[0] / 1.35, xs[-1] * 1.35) if axes.x_is_log else (xs[0] - margin, xs[-1] + margin)
    x = AxisScale(low, high, _LEFT, right, is_log=axes.x_is_log)
    y = _scale([v for curve in drawn if not curve.second for _, v in curve.points], xs, axes)
    second = _second_scale([v for curve in drawn if curve.second for _, v in curve.points])
    ticks = xs[:: -(-len(xs) // _MOST_TICKS)] if axes.x_is_log else svg_axes.round_ticks(low, high)
    body = svg_axes.frame(x, y, ticks, _ticks(y), (axes.x, axes.y))
    if axes.second:
        body += "".join(label(right + 6, second.at(tick) + 4, f"{tick:g}") for tick in _ticks(second))
        body += label(_WIDTH - 2, _TOP - 12, axes.second, "end")
    if axes.ideal:
        first, last = max(x.low, y.low), min(x.high, y.high)
        body += line(x.at(first), y.at(first), x.at(last), y.at(last), _IDEAL)
    body += "".join(_curve(place, curve, x, second if curve.second else y) for place, curve in enumerate(drawn))
    keys = [(_sample(place), curve.name) for place, curve in enumerate(drawn)]
    keys += [(line(0, 0, 30, 0, _IDEAL), "ideal")] if axes.ideal else []
    said = "; ".join(f"{curve.name}: {_in_words(curve.points)}" for curve in drawn)
    return _with_keys(key, title, said, body, keys)


def bar_chart(key: str, title: str, axes: LineAxes, series: Mapping[str, Mapping[str, float]]) -> str:
    """Bars side by side, one per series in each category; empty without any."""
    names = list(dict.fromkeys(name for bars in series.values() for name in bars))
    if not names:
        return ""
    y = AxisScale(0.0, max(v for bars in series.values() for v in bars.values()) * 1.12, _HEIGHT - _BOTTOM, _TOP)
    x = AxisScale(0.0, float(len(names)), _LEFT, _WIDTH - _RIGHT)
    body = svg_axes.frame(x, y, [], _ticks(y), (axes.x, axes.y))
    width = 0.8 / len(series) * (x.at(1) - x.at(0))
    for i, name in enumerate(names):
        body += label(x.at(i + 0.5), y.start + 18, name, "middle")
        for place, bars in enumerate(series.values()):
            if name in bars:
                left, top = x.at(i + 0.1) + place * width, y.at(bars[name])
                body += rectangle(left, top, width * 0.94, y.start - top, SERIES_COLOURS[place])
                body += label(left + width / 2, top - 4, f"{bars[name]:.4g}", "middle", ' font-size="11"')
    keys = [(rectangle(8, -6, 14, 12, SERIES_COLOURS[place]), name) for place, name in enumerate(series)]
    said = "; ".join(f"{name}: {', '.join(f'{of} {v:.4g}' for of, v in bars.items())}" for name, bars in series.items())
    return _with_keys(key, title, said, body, keys)


def _with_keys(key: str, title: str, said: str, body: str, keys: Sequence[tuple[str, str]]) -> str:
    bottom = _HEIGHT + 8
    for i, (sample, name) in enumerate(keys):
        at = f"translate({number(_LEFT)} {number(bottom + _KEY_HEIGHT * (i + 0.5))})"
        body += f'<g transform="{at}">{sample}{label(40, 4, name)}</g>'
    return svg_axes.svg(key, title, said, _WIDTH, bottom + _KEY_HEIGHT * len(keys) + 6, body)


def _scale(values: Sequence[float], xs: Sequence[float], axes: LineAxes) -> AxisScale:
    start, end = _HEIGHT - _BOTTOM, _TOP
    if axes.y_is_log:
        most = max(*values, xs[-1]) if axes.ideal else max(values)
        return AxisScale(min(values) / 1.2, most * 1.2, start, end, is_log=True)
    return AxisScale(0.0, max(values, default=1.0) * 1.08 or 1.0, start, end)


def _second_scale(values: Sequence[float]) -> AxisScale:
    return AxisScale(0.0, max([*values, 1.0]) * 1.08, _HEIGHT - _BOTTOM, _TOP)


def _ticks(scale: AxisScale) -> list[float]:
    if not scale.is_log:
        return svg_axes.round_ticks(scale.low, scale.high)
    powers = range(math.ceil(math.log2(scale.low)), math.floor(math.log2(scale.high)) + 1)
    return [2.0**power for power in powers[:: -(-len(powers) // _MOST_TICKS)]] if powers else []


def _curve(place: int, curve: LineCurve, x: AxisScale, y: AxisScale) -> str:
    at = " ".join(f"{number(x.at(one))},{number(y.at(value))}" for one, value in curve.points)
    colour = SERIES_COLOURS[place % len(SERIES_COLOURS)]
    line_drawn = f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="1.5"{_dash(place)}/>'
    if len(curve.points) > _MOST_MARKS:
        return line_drawn
    return line_drawn + "".join(marker(place, x.at(one), y.at(value), colour) for one, value in curve.points)


def _dash(place: int) -> str:
    pattern = _DASHES[place % len(_DASHES)]
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def _sample(place: int) -> str:
    colour = SERIES_COLOURS[place % len(SERIES_COLOURS)]
    return line(0, 0, 30, 0, f'stroke="{colour}" stroke-width="1.5"{_dash(place)}') + marker(place, 15, 0, colour)


def _in_words(points: Points) -> str:
    shown = points if len(points) <= _MOST_TICKS else (points[0], points[-1])
    return ", ".join(f"{value:.4g} at {x:g}" for x, value in shown)
