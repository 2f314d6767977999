"""Names and their numbers: counted, shortened for a sentence, in order."""

from __future__ import annotations

import re
from collections.abc import Sequence


def first_few(names: Sequence[str], most: int = 3, separator: str = ", ", count: int | None = None) -> str:
    """The first `most` names and the number of others: ``n1, n2, n3 and 9 more``; `count` is the total, if larger."""
    shown = names[:most]
    others = (len(names) if count is None else count) - len(shown)
    return separator.join(shown) + (f" and {others} more" if shown and others > 0 else "")


def by_number(name: str) -> list[tuple[int, str]]:
    """Sort key that puts node2 before node10."""
    parts = (part.lstrip("0") if i % 2 else part for i, part in enumerate(re.split(r"(\d+)", name)))
    return [(len(part) if i % 2 else 0, part) for i, part in enumerate(parts)]


def count_text(number: int, noun: str, plural: str = "") -> str:
    """``1 host``, ``2 hosts``; `plural` if it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def shorten(text: str, width: int) -> str:
    """At most `width` characters of `text`: its beginning and end, which distinguish names."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: max(width - 1 - tail, 0)]}…{text[len(text) - tail :]}"
