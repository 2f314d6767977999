"""The navigation of mkdocs.yml, with each folder in it replaced by its pages.

A new page in such a folder needs no change of mkdocs.yml; a page without an entry fails the build.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def expanded(nav: Sequence[Any], pages: Sequence[str]) -> list[Any]:
    """The navigation with the pages of a folder in place of ``folder/``.

    Args:
        nav: as MkDocs reads it: paths, and mappings of one title to a path or a list.
        pages: paths of all pages, from the folder of the documents.

    Raises:
        ValueError: a folder has no pages.
    """
    return [entry for one in nav for entry in _entries(one, pages)]


def _entries(entry: Any, pages: Sequence[str]) -> list[Any]:
    if isinstance(entry, dict):
        ((title, inner),) = entry.items()
        is_list = isinstance(inner, list) or inner.endswith("/")
        return [{title: expanded([inner] if isinstance(inner, str) else inner, pages) if is_list else inner}]
    return _pages_of(entry, pages) if entry.endswith("/") else [entry]


def _pages_of(folder: str, pages: Sequence[str]) -> list[str]:
    """Pages of a folder, its README first. Pages of subfolders need their own entry."""
    found = [page for page in pages if page.startswith(folder) and "/" not in page.removeprefix(folder)]
    if not found:
        raise ValueError(f"mkdocs.yml: nav: {folder} has no pages; expected some, or no such entry")
    return sorted(found, key=lambda page: (not page.endswith("/README.md"), page))


def pages_in(nav: Sequence[Any]) -> Iterator[str]:
    """All paths in a navigation."""
    for entry in nav:
        inner = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(inner, str):
            yield inner
        else:
            yield from pages_in(inner)
