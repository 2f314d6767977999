"""A report as a list of blocks, written as one HTML page, as Markdown and as lines of text; rows also as CSV.

Every report of the product is such a list. No block takes markup: each writer makes text from outside one line and
escapes it. What holds nothing is not written. Styles are class names of report.css. Headline, Word:
passed, failed, warned, undecided (an outcome), tag (a category). Line: step (what to do), legend (how to read what is
above), watermark, live, nav, skip. Items: causes, signatures. Facts: lines (one below the other). Table: nodes,
requirements. Section: first. Written by the writer: word, facts, box, sortable, note, n (a number), figures, wide.
On paper what a signature stands for is open: all of these parts but evidence.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from html import escape
from itertools import groupby
from pathlib import Path
from string import Template
from typing import NamedTuple, TypeAlias
from urllib.parse import quote

from pytest_ddpscale.util.listing import first_few
from pytest_ddpscale.util.printable import one_line

Cell: TypeAlias = str | int | float | bool | None
_NUMBERS = (int, float, type(None))
# A spreadsheet takes a cell that begins with one of these for a formula, also after white space.
_FORMULA_STARTS = ("=", "+", "-", "@")
# A closing bracket makes a link only before another bracket, and an underscore makes emphasis only at the edge of a
# word, so names such as metric_name[workload-8gpu] need no escapes.
_SPECIAL = re.compile(r"[\\`*|#~$]|\](?=[(\[])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_GAP = "  "
_PAGE_ONLY = ("nav", "skip")  # styles of lines that lead to a part of the page
_MOST_ROWS, _MOST_NUMBERED = 50, 10  # of a table, and of a list, in Markdown, which goes into a ticket


class Word(NamedTuple):
    """Words in bold; with a style, those of a verdict or a category."""

    text: str
    style: str = ""


class Link(NamedTuple):
    """Words that lead to ``#anchor`` in the page, or to a file of the run, which only Markdown links."""

    text: str
    to: str


class Code(NamedTuple):
    """A command, to be pasted."""

    text: str


class Bar(NamedTuple):
    """How much is done, in per cent; only on a page."""

    per_cent: int


Span: TypeAlias = str | Word | Link | Code | Bar
Text: TypeAlias = Span | Sequence[Span]


class Headline(NamedTuple):
    """The answer, with the style of its outcome."""

    text: Text
    style: str = ""


class Line(NamedTuple):
    """A paragraph."""

    text: Text
    style: str = ""


class Items(NamedTuple):
    """A list, see `bullets`; numbered from `start` if it is not 0, each with an anchor if they have a name."""

    items: Sequence[Sequence[Block]]
    start: int = 0
    name: str = ""
    style: str = ""


class Facts(NamedTuple):
    """Names with what is said of each; a name may stand several times in a row."""

    pairs: Sequence[tuple[Text, Text]]
    style: str = ""


class Column(NamedTuple):
    """A column.

    Attributes:
        title: its heading.
        is_number: whether cells are aligned to the right.
        may_shrink: whether cells are shortened where lines of text would be too wide.
    """

    title: str
    is_number: bool = False
    may_shrink: bool = False


class Note(NamedTuple):
    """What is said of the rows above it: to all readers, and as evidence to those of the page who ask."""

    lines: Sequence[Text]
    evidence: Sequence[Text] = ()


