"""Bars side by side for each cell of a sweep, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pytest_ddpscale.judge.estimating import Found
from pytest_ddpscale.report import svg_axes
from pytest_ddpscale.report.svg_axes import SERIES_COLOURS, AxisScale, label, line, rectangle

_LEAST_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM, _KEY_HEIGHT = 480.0, 300.0, 60.0, 14.0, 30.0, 44.0, 19.0
_CHARACTER, _GAP = 7.5, 12.0  # width of a character in a cell's name, and gap between names
_ROOM = 1.12  # above the highest value
_OPACITIES = (0.9, 0.55, 0.3, 0.7)  # distinguish bars without colour
_HIGHEST = 2.0  # longer intervals are cut, because they would flatten all bars


class Bars(NamedTuple):
    """One series: a value for each cell, or None."""

    name: str
    values: Sequence[Found | float | None]


def bars_figure(key: str, title: str, axes: tuple[str, str], cells: Sequence[str], series: Sequence[Bars]) -> str:
    """The picture; empty if no value is above 0.

    Args:
        key: unique in the page.
        title: of the picture.
        axes: titles of the cells and of the values, with their unit.
        cells: their names, from left to right.
        series: their bars.
    """
    highest = max((_value(one) for bars in series for one in bars.values), default=0.0)
    tops = [min(_ends(one)[1], _HIGHEST * highest) for bars in series for one in bars.values]
    if highest <= 0:
        return ""
    of_cell = max(map(len, cells)) * _CHARACTER + _GAP
    width = max(_LEAST_WIDTH, _LEFT + _RIGHT + of_cell * len(cells))
    y = AxisScale(0.0, max(tops) * _ROOM, _HEIGHT - _BOTTOM, _TOP)
    x = AxisScale(0.0, float(len(cells)), _LEFT, width - _RIGHT)
    ticks = [at + 0.5 for at in range(len(cells))]
    body = svg_axes.frame(x, y, ticks, svg_axes.round_ticks(y.low, y.high), axes, lambda tick: cells[int(tick)])
    keys, bar_width = [], (x.at(1) - x.at(0)) * 0.8 / len(series)
    for place, bars in enumerate(series):
        colour, opacity = SERIES_COLOURS[place], _OPACITIES[place]
        extra = f' fill-opacity="{opacity}"'
        for at, one in enumerate(bars.values):
            left = x.at(at + 0.1) + place * bar_width
            body += _bar(one, left, bar_width, y, colour, extra)
        top = _HEIGHT + _KEY_HEIGHT * place
        keys.append(rectangle(_LEFT, top + 3, 18, 12, colour, extra) + label(_LEFT + 26, top + 14, bars.name))
    said = "; ".join(
        f"{bars.name}: " + ", ".join(f"{cell} {_value(one):.4g}" for cell, one in zip(cells, bars.values, strict=True))
        for bars in series
    )
    height = _HEIGHT + _KEY_HEIGHT * len(keys) + 6
    return svg_axes.svg(key, title, said, width, height, body + "".join(keys))


def _bar(one: Found | float | None, left: float, width: float, y: AxisScale, colour: str, extra: str) -> str:
    if one is None:
        return ""
    top = y.at(_value(one))
    drawn = rectangle(left, top, width * 0.92, y.at(0) - top, colour, extra)
    low, high = _ends(one)
    if low < high:
        middle = left + width * 0.46
        drawn += line(middle, y.at(low), middle, y.at(high), 'stroke="currentColor" stroke-width="1.5"')
    return drawn


def _value(one: Found | float | None) -> float:
    value = one.value if isinstance(one, Found) else one
    return 0.0 if value is None else max(0.0, value)


def _ends(one: Found | float | None) -> tuple[float, float]:
    if isinstance(one, Found) and one.interval is not None:
        low, high = one.interval
        return max(0.0, low), max(0.0, high)
    return _value(one), _value(one)
