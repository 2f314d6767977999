"""CHANGELOG.md with one sentence per line, written by `python -m docs_pages.changelog`.

A change is a list item; its further sentences are lines below it, so a diff shows whole sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"
# A full stop after a word, a figure or a closing mark, then the beginning of another sentence.
_BETWEEN = re.compile(r"(?<=[\w)`\"%…])\. (?=[A-Z`\"\-]|docs/|report\.|acceptance/|junit|run\.json|verdicts)")


def one_sentence_a_line(text: str) -> str:
    """The same text with one sentence per line in its lists; headings and paragraphs are unchanged."""
    return "\n".join(_lines(text)).rstrip() + "\n"


def _lines(text: str) -> Iterator[str]:
    item: list[str] = []
    for line in [*text.splitlines(), ""]:
        if item and line.startswith("  "):
            item.append(line.strip())
            continue
        yield from _sentences(item)
        item = [line[2:]] if line.startswith("- ") else []
        if not item:
            yield line


def _sentences(item: list[str]) -> Iterator[str]:
    first, *others = _BETWEEN.split(" ".join(item)) if item else [""]
    if not first:
        return
    sentences = [first, *others]
    for i, sentence in enumerate(sentences):
        yield ("  " if i else "- ") + sentence + ("." if i < len(sentences) - 1 else "")


if __name__ == "__main__":
    CHANGELOG.write_text(one_sentence_a_line(CHANGELOG.read_text(encoding="utf-8")), encoding="utf-8")