class Table(NamedTuple):
    """Rows, each with a cell for each column, of which the first names the row.

    Attributes:
        caption: above the table.
        below: notes as wide as the table, by the number of rows above them; rows between two are sorted by themselves.
        more: what is left to say below all rows.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Text]]
    caption: str = ""
    below: Mapping[int, Note] = {}
    more: Text = ""
    style: str = ""

    @property
    def titles(self) -> list[str]:
        """Headings of the columns."""
        return [column.title for column in self.columns]


class Listing(NamedTuple):
    """Lines of another program, with their columns."""

    text: str


class Picture(NamedTuple):
    """A drawn picture, which contains its title; where it could not be drawn, its caption says why.

    Attributes:
        key: unique among the pictures of a page, for links, and the name of its PNG.
        alt: the picture in words, for readers who cannot see it.
        png: makes it as a PNG.
        table: its numbers.
        is_wide: whether it needs a whole line of the page.
        path: of the PNG, relative to the report; empty if there is none.
    """

    key: str
    title: str
    caption: str
    alt: str
    svg: bytes
    png: Callable[[], bytes]
    table: Table
    is_wide: bool
    path: str = ""


class Gallery(NamedTuple):
    """Pictures side by side, where there is room."""

    pictures: Sequence[Picture]


class Section(NamedTuple):
    """A part with a heading, and with an anchor if it has an id."""

    title: str
    blocks: Sequence[Block]
    id: str = ""
    style: str = ""


class Closed(NamedTuple):
    """A part that readers of the page open; others are told that it is there, unless it is open or short."""

    title: str
    blocks: Sequence[Block]
    is_open: bool = False
    is_short: bool = False


class Hole(NamedTuple):
    """Where `filled` puts what changes while the rest of the page stays."""

    name: str


Block: TypeAlias = Headline | Line | Items | Facts | Table | Listing | Gallery | Section | Closed | Hole


def table(
    titles: Iterable[str], rows: Iterable[Sequence[Text]], *, of_numbers: bool = False, names: int = 1,
    caption: str = "", style: str = "",
) -> Table:  # fmt: skip
    """A table; with `of_numbers`, all columns after the first `names` are aligned to the right."""
    columns = [Column(title, is_number=of_numbers and at >= names) for at, title in enumerate(titles)]
    return Table(columns, [*rows], caption, style=style)


def first_rows(whole: Table, most: int, all_in: str = "verdicts.json") -> Table:
    """The first rows of a table, and a note with the number of the others, which the file `all_in` has."""
    more = f"{len(whole.rows) - most} more: {all_in} lists all" if whole.rows[most:] else ""
    return whole._replace(rows=whole.rows[:most], more=more)


def bullets(lines: Iterable[Text], most: int | None = None, style: str = "") -> Items:
    """A list of lines, of which the first are shown, or all."""
    every = [*lines]
    more = [f"{len(every) - most} more: verdicts.json lists all"] if most and every[most:] else []
    return Items([[Line(line)] for line in (*every[:most], *more)], style=style)


def holds(block: Block) -> bool:
    """Whether there is anything to write."""
    if isinstance(block, Section | Closed):
        return any(map(holds, block.blocks))
    return bool(block.rows if isinstance(block, Table) else block[0])


def plain(text: Text) -> str:
    """The words alone."""
    return "".join(one if isinstance(one, str) else getattr(one, "text", "") for one in _spans(text))


def _spans(text: Text) -> Sequence[Span]:
    return (text,) if isinstance(text, str | Word | Link | Code | Bar) else text


def _part(text: str) -> str:
    """A part of a line as one line, with a space where it begins or ends with one."""
    line = one_line(text)
    return f"{' ' * text[:1].isspace()}{line}{' ' * (text[-1:].isspace() and bool(line))}"


def _columns(text: str) -> str:
    """Text without control characters, with its lines and columns kept."""
    lines = (line.expandtabs(8) for line in text.splitlines())
    return "\n".join("".join(one for one in line if one.isprintable()).rstrip() for line in lines)


def html_page(title: str, blocks: Sequence[Block], refresh_s: int = 0) -> str:
    """A page of its own, which runs only our script and asks nothing of the network.

    report.js sorts named tables by their heads, within each group of rows above a note as wide as the table, and
    filters long ones. It reads the page again while the run goes on, unless the reader pressed Pause or uses a filter.

    With `refresh_s`, browsers reload it each so many seconds, also without the script.
    """
    here, names = Path(__file__).parent, ("page.html", "report.css", "report.js")
    page, style, script = ((here / name).read_text("utf-8") for name in names)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    refresh = f'<noscript><meta http-equiv="refresh" content="{refresh_s}"></noscript>\n' if refresh_s else ""
    return Template(page).substitute(
        title=escape(one_line(title)), blocks=html(*blocks), style=style, script=script, digest=f"sha256-{digest}",
        refresh=refresh, refresh_s=refresh_s or "",
    )  # fmt: skip


def filled(page: str, name: str, *blocks: Block) -> str:
    """The page with these blocks in its hole of that name, which escaping keeps out of all text."""
    return page.replace(html(Hole(name)), html(*blocks), 1)


def html(*blocks: Block, level: int = 2, near: str = "") -> str:
    """Blocks as HTML, with headings from that level on; a table without a caption is named by the title `near` it."""
    return "\n".join(_html(block, level, near) for block in blocks if holds(block))


def _html(block: Block, level: int, near: str) -> str:
    match block:
        case Headline(said, style):
            return _element("h1", _html_text(said), style)
        case Line(said, style):
            return _element("nav" if style == "nav" else "p", _html_text(said), style)
        case Items(items, start, name, style):
            entries = ""
            for number, item in enumerate(items, start):
                anchor = f' id="{name}-{number}"' if name else ""
                entries += _element("li", html(*item), more=anchor)
            return _element("ol" if start else "ul", entries, style, f' start="{start}"' if start > 1 else "")
        case Facts(pairs, style):
            parts = ""
            for name, of_name in groupby(pairs, lambda pair: pair[0]):
                said = "".join(_element("dd", _html_text(words)) for _, words in of_name)
                parts += _element("div", _element("dt", _html_text(name)) + said)
            return _element("dl", parts, f"facts {style}".rstrip())
        case Table():
            return _html_table(block, near)
        case Listing(text):
            return _element("pre", escape(_columns(text)), more=' tabindex="0"')
        case Gallery(pictures):
            return _element("div", "".join(_html_picture(one) for one in pictures), "figures")
        case Section(title, inner, anchor, style):
            heading = _element(f"h{level}", _html_text(title)) if title else ""
            inside = html(*inner, level=level + bool(title), near=title)
            return _element("section", f"{heading}\n{inside}", style, f' id="{anchor}"' if anchor else "")
        case Closed(title, inner, is_open):
            summary = _element("summary", _html_text(title))
            inside = html(*inner, level=level, near=title)
            return _element("details", f"{summary}\n{inside}", more=" open" if is_open else "")
        case Hole(name):
            return f'<div id="{name}"></div>'


def _element(tag: str, content: str, style: str = "", more: str = "") -> str:
    styled = f' class="{style}"' if style else ""
    return f"<{tag}{more}{styled}>{content}</{tag}>"


def _html_text(text: Text) -> str:
    return "".join(map(_html_span, _spans(text))).strip()


def _html_span(span: Span) -> str:
    match span:
        case Word(said, style):
            return _element("span" if style else "b", escape(_part(said)), f"word {style}" if style else "")
        case Link(said, to) if to.startswith("#"):
            return _element("a", escape(_part(said)), more=f' href="{escape(to)}"')
        case Code(said):
            return _element("code", escape(one_line(said)))
        case Bar(per_cent):
            return f'<progress aria-label="share done" max="100" value="{per_cent}"></progress>'
        case _:
            return escape(_part(plain(span)))


def _html_table(block: Table, near: str) -> str:
    """It scrolls by itself where it is wider than the page; report.js sorts one that has a name."""
    kinds = ["n" if column.is_number else "" for column in block.columns]
    titled = zip(block.titles, kinds, strict=True)
    head = "".join(
        _element("th", _html_text(one), kind, ' scope="col"') if one else "<td></td>" for one, kind in titled
    )
    bodies = ""
    for rows, said in _parts(block):
        note = html(*map(Line, said.lines), Closed(f"Evidence: {len(said.evidence)}", [bullets(said.evidence)]))
        wide = f'<tr class="note"><td colspan="{len(kinds)}">{note}</td></tr>' if note else ""
        written = "".join(_html_row(row, kinds) for row in rows) + wide
        bodies += _element("tbody", written) if written else ""
    named = escape(one_line(block.caption or near))
    caption = _element("caption", named) if block.caption else ""
    styles = " ".join(filter(None, ("sortable" if named else "", block.style)))
    written = _element("table", f"{caption}<thead><tr>{head}</tr></thead>{bodies}", styles)
    region = f' role="region" aria-label="{named}"' if named else ""
    return _element("div", written, "box", f' tabindex="0"{region}')


def _parts(block: Table) -> Iterator[tuple[Sequence[Sequence[Text]], Note]]:
    """The rows above each note with it, and the others with what is left to say below all."""
    begin = 0
    for end, note in sorted(block.below.items()):
        yield block.rows[begin:end], note
        begin = end
    yield block.rows[begin:], Note([block.more])


def _html_row(row: Sequence[Text], kinds: Sequence[str]) -> str:
    (name, kind), *rest = zip(map(_html_text, row), kinds, strict=True)
    return _element("tr", _element("th", name, kind, ' scope="row"') + "".join(_element("td", *cell) for cell in rest))


def _html_picture(one: Picture) -> str:
    data, alt = base64.b64encode(one.svg).decode(), escape(one_line(one.alt))
    image = f'<img alt="{alt}" src="data:image/svg+xml;base64,{data}">' if data else ""
    said = _element("figcaption", _html_text(one.caption)) if one.caption else ""
    numbers = html(Closed("As a table", [one.table._replace(caption=one.title)]))
    more = f' id="{escape(one_line(one.key))}" tabindex="0"'  # a wide one scrolls
    return _element("figure", image + said + numbers, "wide" * one.is_wide, more)


def markdown_page(blocks: Sequence[Block]) -> str:
    """A file of Markdown, GitHub's dialect, for a ticket."""
    return f"{markdown(*blocks)}\n"


