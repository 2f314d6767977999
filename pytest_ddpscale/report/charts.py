"""Charts of anything: curves in panels, bars, and matrices. Each is an image with a text alternative and its table.

matplotlib is imported when something is drawn, without pyplot. Sizes are in inches, fonts in points. Margins are fixed:
matplotlib's layouts cost as much as drawing.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from pytest_ddpscale.report.digits import ABSENT, bare_number, number_text
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Picture, Table, plain
from pytest_ddpscale.util.listing import by_number, shorten
from pytest_ddpscale.util.printable import one_line

INK, PAPER, FAINT, BAD = "#1b1f24", "#ffffff", "#6e7781", "#b3261e"
SERIES = ("#0072b2", "#c4500a", "#00805e", "#a8418a", "#7a6100", "#5b55c9")
SHADES, ON_SHADES = ("#fff3e4", "#d0732f", "#571b00"), (INK, INK, PAPER)  # from typical to slow, and numbers on them
_DASHES: Sequence[Any] = ("-", (0, (4, 2)), (0, (1, 1)), (0, (6, 2, 1, 2)))
_MARKERS, _HATCHES, _NOTHING = "os^Dvp", ("", "//", "\\\\", "xx", "--", ".."), "//"
_WIDE, _NARROW = 9.6, 5.2
_LINE = 0.18  # height of a line of text
_MOST_TICKS, _MOST_COLUMNS = 8, 4
_WIDEST = 2.0  # intervals are drawn up to this factor from the value, with a mark: a wide one would squeeze all curves
MOST_ROWS = 64
Cells: TypeAlias = Mapping[tuple[str, str], float]  # of a matrix, each by a name of its row and one of its column
_MOST_TALL, _MOST_WITH_NUMBERS, _MOST_ACROSS, _LONGEST_NAME = 24, 16, 50, 18
_MOST_OF_A_CURVE, _MOST_LISTED, _MOST_ROWS_SHOWN = 20, 50, 8
_VALUE, _INTERVAL, _GOES_ON, _MISSED = "value", "confidence interval", "interval goes on", "misses its bound"
_UNDATED = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@dataclass(frozen=True)
class About:
    """What a picture is called; plain text.

    Attributes:
        key: unique among the pictures of a page.
        title: above it.
        caption: what it shows and how to read it.
        mark: a warning below the title.
    """

    key: str
    title: str
    caption: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Point:
    """One value.

    Attributes:
        interval: of the value, the one that decides; None without one.
        is_failed: whether the value misses its bound.
        is_apart: of another kind than others of its curve, such as of one node alone; no line joins both kinds.
        note: further words in the table.
    """

    x: float
    value: float
    interval: tuple[float, float] | None = None
    is_failed: bool = False
    is_apart: bool = False
    note: str = ""


@dataclass(frozen=True)
class Curve:
    """Points by ascending x, as are `bounds`."""

    name: str
    points: Sequence[Point]
    bounds: Sequence[Point] = ()


@dataclass(frozen=True)
class LineAxes:
    """Titles and scales of the axes.

    Attributes:
        x_is_log: whether the horizontal axis is logarithmic; its ticks are then at the points.
        scale: of the vertical axis: of each panel from 0, or of all logarithmic, or as near as the values are.
        x_name: writes a value of the horizontal axis.
        tick: format of the ticks of the vertical axis.
        number: writes a value without its unit.
        ideal: the value that would be ideal at any x.
    """

    x: str
    y: str
    x_is_log: bool = False
    scale: Literal["from zero", "log", "near"] = "from zero"
    x_name: Callable[[float], str] = "{:g}".format
    tick: str = "{x:g}"
    number: Callable[[float], str] = "{:.4g}".format
    ideal: Callable[[float], float] | None = None


def curves(
    about: About, axes: LineAxes, of_panels: Mapping[str, Sequence[Curve]], own: Mapping[str, LineAxes] | None = None
) -> Picture | None:  # fmt: skip
    """A panel of curves for each name, with the same horizontal axis.

    None if there are no two places on it, which a sentence or a table says better. Without a name, or with vertical
    axes of its `own`, a panel has several curves, each in the colour of its place.
    """
    own = own or {}
    named_curves = [(name, curve) for name, drawn in of_panels.items() for curve in drawn if curve.points]
    xs = sorted({point.x for _, curve in named_curves for point in (*curve.points, *curve.bounds)})
    if len(xs) < 2:
        return None
    columns = min(len(of_panels), 2 if own else _MOST_COLUMNS)
    ticks = xs[:: -len(xs) // _MOST_TICKS]  # the largest has one
    rows, width = -(-len(of_panels) // columns), _NARROW if columns == 1 else _WIDE

    def paint(canvas: Any) -> None:
        grid = [*canvas.subplots(rows, columns, sharey=not own and axes.scale != "from zero", squeeze=False).flat]
        for at, (plot, (name, drawn)) in enumerate(zip(grid, of_panels.items(), strict=False)):
            panel = own.get(name, axes)
            plot.set_ylabel(panel.y if own else "")
            plot.set_title(drawable(name, 24), fontweight="bold")
            if panel.scale == "log":
                plot.set_yscale("log", base=2)
            else:
                plot.locator_params(axis="y", nbins=4)
            plot.yaxis.set_major_formatter(panel.tick)
            plot.margins(y=0.15)
            plot.grid(axis="y")
            if panel.x_is_log:
                plot.set_xscale("log", base=2)
                plot.set_xticks(ticks, [*map(panel.x_name, ticks)])
                plot.minorticks_off()
                plot.set_xlim(xs[0] / 1.6, xs[-1] * 1.6)
            for order, curve in enumerate(drawn):
                if curve.points:
                    _draw_curve(plot, panel, curve, order, _VALUE if name and not own else curve.name)
            if panel.ideal:
                plot.plot(
                    xs, [*map(panel.ideal, xs)], color=INK, linestyle="--", linewidth=0.9, label="ideal", zorder=1
                )
            if panel.scale == "from zero":
                plot.set_ylim(0, 1.15 * plot.dataLim.y1 or 1.0)
            plot.tick_params(labelbottom=at + columns >= len(of_panels))
        for plot in grid[len(of_panels) :]:
            plot.remove()
        canvas.supylabel("" if own else axes.y, x=0.005)

    cells = [
        line for name, curve in named_curves
        for line in _lines(f"{name}: {curve.name}" if own else name or curve.name, curve, own.get(name, axes))
    ]  # fmt: skip
    titles = ("", axes.x, axes.y, _INTERVAL, "bound", "note")
    size = width, rows * (2.3 if columns < 3 else 1.7)
    return _drawn(about, size, (0.7, 0.3, 0.2), axes.x, paint, Table(titles, cells, names=1))


def _draw_curve(plot: Any, axes: LineAxes, curve: Curve, order: int, name: str) -> None:
    """Colour, dashes and marker by `order`, so that curves differ without colour."""
    colour = SERIES[order % len(SERIES)]
    look = {
        "color": colour, "linestyle": _DASHES[order % len(_DASHES)], "label": drawable(name), "zorder": 3,
        "marker": _MARKERS[order % len(_MARKERS)] if axes.x_is_log else "",
    }  # fmt: skip
    for _, part in itertools.groupby(curve.points, key=lambda point: point.is_apart):
        plot.plot(*zip(*((point.x, point.value) for point in part), strict=True), **look)
    for bound in curve.bounds:
        plot.hlines(bound.value, bound.x / 1.2, bound.x * 1.2, colors=INK, linewidths=2, label="bound")
    for point in curve.points:
        low, high = point.interval or (math.nan, math.nan)
        if low < high:
            least, most = sorted((point.value / _WIDEST, point.value * _WIDEST))
            plot.vlines(point.x, max(low, least), min(high, most), colors=colour, linewidths=1, label=_INTERVAL)
            for marker, end, goes_on in (("v", least, low < least), ("^", most, high > most)):
                if goes_on:
                    plot.plot(point.x, end, marker, color=colour, markersize=5, label=_GOES_ON)
        if point.is_failed:
            plot.plot(point.x, point.value, "X", color=BAD, markersize=8, markeredgecolor=PAPER, zorder=4,
                      label=_MISSED)  # fmt: skip


def _lines(name: str, curve: Curve, axes: LineAxes) -> Iterator[tuple[str, ...]]:
    """Rows of the table; of a long curve some."""
    bounds = {point.x: axes.number(point.value) for point in curve.bounds}
    for point in curve.points[:: -(-len(curve.points) // _MOST_OF_A_CURVE)]:
        limits = ABSENT if point.interval is None else " … ".join(map(axes.number, point.interval))
        missed = f"{_MISSED} " * point.is_failed
        yield (
            name,
            axes.x_name(point.x),
            axes.number(point.value),
            limits,
            bounds.get(point.x, ABSENT),
            missed + point.note,
        )


@dataclass(frozen=True)
class BarRow:
    """One bar, of parts side by side.

    Attributes:
        parts: the series of each, and its length.
        text: beside it; empty for its length.
        interval: of its end; None without one.
    """

    name: str
    parts: Sequence[tuple[str, float]]
    text: str = ""
    interval: tuple[float, float] | None = None


def bars(
    about: About, x: str, rows: Sequence[BarRow], *, are_shares: bool = False, base: float = 0.0
) -> Picture | None:  # fmt: skip
    """Horizontal bars from above; None if none has a length.

    Args:
        about: how it is called.
        x: title of the axis.
        rows: from above.
        are_shares: whether lengths are parts of a whole, shown as per cent.
        base: where bars begin; those of a negative length extend to the left.
    """
    ends = [base + sum(length for _, length in row.parts) for row in rows]
    if not any(length for row in rows for _, length in row.parts):
        return None
    for end, row in zip(tuple(ends), rows, strict=True):
        ends += [min(max(one, end / _WIDEST), end * _WIDEST) for one in row.interval or ()]
    number = percent if are_shares else "{:.4g}".format
    series = [*dict.fromkeys(part for row in rows for part, _ in row.parts)]

    def paint(canvas: Any) -> None:
        plot = canvas.subplots()
        for at, row in enumerate(rows):
            start = base
            for part, length in row.parts:
                look = {"color": SERIES[series.index(part)], "hatch": _HATCHES[series.index(part)]}
                plot.barh(at, length, 0.8, start, edgecolor=PAPER, label=drawable(part), **look)
                start += length
            if row.interval:
                plot.hlines(at, *row.interval, colors=INK, linewidths=1, label=_INTERVAL)
            plot.text(1.01, at, drawable(row.text or number(start)), transform=plot.get_yaxis_transform(), va="center")
        plot.set(xlim=(min(base, *ends), max(base, *ends)), ylim=(len(rows) - 0.4, -0.6))
        plot.xaxis.set_major_formatter(lambda value, _: number(value))
        plot.set_yticks(range(len(rows)), [drawable(row.name, 36) for row in rows])

    cells = [(row.name, part, number(base + length), row.text) for row in rows for part, length in row.parts]
    shown = Table(("", "", x, "note"), cells, names=2)
    return _drawn(about, (_WIDE, 0.21 * len(rows)), (2.4, 2.2, 0.0), x, paint, shown)


def matrix(
    about: About, titles: Sequence[str], values: Cells, unit: str,
    outlined: Collection[tuple[str | None, str | None]], weights: tuple[float, float, float], scale: Sequence[str],
    *, are_pairs: bool = False,
) -> Picture | None:  # fmt: skip
    """A matrix of the worst `MOST_ROWS` rows, with the worst values in its table; None without values.

    Args:
        about: how it is called.
        titles: of both names and of the values.
        values: in it.
        unit: of the values.
        outlined: names of a row and a column; None stands for all.
        weights: what times a value tells how bad it is, and from which of these on cells are darker.
        scale: what the shades mean.
        are_pairs: whether a value is of both orders of its names.
    """
    weight, *limits = weights
    worst = sorted(values.items(), key=lambda cell: -weight * cell[1])
    if not worst:
        return None
    shown, outlined = dict(worst), {*outlined}
    if are_pairs:
        shown = {ends: value for pair, value in worst for ends in (pair, pair[::-1])}
        outlined |= {(other, one) for one, other in outlined}
    marked = {ends for ends in shown if {ends, (ends[0], None), (None, ends[1])} & outlined}
    ends = itertools.chain(*shown) if are_pairs else (one for one, _ in shown)
    down = sorted([*dict.fromkeys(ends)][:MOST_ROWS], key=by_number)
    across = down if are_pairs else sorted({other for _, other in shown}, key=by_number)
    cells = np.array([[shown.get((one, other), math.nan) for other in across] for one in down])
    absent, shades = np.isnan(cells), np.searchsorted(limits, weight * cells, side="right")
    numbers = [(re.findall(r"\d+", name) or [name])[-1] for name in across]  # shown, if all have another
    (tall, wide), short = cells.shape, numbers if len({*numbers}) == len(across) else across
    named = [*map(drawable, short)] if max(map(len, short)) * wide <= _MOST_ACROSS else []
    cell = 0.27 if tall <= _MOST_TALL else 0.11

    def paint(canvas: Any) -> None:
        from matplotlib.colors import ListedColormap
        from matplotlib.patches import Rectangle

        plot = canvas.subplots()
        plot.imshow(np.ma.masked_array(shades, absent), ListedColormap(SHADES), vmin=0, vmax=len(SHADES) - 1,
                    aspect="auto", interpolation="none")  # fmt: skip
        plot.patch.set(hatch=_NOTHING, edgecolor=FAINT)
        plot.hlines(np.arange(tall + 1) - 0.5, -0.5, wide - 0.5, colors=PAPER, linewidths=0.6)
        plot.vlines(np.arange(wide + 1) - 0.5, -0.5, tall - 0.5, colors=PAPER, linewidths=0.6)
        plot.set_yticks(range(tall), [drawable(name, _LONGEST_NAME) for name in down], fontsize=6)
        plot.set_xticks(range(len(named)), named)
        plot.tick_params(length=0, labeltop=True, labelbottom=False)
        plot.spines[:].set_visible(False)
        for (row, column), value in np.ndenumerate(cells):
            is_marked = (down[row], across[column]) in marked
            for colour, width in ((INK, 4.0), (PAPER, 1.2)) if is_marked else ():  # visible on every shade
                box = Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=colour, linewidth=width)
                plot.add_patch(box)
            if tall <= _MOST_WITH_NUMBERS >= wide and not absent[row, column]:
                text, ink = bare_number(value, unit), ON_SHADES[shades[row, column]]
                plot.text(column, row, text, ha="center", va="center", color=ink, fontsize=6)
        for shade, name in zip(SHADES, scale, strict=True):
            plot.fill([], [], facecolor=shade, edgecolor=INK, label=name)
        if absent.any():
            plot.fill([], [], facecolor=PAPER, edgecolor=FAINT, hatch=_NOTHING, label="not measured")

    rows = [
        (*ends, number_text(value, unit), "outlined" if ends in marked else "") for ends, value in worst[:_MOST_LISTED]
    ]  # fmt: skip
    return _drawn(about, (_NARROW, tall * cell), (1.35, 0.1, _LINE), "", paint, Table((*titles, "note"), rows))


def _drawn(
    about: About, size: tuple[float, float], margins: tuple[float, float, float], x: str,
    paint: Callable[[Any], None], rows: Table,
) -> Picture:  # fmt: skip
    """Draw and name a picture; without an image if matplotlib is broken, as numbers are worth more than pictures.

    Args:
        about: how it is called.
        size: width of the picture, and height of its axes.
        margins: left and right of the axes, and above them.
        x: title of the horizontal axis.
        paint: draws on a canvas.
        rows: its numbers.
    """
    svg, lost = io.BytesIO(), ""
    try:
        from matplotlib.figure import Figure as Canvas

        with _style():
            canvas = Canvas()
            paint(canvas)
            explained = (zip(*plot.get_legend_handles_labels(), strict=True) for plot in canvas.axes)
            keys = {name: handle for of_plot in explained for handle, name in of_plot}
            (width, height), (left, right, above) = size, margins
            # The width of a character is that of the font, roughly.
            columns = max(1, int(width / (0.6 + 0.075 * max(map(len, keys), default=1))))
            legend = 0.1 + _LINE * -(-len(keys) // columns)
            below, above = legend + 2 * _LINE * (x != ""), above + 0.3 + _LINE * (about.mark != "")
            whole = height + below + above
            canvas.set_size_inches(width, whole)
            canvas.subplots_adjust(left / width, below / whole, 1 - right / width, 1 - above / whole, 0.25, 0.25)
            canvas.supxlabel(x, y=legend / whole, va="bottom")
            title, colour = f"{drawable(about.title, 100)}\n{about.mark}".rstrip(), BAD if about.mark else INK
            canvas.suptitle(title, x=0.01, y=1 - 0.06 / whole, ha="left", fontsize=10, fontweight="bold", color=colour)
            canvas.legend(keys.values(), keys.keys(), loc="lower left", ncols=columns, borderaxespad=0.1)
            canvas.savefig(svg, format="svg", metadata=_UNDATED)
    except Exception as error:
        lost = f"{type(error).__name__}: {error}"

    def png() -> bytes:
        if lost:
            raise OSError(lost)
        written = io.BytesIO()
        with _style():
            # Compression at level 6 takes a third longer for 7 % less.
            canvas.savefig(written, format="png", dpi=110, pil_kwargs={"compress_level": 3})
        return written.getvalue()

    first = sorted(rows.rows, key=lambda row: not plain(row[-1]).startswith(_MISSED))[:_MOST_ROWS_SHOWN]
    few = [", ".join(cell for cell in map(plain, row) if cell.strip(ABSENT)) for row in first]
    alt = f"{about.title}: {'; '.join(few)}"
    drawn, caption = (b"", f"could not be drawn: {lost}") if lost else (svg.getvalue(), about.caption)
    return Picture(about.key, about.title, caption, alt, drawn, png, rows, size[0] == _WIDE)


@contextmanager
def _style() -> Iterator[None]:
    """Matplotlib's default style, so that a user's matplotlibrc (LaTeX, another font) does not change reports.

    `matplotlib.rcdefaults` would read all style files first.
    """
    import matplotlib

    own: Any = {name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith("backend")}
    own |= {
        "font.sans-serif": ["DejaVu Sans"], "font.size": 7.0, "text.parse_math": False, "text.hinting": "none",
        "svg.fonttype": "none", "svg.hashsalt": "", "axes.spines.top": False, "axes.spines.right": False,
        "axes.titlelocation": "left", "grid.alpha": 0.2, "lines.markersize": 4, "legend.frameon": False,
        # Without a position, matplotlib lays out all labels to see whether the title overlaps them.
        "axes.titley": 1.0,
    }  # fmt: skip
    with warnings.catch_warnings(), matplotlib.rc_context(own):
        warnings.simplefilter("ignore")  # of characters that the font lacks: browsers have them
        yield


def drawable(name: str, longest: int = 44) -> str:
    """A name in one line and not longer than `longest`."""
    shown = shorten(one_line(name), longest)
    return f" {shown}" if shown.startswith("_") else shown  # matplotlib leaves such labels out of legends
