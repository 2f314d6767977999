"""One picture, drawn once by matplotlib: SVG for a page, PNG for a file. matplotlib is imported when drawing begins.

Sizes are in inches and fonts in points. A picture's colours follow the theme of the page it is in.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

from pytest_ddpscale.report.digits import number_text
from pytest_ddpscale.report.text import one_line, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

INK, PAPER = "#1b1f24", "#fffffe"  # of the page: text, and what is behind it
# Okabe and Ito's palette without its yellow, which is too light for lines on white.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", INK)
BAD = "#d55e00"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: Sequence[Any] = ("-", (0, (4, 2)), (0, (1, 1)), (0, (6, 2, 1, 2)))
FONT_SIZE, SMALL = 8.0, 7.0
WIDE, NARROW = 9.6, 5.2  # widths of pictures: of a whole line of the page, and of half a line
LEGEND_ROW = 0.2
_BAND = 0.3  # height of the watermark, and of the title of a PNG
_FONT = "DejaVu Sans"  # comes with matplotlib
_DPI = 110
# Colours of the page that replace ours in its SVG.
_THEME = {
    INK: "currentColor", PAPER: "var(--paper, #fff)", SERIES[0]: f"var(--series-1, {SERIES[0]})",
    BAD: f"var(--bad, {BAD})",
}  # fmt: skip
_UNDATED = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@dataclass(frozen=True)
class Sheet:
    """The area to paint on.

    Attributes:
        canvas: matplotlib's figure, which has a title and a watermark above the area.
        width: of the area, as `height`.
    """

    canvas: Canvas
    width: float
    height: float

    def axes(self, left: float, bottom: float, right: float, top: float) -> Axes:
        """Axes without frame between these edges, each measured from the left or the lower edge of the sheet."""
        total = float(self.canvas.get_size_inches()[1])
        found = self.canvas.add_axes((
            left / self.width, bottom / total, (right - left) / self.width, (top - bottom) / total,
        ))  # fmt: skip
        found.patch.set_visible(False)
        found.spines[["top", "right"]].set_visible(False)
        return found

    def plain(self) -> Axes:
        """Axes over the whole sheet without lines and ticks, whose unit is an inch."""
        found = self.axes(0, 0, self.width, self.height)
        found.set_axis_off()
        found.set(xlim=(0, self.width), ylim=(0, self.height))
        return found

    def text(self, x: float, y: float, content: str, **style: Any) -> None:
        """Text anywhere on the sheet."""
        total = float(self.canvas.get_size_inches()[1])
        self.canvas.text(x / self.width, y / total, content, **style)

    def legend(self, entries: Sequence[tuple[Any, str]]) -> None:
        """The legend at the lower edge; it takes `legend_height`. Each entry is matplotlib's handle and a label."""
        names = [drawable(name) for _, name in entries]
        # Matplotlib leaves labels that start with an underscore out.
        shown = [f" {name}" if name.startswith("_") else name for name in names]
        self.canvas.legend(
            [handle for handle, _ in entries], shown, loc="lower left", bbox_to_anchor=(0.1 / self.width, 0),
            ncol=_legend_columns(names, self.width), frameon=False, borderaxespad=0.1, handlelength=2.2,
            columnspacing=1.4, labelspacing=0.4, fontsize=FONT_SIZE,
        )  # fmt: skip


@dataclass(frozen=True)
class Drawing:
    """What to draw.

    Attributes:
        said: the picture in words, for readers who cannot see it; not escaped.
        width: in inches, as `height`.
        paint: draws it; names from outside have to pass `drawable`.
    """

    said: str
    width: float
    height: float
    paint: Callable[[Sheet], None]


@dataclass(frozen=True)
class Picture:
    """A drawn picture."""

    key: str
    svg: str
    canvas: Canvas

    def png(self) -> bytes:
        """It as a PNG on white, with its title."""
        written = io.BytesIO()
        with _style(self.key):
            # Compression at level 6 takes a third longer for 7 % less.
            self.canvas.savefig(
                written, format="png", dpi=_DPI, facecolor="white", metadata={"Software": None},
                pil_kwargs={"compress_level": 3},
            )  # fmt: skip
        return written.getvalue()


def draw(key: str, title: str, drawing: Drawing, *, about: str = "", watermark: str = "") -> Picture:
    """Draw a picture.

    Args:
        key: unique in the page; ids of the picture's parts begin with it, or with what HTML allows of it.
        title: text alternative of the SVG, and above the PNG.
        drawing: what to draw.
        about: further words above the PNG.
        watermark: in a band above the picture; empty without one.
    """
    from matplotlib.figure import Figure as Canvas

    key, band = re.sub(r"[^A-Za-z0-9-]", "-", key), _BAND if watermark else 0.0
    with _style(key):
        canvas = Canvas(figsize=(drawing.width, drawing.height + band + _BAND))
        sheet = Sheet(canvas, drawing.width, drawing.height)
        drawing.paint(sheet)
        if watermark:
            sheet.text(
                drawing.width / 2, drawing.height + _BAND / 2, watermark, ha="center", va="center", color="white",
                fontsize=10, fontweight="bold", bbox={"facecolor": "#b00000", "edgecolor": "none", "pad": 3},
            )  # fmt: skip
        headline = canvas.text(
            0.1 / drawing.width, 1 - 0.06 / (drawing.height + band + _BAND),
            drawable(f"{title}, {about}" if about else title, 100), va="top", color=INK, fontsize=11, fontweight="bold",
        )  # fmt: skip
        headline.set_visible(False)
        svg = _svg(key, title, drawing, canvas, band)
        headline.set_visible(True)
    return Picture(key, svg, canvas)