def markdown(*blocks: Block, level: int = 2) -> str:
    """Blocks as Markdown, with headings from that level on."""
    return "\n\n".join(filter(None, (_markdown(block, level) for block in blocks if holds(block))))


def _markdown(block: Block, level: int) -> str:
    match block:
        case Headline(said):
            return f"# {_markdown_text(said)}"
        case Line(said, style):
            return "" if style in _PAGE_ONLY else _markdown_text(said)
        case Items(items, start):
            marks = [f"{at}. " if start else "- " for at, _ in enumerate(items, start)]
            entries = [_hung(mark, markdown(*one, level=level)) for mark, one in zip(marks, items, strict=True)]
            if start and (left := len(entries) - _MOST_NUMBERED) > 0:
                entries[_MOST_NUMBERED:] = [f"{left} more: report.html lists them"]
            return ("\n\n" if any("\n" in one for one in entries) else "\n").join(entries)
        case Facts(pairs):
            return "\n".join(f"- {_markdown_text(name)}: {_markdown_text(said)}" for name, said in pairs)
        case Table():
            return _markdown_table(block)
        case Listing(text):
            lines = _columns(text).strip("\n")
            fence = _fence(lines, 3)
            return f"{fence}text\n{lines}\n{fence}"
        case Gallery(pictures):
            return "\n\n".join(f"![{escaped(one.title)}]({_path(one.path)})" for one in pictures if one.path)
        case Section(title, inner):
            inside = markdown(*inner, level=level + bool(title))
            return f"{'#' * level} {escaped(title)}\n\n{inside}" if title and inside else inside
        case Closed(title, inner, is_open, is_short):
            told = is_open or is_short
            return f"**{escaped(title)}**\n\n{markdown(*inner)}" if told else f"- {escaped(title)}: see report.html"
        case Hole():
            return ""


