"""PNG plots of scaling. Import this only to draw: it imports matplotlib, without pyplot and its global state."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.image import imsave
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter, NullLocator

from pytest_ddpscale.plan.study import Scaling
from pytest_ddpscale.report.scaling_curves import (
    EFFICIENCY,
    OVERVIEW,
    PLOTS,
    SPEEDUP,
    LegendKind,
    Quantity,
    ScalingCurve,
    chart_legend,
    charted_curves,
)
from pytest_ddpscale.report.text import one_line, shorten
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.run_json import WATERMARK
from pytest_ddpscale.run.verdicts import Judgement

# Okabe and Ito's palette, without its yellow, which is too light for lines on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_GREY = "#777777"
_FONT = "DejaVu Sans"  # comes with matplotlib
_DPI = 144
_WIDTH = 9.2  # of a figure with one panel, in inches
_LEFT, _BOTTOM, _TOP, _LEGEND_GAP = 0.8, 0.6, 0.6, 0.2  # margins, in inches
_MOST_TICKS = 12
_LONGEST_LABEL = 34
_CROSS: dict[str, Any] = {
    "color": "black", "marker": "x", "markersize": 11, "markeredgewidth": 2.0, "linestyle": "none",
}  # fmt: skip

_Key = tuple[Line2D, str]
_Pixels: TypeAlias = npt.NDArray[np.uint8]


def write_plots(evidence: Evidence, judgement: Judgement, directory: Path) -> list[Path]:
    """Draw the judged values with bounds and failures: one PNG per scaling mode and quantity, and an overview.

    Returns:
        The files written, ``weak-throughput.png`` first. Empty, without a directory, if there is nothing to draw.
    """
    with matplotlib.rc_context(_style()):
        return _write_plots(evidence, judgement, directory)


def _style() -> Any:  # its keys are literals to matplotlib's types, and only in newer ones
    """Matplotlib's default style, so that a user's matplotlibrc (LaTeX, another font) does not change reports.

    `matplotlib.rcdefaults` would read all style files first. One font without fallbacks is enough because labels
    contain only characters that it can draw.
    """
    own = {name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith("backend")}
    return own | {"font.family": _FONT}


def _write_plots(evidence: Evidence, judgement: Judgement, directory: Path) -> list[Path]:
    device, written = "GPU" if evidence.plan.device_type == "cuda" else "rank", []

    def save(pixels: _Pixels, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{name}.png"
        # Compression at level 6 takes a third longer for 7 % less.
        imsave(path, pixels, format="png", dpi=_DPI, pil_kwargs={"compress_level": 3})
        written.append(path)

    drawn = {
        panel: _pixels(_draw(*panel, curves, judgement, device))
        for panel in dict.fromkeys((*PLOTS, *OVERVIEW))
        if (curves := charted_curves(*panel, evidence, judgement.verdicts))
    }
    for scaling, quantity in PLOTS:
        if (scaling, quantity) in drawn:
            save(drawn[scaling, quantity], f"{scaling}-{quantity.file}")
    panels = [drawn[panel] for panel in OVERVIEW if panel in drawn]
    if panels:
        save(_two_by_two(panels), "overview")
    return written


def _pixels(figure: Figure) -> _Pixels:
    """A drawn figure as RGBA, (height, width, 4)."""
    canvas: Any = figure.canvas
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def _two_by_two(panels: Sequence[_Pixels]) -> _Pixels:
    """Pictures of equal width in two columns on white, at their own size."""
    height, width = max(len(panel) for panel in panels), panels[0].shape[1]
    whole = np.full(((len(panels) + 1) // 2 * height, min(len(panels), 2) * width, 4), 255, np.uint8)
    for i, panel in enumerate(panels):
        top, left = i // 2 * height, i % 2 * width
        whole[top : top + len(panel), left : left + width] = panel
    return whole


def _draw(
    scaling: Scaling, quantity: Quantity, curves: Sequence[ScalingCurve], judgement: Judgement, device: str
) -> Figure:
    # Each legend entry takes about a fifth of an inch; one is the reference.
    entries = len(curves) + 1 + len(chart_legend(curves, device))
    figure = Figure(figsize=(_WIDTH, max(4.6, 0.4 + 0.22 * entries)), dpi=_DPI)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    keys = _draw_axes(axes, quantity, curves, device)
    title = f"{scaling.capitalize()} scaling: {quantity.title.format(device=device)}"
    # Without `y`, matplotlib lays out all labels to see whether the title overlaps them.
    axes.set_title(f"{title}\n{_label(judgement.sku)}", loc="left", y=1.0, parse_math=False)
    legend = _draw_legend(figure, keys)
    _set_margins(figure, legend.get_window_extent(canvas.get_renderer()).width / _DPI)
    if judgement.simulated:
        _draw_watermark(figure)
    return figure


def _draw_axes(axes: Axes, quantity: Quantity, curves: Sequence[ScalingCurve], device: str) -> list[_Key]:
    """Draw everything except title and legend; return the legend's entries."""
    for curve in curves:
        _draw_points(axes, curve)
        _draw_bounds(axes, curve)
    _set_world_sizes(axes, set().union(*(curve.world_sizes for curve in curves)), device)
    _set_values(axes, quantity, [value for curve in curves for value in curve.extent])
    reference = _draw_reference(axes, quantity, curves, device)
    axes.set_ylabel(quantity.axis_of(curves, device))
    axes.grid(visible=True, color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return [*_curve_keys(curves), *reference, *_other_keys(curves, device)]


def _set_margins(figure: Figure, legend_width: float) -> None:
    """Leave room for labels, title and legend (inches); a layout engine would draw everything twice to find it."""
    width, height = figure.get_size_inches()
    right = legend_width + _LEGEND_GAP
    figure.subplots_adjust(_LEFT / width, _BOTTOM / height, 1 - right / width, 1 - _TOP / height)


def _draw_watermark(figure: Figure) -> None:
    """Write the watermark across the whole figure, so that no part can be cut out without it."""
    figure.text(
        0.5, 0.5, WATERMARK, rotation=22, ha="center", va="center", fontsize=26, fontweight="bold",
        color="#b00000", alpha=0.28, zorder=10, parse_math=False,
    )  # fmt: skip


def _style_of(curve: ScalingCurve) -> dict[str, Any]:
    colour, marker = _COLOURS[curve.number % len(_COLOURS)], _MARKERS[curve.number % len(_MARKERS)]
    return {"color": colour, "marker": marker, "markersize": 5.5, "linewidth": 1.5}


def _draw_points(axes: Axes, curve: ScalingCurve) -> None:
    """Draw values with their intervals, and a cross on each value that misses its bound."""
    x, y = [point.world_size * curve.dodge for point in curve.points], list(curve.values.values())
    style = _style_of(curve)
    axes.plot(x, y, zorder=3, **style)
    bars = [(at, point, point.drawn_interval) for at, point in zip(x, curve.points, strict=True)]
    ends = [(at, point.value, point.value - bar[0], bar[1] - point.value) for at, point, bar in bars if bar]
    if ends:
        at, values, below, above = zip(*ends, strict=True)
        axes.errorbar(
            at, values, yerr=[below, above], color=style["color"], linestyle="none", capsize=3, linewidth=1.2, zorder=3
        )
    for left, point in zip(x, curve.points, strict=True):
        if point.is_failed:
            axes.plot([left], [point.value], zorder=4, **_CROSS)


def _draw_bounds(axes: Axes, curve: ScalingCurve) -> None:
    """Draw each bound as a short line at its world size."""
    for bound in curve.bounds:
        x, style = bound.world_size * curve.dodge, _bound_style(provisional=bound.provisional)
        axes.plot(
            [x / 1.12, x * 1.12], [bound.value] * 2, color=_style_of(curve)["color"], linewidth=2.2, linestyle=style,
            zorder=2,
        )  # fmt: skip


def _bound_style(*, provisional: bool) -> Any:
    return (0, (1, 1)) if provisional else "solid"


def _draw_reference(axes: Axes, quantity: Quantity, curves: Sequence[ScalingCurve], device: str) -> list[_Key]:
    """Draw a line for perfect scaling; return its legend entry."""
    style: dict[str, Any] = {"color": _GREY, "linestyle": (0, (5, 3)), "linewidth": 1.1}
    left, right = axes.get_xlim()
    if quantity is EFFICIENCY:
        axes.axhline(100, zorder=1, **style)
        return [(Line2D([], [], **style), "ideal")]
    if quantity is SPEEDUP:
        bottom = max(left, axes.get_ylim()[0])
        axes.plot([bottom, right], [bottom, right], zorder=1, scaley=False, scalex=False, **style)
        return [(Line2D([], [], **style), f"ideal: one per {device}")]
    references = [curve for curve in curves if 1 in curve.values and len(curve.points) > 1]
    for curve in references:
        axes.axhline(curve.values[1], zorder=1, **(style | {"color": _style_of(curve)["color"]}))
    return [(Line2D([], [], **style), f"ideal: as one {device}")] if references else []


def _set_world_sizes(axes: Axes, world_sizes: set[int], device: str) -> None:
    ticks = sorted(world_sizes)
    if len(ticks) > _MOST_TICKS:
        ticks = [tick for tick in ticks if tick & (tick - 1) == 0][-_MOST_TICKS:]
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(world_sizes) / 1.35, max(world_sizes) * 1.35)
    _set_ticks(axes.xaxis, ticks)
    axes.set_xlabel(f"world size ({'GPUs' if device == 'GPU' else 'CPU ranks'})")


