"""What is in a drawn figure."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

from pytest_ddpscale.report.figures.drawing import Drawing, Picture, draw
from pytest_ddpscale.report.figures.maps import SHADES
from pytest_ddpscale.report.figures.of_run import Figure

SVG = "{http://www.w3.org/2000/svg}"


def canvas_of(figure: Figure) -> Any:
    """Matplotlib's figure."""
    picture: Any = figure.png
    assert isinstance(picture.__self__, Picture)
    return picture.__self__.canvas


def painted(drawing: Drawing | None) -> Any:
    """Matplotlib's figure of what is to be drawn."""
    assert drawing is not None
    return draw("key", "A title", drawing).canvas


def texts(figure: Figure | str) -> list[str]:
    """All texts in the picture, in the order of drawing."""
    root = ET.fromstring(figure if isinstance(figure, str) else figure.svg)
    return [one.text or "" for one in root.iter(f"{SVG}text")]


def description(figure: Figure | str) -> str:
    """What is said to those who do not see it."""
    root = ET.fromstring(figure if isinstance(figure, str) else figure.svg)
    return root.findtext(f"{SVG}desc") or ""


def points(axes: Any) -> list[tuple[float, float]]:
    """Of the first curve with markers."""
    line = next(one for one in axes.lines if one.get_marker() == "o")
    return [(float(x), float(y)) for x, y in line.get_xydata()]


def crosses(axes: Any) -> list[tuple[float, float]]:
    """Values marked as missing their bound."""
    return [tuple(line.get_xydata()[0]) for line in axes.lines if line.get_marker() == "X"]


def intervals(axes: Any) -> dict[float, tuple[float, float]]:
    """Ends of the drawn intervals, by x."""
    segments = [one for bars in axes.collections for one in bars.get_segments()]
    return {float(x): (float(low), float(high)) for (x, low), (_, high) in segments}


def bounds(axes: Any) -> list[tuple[float, float, bool]]:
    """World size, value, and whether it is dotted, of each bound."""
    lines = [line for line in axes.lines if line.get_linewidth() == 2.0 and len(line.get_xdata()) == 2]
    ends = [(line.get_xdata(), line.get_ydata()[0], line.is_dashed()) for line in lines]
    return [(round((xs[0] * xs[1]) ** 0.5, 6), y, dotted) for xs, y, dotted in ends]


def shaded(figure: Figure | str) -> list[int]:
    """Number of rectangles of each shade of a map, without its legend; neighbours of a row may share one."""
    svg = figure if isinstance(figure, str) else figure.svg
    paths = re.findall(r'<path d="([^"]*)"[^>]*style="fill: (#[0-9a-f]{6})', svg)
    return [sum(d.count("M") for d, fill in paths if fill == shade) - 1 for shade in SHADES]
