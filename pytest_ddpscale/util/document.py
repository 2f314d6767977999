"""A report as a list of blocks, written as one HTML page, as Markdown and as lines of text; rows also as CSV.

Every report of the product is such a list. No block takes markup: each writer makes text from outside one line and
escapes it. What holds nothing is not written. Styles are class names of report.css. Headline, Word:
passed, failed, warned, undecided (an outcome), tag (a category). Line: step (what to do), legend (how to read what is
above), watermark, live, nav, skip. Items: causes, signatures. Table: nodes, requirements, facts. Section: first.
Written by the writer: word, box, sortable, note, n (a number), wide.
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
from pathlib import Path
from string import Template
from typing import NamedTuple, TypeAlias
from urllib.parse import quote

from pytest_ddpscale.util.listing import first_few, shorten
from pytest_ddpscale.util.printable import one_line, several_lines

Cell: TypeAlias = str | int | float | bool | None
_NUMBERS = (int, float, type(None))
# A spreadsheet takes a cell that begins with one of these for a formula, also after white space.
_FORMULA_STARTS = ("=", "+", "-", "@")
# A closing bracket makes a link only before another bracket, and an underscore makes emphasis only at the edge of a
# word, so names such as metric_name[workload-8gpu] need no escapes.
_SPECIAL = re.compile(r"[\\`*|#~$]|\](?=[(\[])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_GAP = "  "
_PAGE_ONLY = ("nav", "skip")  # styles of lines that lead to a part of the page
_MOST_ROWS, _MOST_NUMBERED = 50, 10  # of a table, and of a list, in Markdown, which goes into a ticket
_ENDLESS = 2**30  # a width that nothing reaches


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


Span: TypeAlias = str | Word | Link | Code
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


class Note(NamedTuple):
    """What is said of the rows above it: to all readers, and as evidence to those of the page who ask."""

    lines: Sequence[Text]
    evidence: Sequence[Text] = ()


class Table(NamedTuple):
    """Rows, each with a cell for each title, of which the first names the row.

    Attributes:
        titles: of the columns; all empty for none.
        caption: above the table.
        names: how many of the columns are texts; the others are numbers, aligned to the right.
        below: notes as wide as the table, by the number of rows above them; rows between two are sorted by themselves.
        more: what is left to say below all rows.
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[Text]]
    caption: str = ""
    names: int = 99
    style: str = ""
    below: Mapping[int, Note] = {}
    more: Text = ""


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


Block: TypeAlias = Headline | Line | Items | Table | Listing | Picture | Section | Closed


def fact_table(pairs: Iterable[tuple[Text, Text]], style: str = "") -> Table:
    """Names with what is said of each."""
    return Table(("", ""), [*pairs], style=f"facts {style}".rstrip())


def first_rows(whole: Table, most: int, all_in: str = "verdicts.json") -> Table:
    """The first rows of a table, and a note with the number of the others, which the file `all_in` has."""
    return whole._replace(rows=whole.rows[:most], more=_more(whole.rows, most, f"{all_in} lists all"))


def bullets(lines: Iterable[Text], most: int | None = None, style: str = "") -> Items:
    """A list of lines, of which the first are shown, or all."""
    bulleted = [*lines]
    shown = [*bulleted[:most], _more(bulleted, most or len(bulleted), "verdicts.json lists all")]
    return Items([[Line(line)] for line in shown if line], style=style)


def _more(every: Sequence[object], most: int, where: str) -> str:
    return f"{len(every) - most} more: {where}" if every[most:] else ""


def holds(block: Block) -> bool:
    """Whether there is anything to write."""
    if isinstance(block, Section | Closed):
        return any(map(holds, block.blocks))
    return bool(block.rows if isinstance(block, Table) else block[0])


def plain(text: Text) -> str:
    """The words alone."""
    return "".join(span if isinstance(span, str) else span.text for span in _spans(text))


def _spans(text: Text) -> Sequence[Span]:
    return (text,) if isinstance(text, str | Word | Link | Code) else text


