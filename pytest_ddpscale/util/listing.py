"""Shorten a list for use in a sentence."""

from __future__ import annotations

from collections.abc import Sequence


def first_few(names: Sequence[str], most: int = 3, separator: str = ", ", count: int | None = None) -> str:
    """The first `most` names and the number of others: ``n1, n2, n3 and 9 more``; `count` is the total, if larger."""
    shown = names[:most]
    others = (len(names) if count is None else count) - len(shown)
    return separator.join(shown) + (f" and {others} more" if shown and others > 0 else "")
