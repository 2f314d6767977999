# mypy: ignore-errors
"""One table of texts as aligned text, Markdown, HTML and CSV, from one description of its columns."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from html import escape
from types import MappingProxyType
from typing import Protocol, TypeAlias, runtime_checkable

from pytest_ddpscale.util.document import Column as Column
from pytest_ddpscale.util.document import Table as Table
from pytest_ddpscale.util.document import table as table
from pytest_ddpscale.util.printable import one_line

Cell: TypeAlias = str | int | float | bool | None
# A spreadsheet takes a cell that begins with one of these for a formula, also after white space.
_NUMBERS = (int, float, type(None))
_FORMULA_STARTS = ("=", "+", "-", "@", "\N{FULLWIDTH EQUALS SIGN}", "\N{FULLWIDTH PLUS SIGN}",
                   "\N{FULLWIDTH HYPHEN-MINUS}", "\N{FULLWIDTH COMMERCIAL AT}")  # fmt: skip
_GAP = "  "
# A closing bracket makes a link only before another bracket, and an underscore makes emphasis only at the edge of a
# word, so names such as metric_name[workload-8gpu] need no escapes.
_SPECIAL = re.compile(r"[\\`*|#~$]|\](?=[(\[])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
NOTHING_BELOW: Mapping[int, Sequence[str]] = MappingProxyType({})


@runtime_checkable
class _HasHtml(Protocol):
    """Text that already is HTML, such as markupsafe's."""

    def __html__(self) -> str: ...


def text_lines(table: Table, width: int | None = None) -> Iterator[str]:
    """Lines with columns as wide as their widest cell, the first with the titles if there are any.

    Args:
        table: what to write.
        width: of a line, in characters. Cells of columns that may shrink are shortened to it; a table that stays wider
            is written whole. None for any.
    """
    rows = _rows(table)
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    if width is not None:
        over = sum(widths) + len(_GAP) * (len(widths) - 1) - width
        for at, column in enumerate(table.columns):
            if column.may_shrink and over > 0:
                kept = max(widths[at] - over, len(column.title), 1)
                over, widths[at] = over - (widths[at] - kept), kept
    for row in rows:
        cells = zip(table.columns, row, widths, strict=True)
        yield _GAP.join(_aligned(column, shortened(cell, wide), wide) for column, cell, wide in cells).rstrip()


def is_wider_than(table: Table, width: int) -> bool:
    """Whether a line of the whole table has more than `width` characters."""
    widths = [max(map(len, cells)) for cells in zip(*_rows(table), strict=True)]
    return sum(widths) + len(_GAP) * (len(widths) - 1) > width


def shortened(content: str, width: int) -> str:
    """Text of at most `width` characters, with an ellipsis in place of what does not fit."""
    return content if len(content) <= width else f"{content[: max(width - 1, 0)].rstrip()}…"


def markdown_lines(table: Table) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield _markdown_row(map(markdown, [column.title for column in table.columns]))
    yield _markdown_row("---:" if column.is_number else "---" for column in table.columns)
    yield from (_markdown_row(map(markdown, row)) for row in table.rows)


class Markdown(str):
    """Text that already is Markdown and is not escaped."""

    __slots__ = ()


def markdown(content: object) -> str:
    """Text as one line, escaped so that it reads the same in a paragraph, a heading and a table cell."""
    if isinstance(content, Markdown):
        return str(content)
    # Entities first: a backslash does not stop HTML in every renderer.
    line = "".join(_ENTITIES.get(character, character) for character in one_line(str(content)))
    return _SPECIAL.sub(lambda match: f"\\{match.group()}", line)


def html(table: Table, caption: str = "", below: Mapping[int, Sequence[str]] = NOTHING_BELOW, classes: str = "") -> str:
    """An HTML table that scrolls by itself where it is wider than the page; report.js sorts one with a caption.

    Args:
        table: what to write. Cells that are markup, with `__html__`, are not escaped.
        caption: names the table.
        below: texts or markup in rows as wide as the table, by the number of rows above them. Rows between two of them
            are sorted among themselves.
        classes: of the table, for its style.
    """
    kinds = [' class="n"' if column.is_number else "" for column in table.columns]
    titles = zip(kinds, [column.title for column in table.columns], strict=True)
    head = "".join(f'<th scope="col"{kind}>{_escaped(title)}</th>' for kind, title in titles)
    rows, wide, bodies, begin = [_html_row(row, kinds) for row in table.rows], f'<td colspan="{len(kinds)}">', "", 0
    for end in sorted({*below, len(rows)}):
        notes = "".join(f'<tr class="note">{wide}{_escaped(note)}</td></tr>' for note in below.get(end, ()))
        if end > begin or notes or not rows:
            bodies += f"<tbody>{''.join(rows[begin:end])}{notes}</tbody>"
        begin = end
    named = escape(one_line(caption))
    said, label = (f"<caption>{named}</caption>", f' role="region" aria-label="{named}"') if caption else ("", "")
    styles = " ".join(filter(None, ("sortable" if caption else "", classes)))
    styled = f'<table class="{styles}">' if styles else "<table>"
    return f'<div class="box" tabindex="0"{label}>{styled}{said}<thead><tr>{head}</tr></thead>{bodies}</table></div>'


def csv_text(titles: Iterable[str], rows: Iterable[Sequence[Cell]]) -> str:
    """CSV with a line of titles. Numbers stay numbers; text that a spreadsheet would take for a formula stays text."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([*titles])
    writer.writerows([cell if cell.__class__ in _NUMBERS else _csv_text(cell) for cell in row] for row in rows)
    return written.getvalue()


def _rows(table: Table) -> list[list[str]]:
    """Its titles, if there are any, and its rows; spaces stay, as they may align a part of a cell."""
    titles = [column.title for column in table.columns]
    rows = [*([titles] if any(titles) else []), *table.rows]
    return [[cell if cell.isprintable() else one_line(cell) for cell in row] for row in rows]


def _aligned(column: Column, cell: str, width: int) -> str:
    return cell.rjust(width) if column.is_number else cell.ljust(width)


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(content: str) -> str:
    return content.__html__() if isinstance(content, _HasHtml) else escape(one_line(content))


def _html_row(row: Sequence[str], kinds: Sequence[str]) -> str:
    first, *rest = (f"{kind}>{_escaped(cell)}" for kind, cell in zip(kinds, row, strict=True))
    return f'<tr><th scope="row"{first}</th>{"".join(f"<td{cell}</td>" for cell in rest)}</tr>'


@lru_cache(maxsize=2**15)  # of millions of cells most say the same; of 8,192 GPUs each has three texts
def _csv_text(cell: Cell) -> str:
    """A text or a truth; text that looks like a formula has an apostrophe before it, which keeps it text."""
    line = one_line(cell) if isinstance(cell, str) else str(cell).lower()
    return f"'{line}" if line.startswith(_FORMULA_STARTS) else line