def _path(text: str) -> str:
    return quote(text, errors="replace")


def _fence(text: str, least: int) -> str:
    """More backticks than the text has in a row."""
    return "`" * max([least, *(len(run) + 1 for run in re.findall("`+", text))])


def escaped(text: str) -> str:
    """Text as one line, escaped so that it reads the same in a paragraph, a heading and a table cell."""
    # Entities first: a backslash does not stop HTML in every renderer.
    line = "".join(_ENTITIES.get(character, character) for character in _part(text))
    return _SPECIAL.sub(lambda match: f"\\{match.group()}", line)


def _markdown_text(text: Text) -> str:
    return "".join(map(_markdown_span, _spans(text))).strip()


def _markdown_span(span: Span) -> str:
    match span:
        case Word(said, style) if said and style != "passed":
            return f"**{escaped(said)}**"
        case Link(said, to) if not to.startswith("#"):
            return f"[{escaped(said)}]({_path(to)})"
        case Code(said):
            line, fence = one_line(said), _fence(said, 1)
            return f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}"
        case _:
            return escaped(plain(span))


def _markdown_table(block: Table) -> str:
    rows = [
        [escaped(column.title) for column in block.columns],
        ["---:" if column.is_number else "---" for column in block.columns],
        *([_markdown_text(cell) for cell in row] for row in block.rows[:_MOST_ROWS]),
    ]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    left = len(block.rows) - _MOST_ROWS
    more = f"{left} more: report.html lists them" if left > 0 else _markdown_text(block.more)
    return "\n\n".join(filter(None, (escaped(block.caption), lines, more, markdown(_notes(block)))))


def _notes(block: Table) -> Items:
    """Notes, each with the names of its rows."""
    notes = list[list[Block]]()
    for rows, note in [*_parts(block)][:-1]:
        if said := [line for line in (*note.lines, *note.evidence) if line]:
            names = first_few([plain(row[0]) for row in rows], 2, "; ")
            notes.append([Line((f"{names}: ", *_spans(said[0]))), bullets(said[1:])])
    return Items(notes[:_MOST_ROWS])


