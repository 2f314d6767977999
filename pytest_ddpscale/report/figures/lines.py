"""Curves over any quantity, with intervals and bounds: in one chart, or each in a panel of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pytest_ddpscale.report.figures import drawing
from pytest_ddpscale.report.figures.drawing import INK, SERIES, SMALL, WIDE, Drawing, Sheet, drawable, legend_height

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEFT, _RIGHT, _ABOVE, _BELOW, _HEIGHT = 0.65, 0.1, 0.3, 0.45, 2.1  # of a plot and around it, in inches
_WIDEST = 2.0  # an interval is drawn up to this factor from the value: a wide one would squeeze all curves
_MOST_COLUMNS, _LOW = 4, 1.4  # of panels, and their height
_SECOND_RIGHT = 0.55
_MOST_MARKS = 40  # more markers would hide the curve
_MOST_TICKS = 8
_CHARACTER = 0.06  # width of a character of a number, in inches
_IDEAL: dict[str, Any] = {"color": INK, "alpha": 0.6, "linestyle": (0, (5, 3)), "linewidth": 0.9}
_BOUND: dict[str, Any] = {"color": INK, "linewidth": 2.0}
_PROVISIONAL = _BOUND | {"linestyle": (0, (1, 1))}
_INTERVAL: dict[str, Any] = {"linewidth": 2.5, "alpha": 0.5}
_MISSED: dict[str, Any] = {
    "color": drawing.BAD,
    "marker": "X",
    "markersize": 8,
    "linestyle": "none",
    "markeredgecolor": drawing.PAPER,
}
_Signs = Sequence[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Point:
    """One value.

    Attributes:
        interval: of the value, the one that decides; None without one.
        is_failed: whether the value misses its bound.
    """

    x: float
    value: float
    interval: tuple[float, float] | None = None
    is_failed: bool = False

    @property
    def drawn_interval(self) -> tuple[float, float] | None:
        """The interval as far as it is drawn; None if there is none."""
        if self.interval is None or any(map(math.isnan, self.interval)):
            return None
        low, high = self.interval
        return max(low, self.value / _WIDEST), min(high, self.value * _WIDEST)


@dataclass(frozen=True)
class Bound:
    """The bound of a requirement; `provisional` without a published source."""

    x: float
    value: float
    provisional: bool = False


@dataclass(frozen=True)
class Curve:
    """One curve.

    Attributes:
        points: by ascending x, as are `bounds`.
        is_second: whether its values are on the right axis.
        place: of its colour and marker, the same in all charts of a page; None for its place in the chart.
    """

    name: str
    points: Sequence[Point]
    bounds: Sequence[Bound] = ()
    is_second: bool = False
    place: int | None = None

    @property
    def xs(self) -> set[float]:
        """Where it has a value or a bound."""
        return {*(point.x for point in self.points), *(bound.x for bound in self.bounds)}

    @property
    def extent(self) -> list[float]:
        """Values that have to be inside a chart."""
        ends = [end for point in self.points for end in point.drawn_interval or ()]
        return [*(point.value for point in self.points), *ends, *(bound.value for bound in self.bounds)]


@dataclass(frozen=True)
class LineAxes:
    """Titles and scales of the axes.

    Attributes:
        x_is_log: whether the horizontal axis is logarithmic; its ticks are then at the points.
        values: scale of the vertical axis: from 0, logarithmic, or per cent where differences near 100 matter.
        ideal: what a dashed line shows: y = x, 100, or the first value; nothing if empty.
        ideal_name: of that line.
        second: title of the right axis; empty without one.
        interval: meaning of the bars, in the legend.
        x_name: writes a value of the horizontal axis.
        number: writes a value, its unit left out, at points of panels.
    """

    x: str
    y: str
    x_is_log: bool = False
    values: Literal["from zero", "log 2", "per cent"] = "from zero"
    ideal: Literal["", "diagonal", "hundred", "first"] = ""
    ideal_name: str = "ideal"
    second: str = ""
    interval: str = ""
    x_name: Callable[[float], str] = "{:g}".format
    number: Callable[[float], str] = "{:.4g}".format


def line_chart(axes: LineAxes, curves: Sequence[Curve]) -> Drawing | None:
    """All curves in one chart; None if they have no two places, which a sentence or a table says better."""
    drawn = [curve for curve in curves if curve.points]
    xs = sorted(set[float]().union(*(curve.xs for curve in drawn)))
    if len(xs) < 2:
        return None
    signs = [(drawable(curve.name), _style(curve, order)) for order, curve in enumerate(drawn)] + _signs(axes, drawn)
    names = [name for name, _ in signs]
    width = WIDE if legend_height(names, drawing.NARROW) > _HEIGHT / 2 else drawing.NARROW
    below = _BELOW + legend_height(names, width)

    def paint(sheet: Sheet) -> None:
        right = width - (_SECOND_RIGHT if axes.second else 0.25)
        plot = sheet.axes(_LEFT, below, right, sheet.height - _RIGHT)
        _scale(plot, axes, [curve for curve in drawn if not curve.is_second], xs)
        second = plot
        if axes.second:
            second = plot.twinx()
            second.spines["top"].set_visible(False)
            second.set_ylim(0, max([1.0, *(value for one in drawn if one.is_second for value in one.extent)]) * 1.1)
            sheet.text(width - 0.1, (sheet.height + below) / 2, axes.second, rotation=90, ha="center", va="center")
        for order, curve in enumerate(drawn):
            style = _style(curve, order)
            _draw(second if curve.is_second else plot, curve, style, style["color"])
        _name_axes(sheet, axes, below, signs)

    return Drawing(_in_words(axes, drawn), width, _HEIGHT + below + _RIGHT, paint)


def panels(axes: LineAxes, curves: Sequence[Curve], *, is_y_shared: bool) -> Drawing | None:
    """A panel for each curve, with the same horizontal axis and, on demand, the same vertical one; None without any."""
    if not curves:
        return None
    xs = sorted(set[float]().union(*(curve.xs for curve in curves)))
    columns = min(len(curves), _MOST_COLUMNS)
    rows, width = -(-len(curves) // columns), drawing.NARROW if columns == 1 else WIDE
    down = _ABOVE + (_HEIGHT if columns < 3 else _LOW) + 0.25
    signs = [("value", _style(curves[0], 0)), *_signs(axes, curves)]
    below = _BELOW - 0.2 + legend_height([name for name, _ in signs], width)

    def paint(sheet: Sheet) -> None:
        across = width / columns
        for i, curve in enumerate(curves):
            left, top = i % columns * across, sheet.height - i // columns * down
            plot = sheet.axes(left + _LEFT, top - down + 0.25, left + across - _RIGHT, top - _ABOVE)
            low, high = _scale(plot, axes, curves if is_y_shared else [curve], xs)
            plot.tick_params(labelbottom=i + columns >= len(curves), labelsize=SMALL)
            plot.set_title(drawable(curve.name, 34), fontweight="bold")
            _draw(plot, curve, _style(curve, 0), INK)
            _write_numbers(plot, axes, curve, (across - _LEFT - _RIGHT) / math.log2(high / low))
        _name_axes(sheet, axes, below, signs)

    return Drawing(_in_words(axes, curves), width, rows * down + below, paint)


def _scale(plot: Axes, axes: LineAxes, curves: Sequence[Curve], xs: Sequence[float]) -> tuple[float, float]:
    """Set scales, ticks and the ideal line; returns the ends of the horizontal axis."""
    from matplotlib.ticker import MaxNLocator

    values = [value for curve in curves for value in curve.extent]
    low, high = min(values, default=0.0), max(values, default=0.0) or 1.0
    margin = 0.03 * (xs[-1] - xs[0])
    ends = (xs[0] / 1.6, xs[-1] * 1.6) if axes.x_is_log else (xs[0] - margin, xs[-1] + margin)
    if axes.x_is_log:
        plot.set_xscale("log", base=2)
        ticks = drawing.thinned(xs, _MOST_TICKS)
        drawing.set_ticks(plot.xaxis, ticks, [axes.x_name(tick) for tick in ticks])
    plot.set_xlim(ends)
    if axes.values == "log 2":
        high = max(high, xs[-1]) if axes.ideal == "diagonal" else high
        low = min(low, 1.0) if axes.ideal == "diagonal" else low
        plot.set_yscale("log", base=2)
        plot.set_ylim(low / 1.2, high * 1.4)
        powers = [2.0**i for i in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
        drawing.set_ticks(plot.yaxis, drawing.thinned(powers, _MOST_TICKS) or [low])
    else:
        plot.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        # Differences of a few per cent matter near 100 %, so start below the lowest value, at a multiple of 5.
        start = max(5.0 * math.floor((low - 2) / 5), 0.0) if axes.values == "per cent" else 0.0
        high = max(high, 100.0) if axes.values == "per cent" else high
        plot.set_ylim(start, high + 0.15 * (high - start))
    plot.autoscale(enable=False)
    plot.grid(visible=True, axis="y", linewidth=0.6)
    first = [point.value for curve in curves for point in curve.points if point.x == 1]
    if axes.ideal == "diagonal":
        plot.plot(ends, ends, zorder=1, **_IDEAL)
    elif axes.ideal == "hundred" or (axes.ideal == "first" and first):
        plot.axhline(100.0 if axes.ideal == "hundred" else first[0], zorder=1, **_IDEAL)
    return ends


def _style(curve: Curve, order: int) -> dict[str, Any]:
    """Colour, dashes and marker, so that curves differ without colour."""
    place = order if curve.place is None else curve.place
    return {
        "color": SERIES[place % len(SERIES)], "linewidth": 1.3, "markersize": 4,
        "linestyle": drawing.DASHES[place % len(drawing.DASHES)],
        "marker": drawing.MARKERS[place % len(drawing.MARKERS)] if len(curve.points) <= _MOST_MARKS else "",
    }  # fmt: skip


def _draw(plot: Axes, curve: Curve, style: dict[str, Any], of_bounds: str) -> None:
    plot.autoscale(enable=False)
    plot.plot([one.x for one in curve.points], [one.value for one in curve.points], zorder=3, **style)
    for point in curve.points:
        if point.drawn_interval:
            plot.vlines(point.x, *point.drawn_interval, colors=style["color"], zorder=2, **_INTERVAL)
        if point.is_failed:
            plot.plot([point.x], [point.value], zorder=4, **_MISSED)
    for bound in curve.bounds:
        ends = [bound.x / 1.2, bound.x * 1.2]
        look = _PROVISIONAL if bound.provisional else _BOUND
        plot.plot(ends, [bound.value] * 2, zorder=2, **look | {"color": of_bounds})


def _write_numbers(plot: Axes, axes: LineAxes, curve: Curve, doubling: float) -> None:
    """Values above points, or below where they miss a bound; where space is short, of those with a requirement.

    `doubling` is the width of a doubling of x, in inches.
    """
    judged, written = {bound.x for bound in curve.bounds}, list[float]()

    def is_less_urgent(point: Point) -> tuple[bool, bool, float]:
        return not point.is_failed, point.x not in judged, -point.x

    for point in sorted(curve.points, key=is_less_urgent):
        number, at, below = axes.number(point.value), math.log2(point.x) * doubling, point.is_failed
        if all(abs(at - other) > _CHARACTER * len(number) for other in written):
            written.append(at)
            low, high = point.drawn_interval or (point.value, point.value)
            plot.annotate(
                number, (point.x, low if below else high), (0, -4 if below else 3), textcoords="offset points",
                ha="center", va="top" if below else "bottom", fontsize=SMALL, color=drawing.BAD if below else INK,
                fontweight="bold" if below else "normal",
            )  # fmt: skip


def _name_axes(sheet: Sheet, axes: LineAxes, below: float, signs: _Signs) -> None:
    from matplotlib.lines import Line2D

    legend = legend_height([name for name, _ in signs], sheet.width)
    sheet.text(sheet.width / 2, legend + 0.06, axes.x, ha="center")
    sheet.text(0.09, (sheet.height + below) / 2, axes.y, rotation=90, ha="center", va="center")
    sheet.legend([(Line2D([], [], **style), name) for name, style in signs])


def _signs(axes: LineAxes, curves: Sequence[Curve]) -> list[tuple[str, dict[str, Any]]]:
    """Meaning and style of each sign that occurs besides curves."""
    points = [point for curve in curves for point in curve.points]
    provisional = {bound.provisional for curve in curves for bound in curve.bounds}
    has_ideal = axes.ideal != "" and (axes.ideal != "first" or any(one.x == 1 for one in points))
    signs = {
        axes.interval: (any(one.drawn_interval for one in points), {"color": SERIES[0], "linewidth": 5, "alpha": 0.5}),
        "bound": (False in provisional, _BOUND),
        "provisional bound": (True in provisional, _PROVISIONAL),
        "misses its bound": (any(one.is_failed for one in points), _MISSED),
        axes.ideal_name: (has_ideal, _IDEAL),
    }
    return [(name, style) for name, (is_drawn, style) in signs.items() if is_drawn and name]


def _in_words(axes: LineAxes, curves: Sequence[Curve]) -> str:
    said = []
    for curve in curves:
        few = curve.points if len(curve.points) <= _MOST_TICKS else (curve.points[0], curve.points[-1])
        told = [f"{axes.number(one.value)} at {axes.x_name(one.x)}" for one in few]
        told += [f"misses its bound at {axes.x_name(one.x)}" for one in curve.points if one.is_failed]
        said.append(f"{curve.name}, {axes.second if curve.is_second else axes.y}: {', '.join(told)}")
    return "; ".join(said)
