"""An HTML page as lines of text, rows of tables as Markdown has them, to be asked what it says."""

from __future__ import annotations

from html.parser import HTMLParser

_LINES = {"p", "li", "h1", "h2", "h3", "h4", "dt", "dd", "caption", "pre", "title", "summary"}
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
        self._now = ""
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in ("style", "script")
        if tag in _LINES | _CELLS:
            self._end_line()
        if tag == "tr":
            self._cells = []

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("style", "script")
        if tag in _CELLS:
            self._cells.append(" ".join(self._now.split()))
            self._now = ""
        elif tag == "tr" and any(self._cells):
            self.lines.append(f"| {' | '.join(self._cells)} |")
        elif tag in _LINES:
            self._end_line()

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._now += data

    def _end_line(self) -> None:
        """Paragraphs have lines of their own, in a cell too."""
        if self._now.strip():
            self.lines.append(" ".join(self._now.split()))
        self._now = ""