def svg_of(key: str, title: str, drawing: Drawing | None) -> str:
    """A picture's SVG; empty without one."""
    return draw(key, title, drawing).svg if drawing else ""


def _svg(key: str, title: str, drawing: Drawing, canvas: Canvas, band: float) -> str:
    """Matplotlib's SVG with our root: without the title's strip, style sheet, ids of groups, and needless digits."""
    written = io.StringIO()
    canvas.savefig(written, format="svg", facecolor="none", metadata=_UNDATED)
    body = written.getvalue()
    body = body[body.index('<g id="figure') :]
    body = re.sub(r'<g id="[^"<>]*">', "<g>", body)
    body = re.sub(r' transform="rotate\(-?0 [^"<>]*"', "", body)
    body = re.sub(r'(?<= d=")[^"<>]*', lambda path: re.sub(r"(\.\d)\d+|\s*\n", r"\1", path[0]), body)
    body = re.sub(r'( [xy]="-?\d+\.\d)\d+(?=")', r"\1", body)
    body = re.sub(r"\n\s*<", "<", body)
    body = re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda colour: _THEME.get(colour[0], colour[0]), body)
    body = body.replace(f"'{_FONT}'", f"'{_FONT}', sans-serif")
    width, height = 72 * drawing.width, 72 * (drawing.height + band)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'viewBox="0 {72 * _BAND:g} {width:g} {height:g}" aria-labelledby="{key}-title {key}-desc" class="chart" '
        f'style="width:100%;max-width:{1.7 * width:.0f}px;height:auto;stroke-linejoin:round">'
        f'<title id="{key}-title">{escape(one_line(title))}</title>'
        f'<desc id="{key}-desc">{escape(one_line(drawing.said))}</desc>{body}'
    )


@contextmanager
def _style(key: str) -> Iterator[None]:
    """Matplotlib's default style, so that a user's matplotlibrc (LaTeX, another font) does not change reports.

    `matplotlib.rcdefaults` would read all style files first. One font without fallbacks is enough because labels
    contain only characters that it can draw.
    """
    import matplotlib

    own: Any = {name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith("backend")}
    own |= {
        "font.family": _FONT, "font.size": FONT_SIZE, "text.parse_math": False, "svg.fonttype": "none",
        "text.hinting": "none",  # a fifth less time for a PNG
        "svg.hashsalt": key, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK,
        "ytick.color": INK, "grid.color": INK, "grid.alpha": 0.14, "axes.linewidth": 0.6, "xtick.major.width": 0.6,
        "ytick.major.width": 0.6, "axes.axisbelow": True,
        # Without a position, matplotlib lays out all labels to see whether the title overlaps them.
        "axes.titley": 1.0, "axes.titlelocation": "left", "axes.titlesize": FONT_SIZE, "axes.titlepad": 4.0,
    }  # fmt: skip
    with matplotlib.rc_context(own):
        yield


def set_ticks(axis: Any, ticks: Sequence[float], names: Sequence[str] = ()) -> None:
    """Ticks at these values only, with their numbers or names."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter([*names] or [f"{tick:g}" for tick in ticks]))
    axis.set_minor_locator(NullLocator())


def thinned(ticks: Sequence[float], most: int) -> list[float]:
    """At most `most` of the ticks, evenly spread, with the last."""
    return list(ticks[::-1][:: -(-len(ticks) // most)])[::-1] if ticks else []


def legend_height(names: Sequence[str], width: float) -> float:
    """Height of a legend of these names below a sheet of a width, in inches."""
    return LEGEND_ROW * -(-len(names) // _legend_columns(names, width))


def _legend_columns(names: Sequence[str], width: float) -> int:
    """All names in one line if it is wide enough, else as many columns of the longest as fit."""
    wide = [0.55 + 0.075 * len(name) for name in names]
    return len(names) if sum(wide) < width else max(1, int(width / max(wide)))


def bare_number(value: float, unit: str) -> str:
    """A value with the digits of all reports, without its unit."""
    return number_text(value, unit).partition(" ")[0].removesuffix("×")


def drawable(name: str, longest: int = 44) -> str:
    """A name that the font can draw, in one line and not longer than `longest`."""
    return "".join(c if ord(c) in _characters() else "?" for c in shorten(one_line(name), longest))


@cache
def _characters() -> Collection[int]:
    """Characters in matplotlib's own font; reading them takes a millisecond."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return get_font(findfont(FontProperties(family=_FONT))).get_charmap()