def _set_values(axes: Axes, quantity: Quantity, values: Sequence[float]) -> None:
    low, high = min(values), max(values)
    if quantity is SPEEDUP:
        first, last = math.floor(math.log2(min(low, 1.0))), math.ceil(math.log2(max(high, 2.0)) + 0.01)
        axes.set_yscale("log", base=2)
        axes.set_ylim(2.0**first / 1.1, 2.0**last * 1.1)
        _set_ticks(axes.yaxis, [2.0**exponent for exponent in range(first, last + 1)])
    elif quantity is EFFICIENCY:
        # Differences of a few per cent matter near 100 %, so start just below the lowest value, at a multiple of 5.
        axes.set_ylim(max(5 * math.floor((low - 1) / 5), 0), max(high, 100) + 2)
    else:
        axes.set_ylim(0, high * 1.1)


def _set_ticks(axis: Any, ticks: Sequence[float]) -> None:
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def _curve_keys(curves: Sequence[ScalingCurve]) -> list[_Key]:
    return [(Line2D([], [], **_style_of(curve)), _label(curve.workload)) for curve in curves]


def _other_keys(curves: Sequence[ScalingCurve], device: str) -> list[_Key]:
    styles: dict[LegendKind, dict[str, Any]] = {
        "bound": {"color": _GREY, "linewidth": 2.2, "linestyle": _bound_style(provisional=False)},
        "provisional": {"color": _GREY, "linewidth": 2.2, "linestyle": _bound_style(provisional=True)},
        "interval": {"color": _GREY, "linestyle": "none", "marker": "|", "markersize": 11, "markeredgewidth": 1.2},
        "missed": _CROSS,
        "note": {"linestyle": "none"},
    }
    return [(Line2D([], [], **styles[kind]), _label(text)) for kind, text in chart_legend(curves, device)]


def _draw_legend(figure: Figure, keys: Sequence[_Key]) -> Legend:
    handles, labels = zip(*keys, strict=True)
    legend = figure.legend(handles, labels, loc="upper right", borderaxespad=0.4, frameon=False, fontsize=9)
    for label in legend.get_texts():
        label.set_parse_math(False)
    return legend


def _label(name: str) -> str:
    """A name that the font can draw and a legend shows unchanged."""
    drawable = "".join(c if ord(c) in _characters() else "?" for c in shorten(one_line(name), _LONGEST_LABEL))
    # Matplotlib leaves labels that start with an underscore out of a legend.
    return f" {drawable}" if drawable.startswith("_") else drawable


@cache
def _characters() -> Collection[int]:
    """Characters in matplotlib's own font; reading them takes a millisecond."""
    return get_font(findfont(FontProperties())).get_charmap()
