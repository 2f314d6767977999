"""Lists of names: shortened for a sentence, ordered by their numbers."""

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
