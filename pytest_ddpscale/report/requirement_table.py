"""The table of requirements on a terminal, with columns of constant width.

From 80 columns up, it always has value, deciding limit, bound and verdict. If space is short, it drops in this order
the margin, the far end of the interval, and long units that the value has already. A name that then does not fit
stands on a line of its own, so that no two names look alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_ddpscale.report import digits, text
from pytest_ddpscale.report.sentences import interval_mark
from pytest_ddpscale.report.text import Style
from pytest_ddpscale.run.verdicts import Verdict

Line = tuple[str, Style]

_GAP = "  "
_INDENT = 2
_ENOUGH = 25  # width of a name within its metric, for which other columns give way
_HEADER = ("value", "limit", "bound", "margin", "verdict")
_VALUE, _LIMIT, _BOUND, _MARGIN = range(4)


@dataclass(frozen=True)
class _Row:
    name: str
    cells: tuple[str, str, str, str, str]  # as in _HEADER
    verdict: Verdict


class _Layout(NamedTuple):
    """Columns that are left out, and whether limits have one end only and long units are with values only."""

    left_out: frozenset[int] = frozenset()
    is_narrow: bool = False
    is_unit_once: bool = False


_LAYOUTS = (
    _Layout(),
    _Layout(frozenset({_MARGIN})),
    _Layout(frozenset({_MARGIN}), True),
    _Layout(frozenset({_MARGIN}), True, True),
    _Layout(frozenset({_MARGIN, _LIMIT}), True, True),
    _Layout(frozenset({_MARGIN, _LIMIT, _BOUND}), True, True),
    _Layout(frozenset({_MARGIN, _LIMIT, _BOUND, _VALUE}), True, True),
)
_SMALLEST_WITH_ALL = 3  # of these, the last that has value, limit and bound


def requirement_table(
    verdicts: Sequence[Verdict],
    columns: int,
    explained: Callable[[Verdict], Iterable[Line]] = lambda _: (),
    *,
    is_brief: bool = False,
) -> Iterator[Line]:
    """The table's lines, grouped by metric if whole names do not fit.

    Args:
        verdicts: at least one.
        columns: width of the terminal.
        explained: returns lines that follow a verdict's row.
        is_brief: leave margins out and always group.
    """
    whole = [text.one_line(verdict.id) for verdict in verdicts]
    short = [f"{' ' * _INDENT}{text.short_name(verdict)}" for verdict in verdicts]
    is_grouped = is_brief or _remaining(verdicts, columns, _LAYOUTS[0]) < max(map(len, whole))
    names = short if is_grouped else whole
    widest = max(len("requirement"), *map(len, names))
    layout = _layout(verdicts, columns, widest, is_brief)
    room = _remaining(verdicts, columns, layout)
    width = max((len(name) for name in ("requirement", *names) if len(name) <= room), default=0)
    rows, widths = _laid_out(verdicts, names, layout)
    if is_grouped:
        first = {verdict.metric: i for i, verdict in reversed(list(enumerate(verdicts)))}
        rows.sort(key=lambda row: first[row.verdict.metric])
    metric = ""
    yield _joined("requirement" if len("requirement") <= width else "", _HEADER, width, widths), "header"
    for row in rows:
        if is_grouped and row.verdict.metric != metric:
            metric = row.verdict.metric
            yield text.shorten(metric, columns), ""
        is_apart = len(row.name) > width
        if is_apart:
            yield text.shorten(row.name, columns), ""
        yield _joined("" if is_apart else row.name, row.cells, width, widths), text.verdict_style(row.verdict)
        yield from explained(row.verdict)


def _layout(verdicts: Sequence[Verdict], columns: int, widest: int, is_brief: bool) -> _Layout:
    """The first layout in which all names fit, or most; else the first with value, limit and bound that fits itself."""
    ways = (
        (widest, _LAYOUTS[is_brief:2]),
        (min(widest, _ENOUGH), _LAYOUTS[is_brief : _SMALLEST_WITH_ALL + 1]),
        (0, _LAYOUTS[_SMALLEST_WITH_ALL:]),
    )
    fitting = (one for wanted, layouts in ways for one in layouts if _remaining(verdicts, columns, one) >= wanted)
    return next(fitting, _LAYOUTS[-1])


def _remaining(verdicts: Sequence[Verdict], columns: int, layout: _Layout) -> int:
    """Width that is left for names; less than 0 if the other columns do not fit."""
    _, widths = _laid_out(verdicts, [""] * len(verdicts), layout)
    return columns - sum(width + len(_GAP) for width in widths if width)


def _laid_out(verdicts: Sequence[Verdict], names: Sequence[str], layout: _Layout) -> tuple[list[_Row], list[int]]:
    """The rows, and the widths of the columns after the name; 0 for one that is left out."""
    # If some cells have a mark, the others get a space, so that numbers line up.
    unmarked = " " if any(map(text.is_provisional, verdicts)) else ""
    unmarked_interval = " " if any(map(interval_mark, verdicts)) else ""
    rows = []
    for name, verdict in zip(names, verdicts, strict=True):
        limit = digits.limits_text(verdict, nearer_end=layout.is_narrow)
        limit, bound = limit.replace("at least", "≥").replace("at most", "≤"), digits.bound_text(verdict)
        unit = digits.suffix(verdict.unit)
        if layout.is_unit_once and verdict.value is not None and len(unit) > len(" %"):
            limit, bound = limit.removesuffix(unit), bound.removesuffix(unit)
        limit += interval_mark(verdict) or unmarked_interval
        bound += "*" if text.is_provisional(verdict) else unmarked
        value, margin, word = digits.point_text(verdict), digits.margin_text(verdict), text.verdict_word(verdict)
        rows.append(_Row(name, (value, limit, bound, margin, word), verdict))
    widths = [max(len(heading), *(len(row.cells[i]) for row in rows)) for i, heading in enumerate(_HEADER)]
    return rows, [0 if i in layout.left_out else width for i, width in enumerate(widths)]


def _joined(name: str, cells: Sequence[str], name_width: int, widths: Sequence[int]) -> str:
    *numbers, word = zip(cells, widths, strict=True)
    parts = [name.ljust(name_width), *(cell.rjust(width) for cell, width in numbers if width), word[0]]
    return _GAP.join(parts).rstrip()
