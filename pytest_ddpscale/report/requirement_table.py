"""The table of requirements on a terminal, with columns of constant width.

From 80 columns up, it always has value, deciding limit, bound and verdict. If space is short, it drops in this order
the margin, the far end of the interval, and the name's column; names then have lines of their own. Names are shortened
in the middle only if they stay distinct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pytest_ddpscale.report import text
from pytest_ddpscale.report.launches_text import interval_mark
from pytest_ddpscale.report.text import Style
from pytest_ddpscale.run.verdicts import Verdict

Line = tuple[str, Style]

_GAP = "  "
_LEAST_NAME, _INDENT = 16, 2
_HEADER = ("value", "limit", "bound", "margin", "verdict")
_VALUE, _LIMIT, _BOUND, _MARGIN = range(4)


@dataclass(frozen=True)
class _Row:
    name: str
    cells: tuple[str, str, str, str, str]  # as in _HEADER
    verdict: Verdict


class _Layout(NamedTuple):
    """Widths of the columns after the name (0 for one left out), of the name, and whether it has its own line."""

    widths: list[int]
    name_width: int
    are_names_apart: bool


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
    rows, layout = _laid_out(verdicts, columns, is_brief)
    if is_brief or any(len(row.name) > layout.name_width for row in rows):
        # The metric moves to a line of its own, so rows contain only what differs.
        first = {verdict.metric: i for i, verdict in reversed(list(enumerate(verdicts)))}
        rows.sort(key=lambda row: first[row.verdict.metric])
        rows = [replace(row, name=f"{' ' * _INDENT}{text.short_name(row.verdict)}") for row in rows]
        metric: str | None = None
    else:
        metric = ""
    widest = max(len("requirement"), *(len(row.name) for row in rows))
    layout = layout._replace(name_width=layout.name_width if layout.are_names_apart else min(layout.name_width, widest))
    apart = {row.name for row in rows} if layout.are_names_apart else _alike_when_short(rows, layout.name_width)
    yield _joined("" if layout.are_names_apart else "requirement", _HEADER, layout), "header"
    for row in rows:
        if metric != "" and row.verdict.metric != metric:
            metric = row.verdict.metric
            yield text.shorten(metric, columns), ""
        if row.name in apart:
            yield text.shorten(row.name, columns), ""
        yield _joined("" if row.name in apart else row.name, row.cells, layout), text.verdict_style(row.verdict)
        yield from explained(row.verdict)


def _laid_out(verdicts: Sequence[Verdict], columns: int, is_brief: bool) -> tuple[list[_Row], _Layout]:
    """The first layout that fits; below 80 columns more is left out."""
    margin = {_MARGIN}
    ways: list[tuple[bool, set[int], int]] = [] if is_brief else [(False, set(), _LEAST_NAME)]
    ways += [(False, margin, _LEAST_NAME), (True, margin, _LEAST_NAME), (True, margin, _INDENT)]
    ways += [(True, margin | {_LIMIT}, _LEAST_NAME), (True, margin | {_LIMIT, _BOUND}, _LEAST_NAME)]
    for is_narrow, left_out, least in ways:
        rows = _rows(verdicts, is_narrow)
        widths = [max(len(heading), *(len(row.cells[i]) for row in rows)) for i, heading in enumerate(_HEADER)]
        widths = [0 if i in left_out else width for i, width in enumerate(widths)]
        remaining = columns - sum(width + len(_GAP) for width in widths if width)
        if remaining >= least:
            return rows, _Layout(widths, remaining, remaining < _LEAST_NAME)
    widths[_VALUE] = 0
    return rows, _Layout(widths, max(columns - widths[-1] - len(_GAP), _LEAST_NAME), are_names_apart=False)


def _rows(verdicts: Sequence[Verdict], is_narrow: bool) -> list[_Row]:
    # If some cells have a mark, the others get a space, so that numbers line up.
    unmarked = " " if any(map(text.is_provisional, verdicts)) else ""
    unmarked_interval = " " if any(map(interval_mark, verdicts)) else ""
    return [
        _Row(
            text.one_line(verdict.id),
            (
                text.point_text(verdict),
                _limit(verdict, is_narrow) + (interval_mark(verdict) or unmarked_interval),
                text.bound_text(verdict) + ("*" if text.is_provisional(verdict) else unmarked),
                text.margin_text(verdict),
                text.verdict_word(verdict),
            ),
            verdict,
        )
        for verdict in verdicts
    ]


def _limit(verdict: Verdict, is_narrow: bool) -> str:
    limits = text.limits_text(verdict, nearer_end=is_narrow)
    return limits.replace("at least", "≥").replace("at most", "≤")


def _joined(name: str, cells: Sequence[str], layout: _Layout) -> str:
    parts = [text.shorten(name, layout.name_width).ljust(layout.name_width)]
    *numbers, word = zip(cells, layout.widths, strict=True)
    parts += [cell.rjust(width) for cell, width in numbers if width]
    parts.append(word[0])
    return _GAP.join(parts).rstrip()


def _alike_when_short(rows: Sequence[_Row], name_width: int) -> set[str]:
    """Names that would look like another name at this width."""
    short: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        short.setdefault((row.verdict.metric, text.shorten(row.name, name_width)), set()).add(row.name)
    return {name for names in short.values() if len(names) > 1 for name in names}
