"""An HTML page as lines of text, rows of tables as Markdown has them, to be asked what it says."""

from __future__ import annotations

from html.parser import HTMLParser

_LINES = {"p", "li", "h1", "h2", "h3", "h4", "dt", "dd", "caption", "pre", "title"}
_CELLS = {"td", "th"}


def page_text(page: str) -> str:
    """What a reader sees of the page, without styles and scripts: a line for each paragraph and row."""
    parser = _Text()
    parser.feed(page)
    return "\n".join(parser.lines) + "\n"


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._cells: list[str] = []
        self._now: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in ("style", "script", "svg", "sup")
        if tag in _LINES | _CELLS:
            self._now = []
        if tag == "tr":
            self._cells = []
        if tag == "small":
            self._now.append("\t")  # what stands below the cell's content

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("style", "script", "svg", "sup")
        said = "".join(self._now)
        if tag in _CELLS:
            cell, *below = said.split("\t")
            self._cells.append(" ".join(cell.split()))
            self.lines += [" ".join(line.split()) for line in below]
        elif tag == "tr":
            self.lines.append(f"| {' | '.join(self._cells)} |")
        elif tag in _LINES and said.strip():
            self.lines.append(" ".join(said.split()))

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._now.append(data)
