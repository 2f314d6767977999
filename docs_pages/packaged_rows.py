"""The text of rows and entries of the packaged thresholds.yaml, for examples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import yaml


class Entry(NamedTuple):
    """One key with its value: the names of the keys above it and of itself, and the text."""

    path: tuple[str, ...]
    text: str


def rows(file: Path) -> Iterator[Entry]:
    """Every row below `families` and `requirements`, with the path of its list."""
    text, top = _composed(file)
    for key, value in top.value:
        if key.value == "families":
            for name, listed in value.value:
                yield from _rows_of(text, ("families", name.value), listed)
        if key.value == "skus":
            for name, sku in value.value:
                for inner, listed in sku.value:
                    if inner.value == "requirements":
                        yield from _rows_of(text, ("skus", name.value, inner.value), listed)


def entries(file: Path) -> Iterator[Entry]:
    """Every key of every mapping, from the top down."""
    text, top = _composed(file)
    yield from _entries_of(text, (), top)


def _composed(file: Path) -> tuple[str, yaml.MappingNode]:
    text = file.read_text(encoding="utf-8")
    top = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(top, yaml.MappingNode)
    return text, top


def _rows_of(text: str, path: tuple[str, ...], listed: yaml.Node) -> Iterator[Entry]:
    for row in listed.value:
        yield Entry(path, "- " + _text_of(text, row, row))


def _entries_of(text: str, path: tuple[str, ...], node: yaml.Node) -> Iterator[Entry]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            yield Entry(here, _text_of(text, key, value))
            yield from _entries_of(text, here, value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _entries_of(text, (*path, "-"), item)


def _text_of(text: str, first: yaml.Node, last: yaml.Node) -> str:
    """From one node to the end of another, moved to the left edge, without the file's comments after it."""
    start, end = first.start_mark, last.end_mark
    moved = dedent(" " * start.column + text[start.index : end.index])
    return "\n".join(line for line in moved.splitlines() if line.strip() and not line.lstrip().startswith("#"))
