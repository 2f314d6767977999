"""One table of texts as aligned text, Markdown, HTML and CSV, from one description of its columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

from pytest_ddpscale.util.printable import one_line

Cell: TypeAlias = str | int | float | bool | None
# A spreadsheet takes a cell that begins with one of these for a formula, also after white space.
_FORMULA_STARTS = ("=", "+", "-", "@", "\N{FULLWIDTH EQUALS SIGN}", "\N{FULLWIDTH PLUS SIGN}",
                   "\N{FULLWIDTH HYPHEN-MINUS}", "\N{FULLWIDTH COMMERCIAL AT}")  # fmt: skip
_GAP = "  "


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        title: its heading.
        is_number: whether cells are aligned to the right.
        may_shrink: whether cells are shortened where lines would be too wide; they are whole in other forms.
    """

    title: str
    is_number: bool = False
    may_shrink: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of texts, each with a cell for each column. The first column names the row."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]

    @property
    def titles(self) -> list[str]:
        """Headings of the columns."""
        return [column.title for column in self.columns]


def table(titles: Iterable[str], rows: Iterable[Sequence[str]], *, of_numbers: bool = False, names: int = 1) -> Table:
    """A table; with `of_numbers`, all columns after the first `names` are aligned to the right."""
    columns = [Column(title, is_number=of_numbers and at >= names) for at, title in enumerate(titles)]
    return Table(columns, [*rows])


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
    yield _markdown_row(map(markdown, table.titles))
    yield _markdown_row("---:" if column.is_number else "---" for column in table.columns)
    yield from (_markdown_row(map(markdown, row)) for row in table.rows)


def markdown(content: str) -> str:
    """Text as one line, escaped for Markdown."""
    escaped = one_line(content).replace("\\", "\\\\")
    for mark in "|<>`*_[]":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped


def html(table: Table, caption: str = "") -> str:
    """An HTML table that scrolls by itself where it is wider than the page; report.js sorts one with a caption."""
    kinds = [' class="n"' if column.is_number else "" for column in table.columns]
    titles = zip(kinds, table.titles, strict=True)
    head = "".join(f'<th scope="col"{kind}>{escape(one_line(title))}</th>' for kind, title in titles)
    body = "".join(_html_row(row, kinds) for row in table.rows)
    named = escape(one_line(caption))
    said, label = (f"<caption>{named}</caption>", f' role="region" aria-label="{named}"') if caption else ("", "")
    content = f"{said}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    sortable = ' class="sortable"' if caption else ""
    return f'<div class="box" tabindex="0"{label}><table{sortable}>{content}</table></div>'


def csv_text(titles: Iterable[str], rows: Iterable[Sequence[Cell]]) -> str:
    """CSV with a line of titles. Numbers stay numbers; text that a spreadsheet would take for a formula stays text."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([*titles])
    writer.writerows([_csv_cell(cell) for cell in row] for row in rows)
    return written.getvalue()


def _rows(table: Table) -> list[list[str]]:
    """Its titles, if there are any, and its rows; spaces stay, as they may align a part of a cell."""
    rows = [*([table.titles] if any(table.titles) else []), *table.rows]
    return [[cell if cell.isprintable() else one_line(cell) for cell in row] for row in rows]


def _aligned(column: Column, cell: str, width: int) -> str:
    return cell.rjust(width) if column.is_number else cell.ljust(width)


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _html_row(row: Sequence[str], kinds: Sequence[str]) -> str:
    first, *rest = (f"{kind}>{escape(one_line(cell))}" for kind, cell in zip(kinds, row, strict=True))
    return f'<tr><th scope="row"{first}</th>{"".join(f"<td{cell}</td>" for cell in rest)}</tr>'


def _csv_cell(cell: Cell) -> Cell:
    """Prefix text that looks like a formula with an apostrophe, which keeps it text."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if not isinstance(cell, str):
        return cell
    line = one_line(cell)
    return f"'{line}" if line.startswith(_FORMULA_STARTS) else line