def _part(text: str) -> str:
    """A part of a line as one line, with a space where it begins or ends with one."""
    return one_line(f"|{text}|")[1:-1]


def html_page(title: str, blocks: Sequence[Block], refresh_s: int = 0) -> str:
    """A page of its own, which runs only our script and asks nothing of the network.

    report.js sorts named tables by their heads, within each group of rows above a note as wide as the table. It reads
    the page again while the run goes on, unless the reader pressed Pause.

    With `refresh_s`, browsers reload it each so many seconds, also without the script.
    """
    folder, names = Path(__file__).parent, ("page.html", "report.css", "report.js")
    page, style, script = ((folder / name).read_text("utf-8") for name in names)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    refresh = f'<noscript><meta http-equiv="refresh" content="{refresh_s}"></noscript>\n' if refresh_s else ""
    return Template(page).substitute(
        title=escape(one_line(title)), blocks=html(*blocks), style=style, script=script, digest=f"sha256-{digest}",
        refresh=refresh, refresh_s=refresh_s or "",
    )  # fmt: skip


def above_headline(page: str, *blocks: Block) -> str:
    """The page with these blocks above its headline, for which escaping keeps no text from being taken."""
    return page.replace("<h1", f"{html(*blocks)}\n<h1", 1)


def html(*blocks: Block, level: int = 2) -> str:
    """Blocks as HTML, with headings from that level on."""
    return "\n".join(_html(block, level) for block in blocks if holds(block))


def _html(block: Block, level: int) -> str:
    match block:
        case Headline(content, style):
            return _element("h1", _html_text(content), style)
        case Line(content, style):
            return _element("nav" if style == "nav" else "p", _html_text(content), style)
        case Items(items, start, name, style):
            entries = ""
            for number, item in enumerate(items, start):
                anchor = f' id="{name}-{number}"' if name else ""
                entries += _element("li", html(*item), more=anchor)
            return _element("ol" if start else "ul", entries, style, f' start="{start}"' if start > 1 else "")
        case Table():
            return _html_table(block)
        case Listing(text):
            return _element("pre", escape(several_lines(text)), more=' tabindex="0"')
        case Picture():
            return _html_picture(block)
        case Section(title, inner, anchor, style):
            heading = _element(f"h{level}", _html_text(title)) if title else ""
            inside = html(*inner, level=level + bool(title))
            return _element("section", f"{heading}\n{inside}", style, f' id="{anchor}"' if anchor else "")
        case Closed(title, inner, is_open):
            summary = _element("summary", _html_text(title))
            inside = html(*inner, level=level)
            return _element("details", f"{summary}\n{inside}", more=" open" if is_open else "")


def _element(tag: str, content: str, style: str = "", more: str = "") -> str:
    styled = f' class="{style}"' if style else ""
    return f"<{tag}{more}{styled}>{content}</{tag}>"


def _html_text(text: Text) -> str:
    return "".join(map(_html_span, _spans(text))).strip()


def _html_span(span: Span) -> str:
    match span:
        case Word(text, style):
            return _element("span" if style else "b", escape(_part(text)), f"word {style}" if style else "")
        case Link(text, to) if to.startswith("#"):
            return _element("a", escape(_part(text)), more=f' href="{escape(to)}"')
        case Code(text):
            return _element("code", escape(one_line(text)))
        case _:
            return escape(_part(plain(span)))


def _html_table(block: Table) -> str:
    """It scrolls by itself where it is wider than the page; report.js sorts one that has titles."""
    kinds = ["n" * (at >= block.names) for at, _ in enumerate(block.titles)]
    styles = [block.style] * bool(block.style)
    content = _element("caption", _html_text(block.caption)) if block.caption else ""
    if any(block.titles):
        titled = zip(map(_html_text, block.titles), kinds, strict=True)
        head = "".join(_element("th", *cell, ' scope="col"') if cell[0] else "<td></td>" for cell in titled)
        content, styles = f"{content}<thead><tr>{head}</tr></thead>", ["sortable", *styles]
    for rows, cells in _parts(block):
        note = html(*map(Line, cells.lines), Closed(f"Evidence: {len(cells.evidence)}", [bullets(cells.evidence)]))
        wide = f'<tr class="note"><td colspan="{len(kinds)}">{note}</td></tr>' if note else ""
        written = "".join(_html_row(row, kinds) for row in rows) + wide
        content += _element("tbody", written) if written else ""
    region = f' role="region" aria-label="{escape(one_line(block.caption))}"' if block.caption else ""
    box = _element("div", _element("table", content, " ".join(styles)), "box", f' tabindex="0"{region}')
    return box + html(Line(block.more))