def text_lines(*blocks: Block, width: int | None = None) -> Iterator[str]:
    """Blocks as lines of at most `width` characters; listings, and tables that cannot shrink to it, keep their width.

    Without a width, each paragraph is a line.
    """
    flat = (Headline, Line, Items)
    before: Block | None = None
    for block in filter(holds, blocks):
        lines = [*_text(block, width)]
        if before is not None and lines and not (isinstance(before, flat) and isinstance(block, flat)):
            yield ""
        yield from lines
        before = block if lines else before


def _text(block: Block, width: int | None) -> Iterator[str]:
    match block:
        case Headline(said, _) | Line(said, _):
            yield from [] if block.style in _PAGE_ONLY else _wrapped(plain(said), width)
        case Items(items, start):
            for number, item in enumerate(items, start):
                mark = f"{number}. " if start else "- "
                inside = "\n".join(text_lines(*item, width=width and width - len(mark)))
                yield from _hung(mark, inside).split("\n")
        case Facts(pairs):
            for name, said in pairs:
                yield from _wrapped(f"{plain(name)}: {plain(said)}", width)
        case Table():
            yield from [one_line(block.caption)] if block.caption else []
            yield from _text_table(block, width)
            yield from text_lines(Line(block.more), _notes(block), width=width)
        case Listing(text):
            yield from _columns(text).split("\n")
        case Section(title, inner) | Closed(title, inner):
            yield from [one_line(title), "-" * len(one_line(title))] if title else []
            yield from text_lines(*inner, width=width)


def _hung(mark: str, text: str) -> str:
    """Lines below a mark, which stands before the first."""
    return mark + textwrap.indent(text, " " * len(mark)).lstrip()


def _wrapped(text: str, width: int | None) -> list[str]:
    line = one_line(text)
    return [line] if width is None else textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)


def _text_table(block: Table, width: int | None) -> Iterator[str]:
    """Columns as wide as their widest cell; if that is too wide and none may shrink, a line for each cell."""
    titles, *others = [[*map(_text_cell, row)] for row in (block.titles, *block.rows)]
    rows = [titles, *others] if any(titles) else others
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    over = 0 if width is None else sum(widths) + len(_GAP) * (len(widths) - 1) - width
    if over > 0 and not any(column.may_shrink for column in block.columns):
        for name, *cells in others:
            yield name
            named = zip(titles[1:], cells, strict=True)
            yield from (f"{_GAP}{title}: {cell}" for title, cell in named if cell.strip("—–"))
        return
    for at, column in enumerate(block.columns):
        if column.may_shrink and over > 0:
            wide, widths[at] = widths[at], max(widths[at] - over, len(column.title), 1)
            over += widths[at] - wide
    for row in rows:
        cells = [shortened(cell, wide) for cell, wide in zip(row, widths, strict=True)]
        aligned = zip(block.columns, cells, widths, strict=True)
        yield _GAP.join(cell.rjust(wide) if one.is_number else cell.ljust(wide) for one, cell, wide in aligned).rstrip()


def _text_cell(cell: Text) -> str:
    """A cell as one line; spaces stay, as they may align a part of it."""
    said = plain(cell)
    return said if said.isprintable() else one_line(said)


def shortened(content: str, width: int) -> str:
    """Text of at most `width` characters, with an ellipsis in place of what does not fit."""
    return content if len(content) <= width else f"{content[: max(width - 1, 0)].rstrip()}…"


def csv_text(titles: Iterable[str], rows: Iterable[Sequence[Cell]]) -> str:
    """CSV with a line of titles. Numbers stay numbers; text that a spreadsheet would take for a formula stays text."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([*titles])
    writer.writerows([cell if cell.__class__ in _NUMBERS else _csv_cell(cell) for cell in row] for row in rows)
    return written.getvalue()


@lru_cache(maxsize=2**15)  # of millions of cells most say the same; of 8,192 GPUs each has three texts
def _csv_cell(cell: Cell) -> str:
    """A text or a truth; text that looks like a formula has an apostrophe before it, which keeps it text."""
    line = one_line(cell) if isinstance(cell, str) else str(cell).lower()
    return f"'{line}" if line.startswith(_FORMULA_STARTS) else line
