"""Horizontal bars, each with its name on the left and its value on the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.report.figures.drawing import INK, SERIES, SMALL, WIDE, Drawing, Sheet, drawable, legend_height

OPACITIES = (0.9, 0.55, 0.3, 0.7)  # of series, to distinguish them without colour
_NAMES, _VALUES = 2.6, 2.3  # widths of both texts of a row, in inches
_ROW, _GAP = 0.21, 0.03
_HIGHEST = 2.0  # longer intervals are cut, because they would flatten all bars


@dataclass(frozen=True)
class BarRow:
    """One row: name, bar and value.

    Attributes:
        segments: from, to (shares of the width), colour, opacity.
        is_flagged: whether to emphasize the row as bad.
        interval: of the value, as shares of the width; None without one.
    """

    name: str
    value: str
    segments: Sequence[tuple[float, float, str, float]]
    is_flagged: bool = False
    interval: tuple[float, float] | None = None


class Bars(NamedTuple):
    """One series: a value for each cell, or None."""

    name: str
    values: Sequence[Found | float | None]


def bars(
    rows: Sequence[BarRow], keys: Sequence[tuple[str, str, float]], mark: float | None = None,
    above: str = "", said: str = "",
) -> Drawing | None:  # fmt: skip
    """All rows; None without any.

    Args:
        rows: from above.
        keys: name, colour and opacity of each legend entry.
        mark: position of a line across all bars, as a share of the width.
        above: line of text above the bars; empty without one.
        said: the picture in words; by default names and values.
    """
    if not rows:
        return None
    height = _ROW * (len(rows) + (above != "")) + legend_height([name for name, _, _ in keys], WIDE) + 0.1

    def paint(sheet: Sheet) -> None:
        from matplotlib.patches import Rectangle

        axes, top, width = sheet.plain(), height, WIDE - _NAMES - _VALUES
        if above:
            top -= _ROW
            sheet.text(_NAMES, top + 0.05, above)
        for row in rows:
            top -= _ROW
            weight = "bold" if row.is_flagged else "normal"
            sheet.text(_NAMES - 0.1, top + 0.05, drawable(row.name), ha="right", fontsize=SMALL, fontweight=weight)
            sheet.text(WIDE - _VALUES + 0.1, top + 0.05, drawable(row.value), fontsize=SMALL, fontweight=weight)
            for start, end, colour, opacity in row.segments:
                corner, size = (_NAMES + start * width, top + _GAP), ((end - start) * width, _ROW - 2 * _GAP)
                axes.add_patch(Rectangle(corner, *size, facecolor=colour, alpha=opacity, linewidth=0))
            if row.interval:
                low, high = (_NAMES + end * width for end in row.interval)
                axes.hlines(top + _ROW / 2, low, high, colors=INK, linewidth=1.2)
        if mark is not None:
            axes.vlines(_NAMES + mark * width, top, top + _ROW * len(rows), colors=INK, linewidth=1.0, linestyles="--")
        signs = [(Rectangle((0, 0), 1, 1, facecolor=colour, alpha=opacity), name) for name, colour, opacity in keys]
        sheet.legend(signs)

    return Drawing(said or "; ".join(f"{row.name}: {row.value}" for row in rows), WIDE, height, paint)


def grouped_bars(axes: tuple[str, str], cells: Sequence[str], series: Sequence[Bars]) -> Drawing | None:
    """A bar of each series for each named cell, from above; None if no value is above 0.

    `axes` are the titles of the cells and of the values, with their unit.
    """
    highest = max((_value(one) for each in series for one in each.values), default=0.0)
    if highest <= 0:
        return None
    longest = max(min(_ends(one)[1], _HIGHEST * highest) for each in series for one in each.values)
    rows = []
    for at, cell in enumerate(cells):
        for place, each in enumerate(series):
            one = each.values[at]
            if one is not None:
                segment = (0.0, _value(one) / longest, SERIES[place], OPACITIES[place])
                low, high = (min(end / longest, 1.0) for end in _ends(one))
                rows.append(BarRow(cell, f"{_value(one):.4g}", [segment], interval=(low, high) if low < high else None))
    said = []
    for each in series:
        told = [f"{cell} {_value(one):.4g}" for cell, one in zip(cells, each.values, strict=True) if one is not None]
        said.append(f"{each.name}: {', '.join(told)}")
    keys = [(each.name, SERIES[place], OPACITIES[place]) for place, each in enumerate(series)]
    return bars(rows, keys, above=f"{axes[1]}, by {axes[0]}", said="; ".join(said))


def _value(one: Found | float | None) -> float:
    value = one.value if isinstance(one, Found) else one
    return 0.0 if value is None else max(0.0, value)


def _ends(one: Found | float | None) -> tuple[float, float]:
    if isinstance(one, Found) and one.interval is not None:
        low, high = one.interval
        return max(0.0, low), max(0.0, high)
    return _value(one), _value(one)