def _parts(block: Table) -> Iterator[tuple[Sequence[Sequence[Text]], Note]]:
    """The rows above each note with it, and those below the last."""
    begin = 0
    for end, note in (*block.below.items(), (len(block.rows), Note([]))):
        yield block.rows[begin:end], note
        begin = end


def _html_row(row: Sequence[Text], kinds: Sequence[str]) -> str:
    (name, kind), *rest = zip(map(_html_text, row), kinds, strict=True)
    return _element("tr", _element("th", name, kind, ' scope="row"') + "".join(_element("td", *cell) for cell in rest))


def _html_picture(picture: Picture) -> str:
    data, alt = base64.b64encode(picture.svg).decode(), escape(one_line(picture.alt))
    image = f'<img alt="{alt}" src="data:image/svg+xml;base64,{data}">' if data else ""
    caption = _element("figcaption", _html_text(picture.caption)) if picture.caption else ""
    numbers = html(Closed("As a table", [picture.table._replace(caption=picture.title)]))
    more = f' id="{escape(one_line(picture.key))}"'
    return _element("figure", image + caption + numbers, "wide" * picture.is_wide, more)


def markdown_page(blocks: Sequence[Block]) -> str:
    """A file of Markdown, GitHub's dialect, for a ticket."""
    return f"{markdown(*blocks)}\n"


def text_lines(*blocks: Block, width: int | None = None) -> Iterator[str]:
    """Blocks as lines of at most `width` characters; listings, and tables that cannot shrink to it, keep their width.

    Without a width, each paragraph is a line.
    """
    return iter(markdown(*blocks, width=width or _ENDLESS).splitlines())


def markdown(*blocks: Block, level: int = 2, width: int = 0) -> str:
    """Blocks as Markdown, with headings from that level on; with a width, as text for a terminal."""
    written, was_flat = "", False
    for block in filter(holds, blocks):
        if text := _markdown(block, level, width):
            is_flat = width > 0 and isinstance(block, Headline | Line | Items)
            gap = "\n" if is_flat and was_flat else "\n\n"
            written, was_flat = f"{written}{gap}{text}" if written else text, is_flat
    return written


def _markdown(block: Block, level: int, width: int) -> str:
    match block:
        case Headline(content):
            return "# " * (not width) + _said(content, width)
        case Line(content, style):
            return "" if style in _PAGE_ONLY else _said(content, width)
        case Items(items, start):
            entries = list[str]()
            for number, item in enumerate(items, start):
                mark = f"{number}. " if start else "- "
                inside = markdown(*item, level=level, width=width and max(width - len(mark), 1))
                entries.append(mark + textwrap.indent(inside, " " * len(mark)).lstrip())
            if start and (more := _more(entries, _MOST_NUMBERED, "report.html lists them")):
                entries[_MOST_NUMBERED:] = [more]
            return ("\n" if width or "\n" not in "".join(entries) else "\n\n").join(entries)
        case Table(more=more):
            rows = "\n".join(_text_table(block, width)) if width else _markdown_table(block)
            more = more if width else _more(block.rows, _MOST_ROWS, "report.html lists them") or more
            parts = _said(block.caption, width), rows, _said(more, width), markdown(_notes(block), width=width)
            return ("\n" if width else "\n\n").join(filter(None, parts))
        case Listing(text):
            listed = several_lines(text).strip("\n")
            fence = _fence(listed, 3)
            return listed if width else f"{fence}text\n{listed}\n{fence}"
        case Picture(title=title, path=path):
            return f"![{escaped(title)}]({quote(path, errors='replace')})" if path and not width else ""
        case Section(title, inner):
            inside, name = markdown(*inner, level=level + bool(title), width=width), one_line(title)
            heading = f"{name}\n{'-' * len(name)}\n" if width else f"{'#' * level} {escaped(title)}\n\n"
            return heading + inside if name and inside else inside
        case Closed(title, inner, is_open, is_short):
            is_shown = is_open or is_short
            return f"**{escaped(title)}**\n\n{markdown(*inner)}" if is_shown else f"- {escaped(title)}: see report.html"
    return ""


