"""Parts of SVG charts: scales, ticks, frames, text. Colours are variables of the page and follow its theme.

Charts scale with their `viewBox`. Text stays text and is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from pytest_ddpscale.report.text import one_line, shorten

# Okabe and Ito's palette, as in the PNGs; black is replaced by the text colour, which is light on a dark page.
_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
SERIES_COLOURS = (*(f"var(--series-{i}, {colour})" for i, colour in enumerate(_PALETTE, 1)), "currentColor")
BAD = "var(--bad, #d55e00)"
LONGEST_LABEL = 44
FONT_SIZE = 13


@dataclass(frozen=True)
class AxisScale:
    """Maps values to positions on an axis, in units of the `viewBox`; values beyond an end are drawn at that end."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Position of a value."""
        low, high, inside = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_log:
            low, high, inside = math.log2(low), math.log2(high), math.log2(inside)
        return self.start + (inside - low) / (high - low) * (self.end - self.start)


def number(value: float) -> str:
    """A coordinate: one digit is a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two values, at most `most` + 1 of them."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def label(x: float, y: float, content: str, anchor: str = "start", extra: str = "") -> str:
    """A line of text, of at most `LONGEST_LABEL` characters."""
    shown = escape(shorten(one_line(content), LONGEST_LABEL))
    return f'<text x="{number(x)}" y="{number(y)}" text-anchor="{anchor}"{extra}>{shown}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """A straight line."""
    return f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" {style}/>'


def rectangle(x: float, y: float, width: float, height: float, fill: str, extra: str = "") -> str:
    """A filled rectangle."""
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" '
        f'fill="{fill}"{extra}/>'
    )


def frame(
    x: AxisScale, y: AxisScale, x_ticks: Sequence[float], y_ticks: Sequence[float], titles: tuple[str, str],
    name: Callable[[float], str] = "{:g}".format,
) -> str:  # fmt: skip
    """Grid, ticks and titles of both axes; `name` formats the ticks of the horizontal axis."""
    grid, axis = 'stroke="currentColor" stroke-opacity="0.14"', 'stroke="currentColor" stroke-opacity="0.6"'
    parts = []
    for tick in y_ticks:
        parts += [line(x.start, y.at(tick), x.end, y.at(tick), grid)]
        parts += [label(x.start - 6, y.at(tick) + 4, f"{tick:g}", "end")]
    for tick in x_ticks:
        parts += [line(x.at(tick), y.start, x.at(tick), y.start + 4, axis)]
        parts += [label(x.at(tick), y.start + 18, name(tick), "middle")]
    parts.append(line(x.start, y.start, x.end, y.start, axis))
    parts.append(label((x.start + x.end) / 2, y.start + 36, titles[0], "middle"))
    parts.append(label(2, y.end - 12, titles[1]))
    return "".join(parts)


def marker(shape: int, x: float, y: float, colour: str) -> str:
    """One of six marker shapes, distinct without colour."""
    r, style = 4.5, f'fill="{colour}"'
    if shape % 6 == 0:
        return f'<circle cx="{number(x)}" cy="{number(y)}" r="{r}" {style}/>'
    paths = (
        "m-4-4h8v8h-8z", "m0-5.5 5 9h-10z", "m0-6 5.5 6-5.5 6-5.5-6z", "m0 5.5 5-9h-10z",
        "m-2-6h4v12h-4zm-4 4h12v4h-12z",
    )  # fmt: skip
    relative = paths[shape % 6 - 1]
    return f'<path d="M{number(x)} {number(y)}{relative}" {style}/>'


def cross(x: float, y: float) -> str:
    """A cross over a value that misses its bound."""
    return (
        f'<path class="failed" d="M{number(x - 7)} {number(y - 7)}l14 14m0-14l-14 14" fill="none" '
        'stroke="currentColor" stroke-width="2.2"/>'
    )


def svg(key: str, title: str, description: str, width: float, height: float, body: str) -> str:
    """A whole picture, with its text alternative.

    Args:
        key: unique in the page; ids of the picture's parts begin with it.
    """
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {number(width)} {number(height)}" role="img" '
        f'aria-labelledby="{key}-title {key}-desc" class="chart" font-family="inherit" font-size="{FONT_SIZE}" '
        f'fill="currentColor" style="max-width:{number(1.5 * width)}px;width:100%;height:auto">'
        f'<title id="{key}-title">{escape(one_line(title))}</title>'
        f'<desc id="{key}-desc">{escape(one_line(description))}</desc>{body}</svg>'
    )