def _fence(text: str, least: int) -> str:
    """More backticks than the text has in a row."""
    return "`" * max([least, *(len(run) + 1 for run in re.findall("`+", text))])


def escaped(text: str) -> str:
    """Text as one line, escaped so that it reads the same in a paragraph, a heading and a table cell."""
    # Entities first: a backslash does not stop HTML in every renderer.
    return _SPECIAL.sub(r"\\\g<0>", escape(_part(text), quote=False))


def _said(text: Text, width: int) -> str:
    if not width:
        return "".join(map(_markdown_span, _spans(text))).strip()
    return textwrap.fill(one_line(plain(text)), width, break_long_words=False, break_on_hyphens=False)


def _markdown_span(span: Span) -> str:
    match span:
        case Word(text, style) if text and style != "passed":
            return f"**{escaped(text)}**"
        case Link(text, to) if not to.startswith("#"):
            return f"[{escaped(text)}]({quote(to, errors='replace')})"
        case Code(text):
            line, fence = one_line(text), _fence(text, 1)
            return f"{fence} {line} {fence}" if "`" in line else f"{fence}{line}{fence}"
        case _:
            return escaped(plain(span))


def _markdown_table(block: Table) -> str:
    rows = [[_said(cell, 0) for cell in row] for row in block.rows[:_MOST_ROWS]]
    if not any(block.titles):
        return "\n".join(f"- {': '.join(row)}" for row in rows)
    marks = ["---" + ":" * (at >= block.names) for at, _ in enumerate(block.titles)]
    return "\n".join(f"| {' | '.join(row)} |" for row in ([*map(escaped, block.titles)], marks, *rows))


def _notes(block: Table) -> Items:
    """Notes, each with the names of its rows."""
    notes = list[list[Block]]()
    for rows, note in _parts(block):
        if lines := [line for line in (*note.lines, *note.evidence) if line]:
            names = first_few([plain(row[0]) for row in rows], 2, "; ")
            notes.append([Line((f"{names}: ", *_spans(lines[0]))), bullets(lines[1:])])
    return Items(notes[:_MOST_ROWS])


def _text_table(block: Table, width: int) -> Iterator[str]:
    """Columns as wide as their widest cell; if that is too wide, the last is cut, or a number, a line for each cell."""
    titles, *others = [[*map(_text_cell, row)] for row in (block.titles, *block.rows)]
    rows = [titles, *others] if any(titles) else others
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    over = max(sum(widths) + len(_GAP) * (len(widths) - 1) - width, 0)
    if over and (block.names < len(titles) or widths[-1] - over < max(len(titles[-1]), 1)):
        for name, *cells in others:
            yield name
            named = zip(titles[1:], cells, strict=True)
            yield from (f"{_GAP}{title}: {cell}" for title, cell in named if cell.strip("—–"))
        return
    widths[-1] -= over
    signs = [">" if at >= block.names else "<" for at, _ in enumerate(titles)]
    for row in rows:
        aligned = zip(row, signs, widths, strict=True)
        yield _GAP.join(f"{shorten(cell, wide, has_end=False):{sign}{wide}}" for cell, sign, wide in aligned).rstrip()


def _text_cell(cell: Text) -> str:
    """A cell as one line; spaces stay, as they may align a part of it."""
    text = plain(cell)
    return text if text.isprintable() else one_line(text)


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
