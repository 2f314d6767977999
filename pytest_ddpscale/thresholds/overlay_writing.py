"""Edits a site's overlay of thresholds.yaml in place.

YAML's marks give the position of each value in the text, and only those characters are replaced or inserted. So
comments, quotes, line breaks and columns stay as typed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.thresholds.composing import UNREADABLE
from pytest_ddpscale.thresholds.flow_style import WIDTH, flow, flow_lines, scalar

SCHEMA_VERSION = 2
_HEAD = f"schema_version: {SCHEMA_VERSION}\nextends: packaged\n"
_BLOCK_LEVELS = 2  # below `skus`, SKUs and their keys get their own lines, deeper levels do not
_STEP = 2  # columns of indentation per level


@dataclass(frozen=True)
class OverlayChanges:
    """Changes to write into an overlay.

    Attributes:
        sources: text of each source, by name.
        batch: ``per_gpu`` and ``global`` of workloads, by the workload's name.
        requirements: rows as in the file: the first key is the metric, with values by world size.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    batch: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    requirements: Sequence[Mapping[str, Any]] = ()


def overlay_with(text: str, sku: str, changes: OverlayChanges) -> str:
    """The new text of an overlay.

    Rows for the same metric, subject, placement and reference SKU are replaced for the given world sizes; their other
    world sizes stay. Comments of a replaced row are moved above its successor.

    Args:
        text: the overlay; empty for a new one, which extends the packaged file.
        sku: canonical name of the SKU to change.
        changes: the changes.

    Raises:
        ThresholdsError: the text is not YAML, has another form, or has aliases, which stand for text elsewhere.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    text = text.replace("\r\n", "\n")
    if _root(text) is None:
        text += "" if not text or text.endswith("\n") else "\n"
        text += _HEAD
    for name, source in changes.sources.items():
        text = _with_entry(text, ("sources", name), source)
    for workload, batch in changes.batch.items():
        for key, number in batch.items():
            text = _with_entry(text, ("skus", sku, "batch", workload, key), number)
    if changes.requirements:
        text = _with_rows(text, sku, changes.requirements)
    _root(text)  # raises if it is no longer readable
    return text.replace("\n", newline)


def _root(text: str) -> yaml.MappingNode | None:
    """The whole document, None if empty. Raises ThresholdsError if it cannot be edited."""
    try:
        has_aliases = any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, yaml.SafeLoader))
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _not_yaml(error) from None
    if root is None:
        return None
    if not isinstance(root, yaml.MappingNode):
        raise ThresholdsError("the overlay", "is not a mapping", "`schema_version: 2` and `skus:`")
    if has_aliases:
        raise ThresholdsError("the overlay", "has YAML aliases (*name)", "each value written out where it stands")
    version = _child(root, "schema_version")
    if version is not None and version.value != str(SCHEMA_VERSION):
        raise ThresholdsError("the overlay", f"has schema_version {version.value}", f"schema_version {SCHEMA_VERSION}")
    return root


# Positions.


def _entries(node: yaml.Node) -> list[tuple[yaml.Node, yaml.Node]]:
    return list(node.value) if isinstance(node, yaml.MappingNode) else []


def _child(node: yaml.Node, key: object) -> yaml.Node | None:
    return next((value for name, value in _entries(node) if name.value == str(key)), None)


def _start(node: yaml.Node) -> int:
    return int(node.start_mark.index)


def _end(node: yaml.Node) -> int:
    """Position of the last character; a block's own end mark is behind the comments that follow it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _end_in(text: str, node: yaml.Node) -> int:
    """`_end` without the trailing newlines of a block scalar."""
    return _start(node) + len(text[_start(node) : _end(node)].rstrip())


def _is_nothing(node: yaml.Node) -> bool:
    if isinstance(node, yaml.CollectionNode):
        return not node.value
    return bool(node.tag == "tag:yaml.org,2002:null")


def _is_flow(node: yaml.Node) -> bool:
    return isinstance(node, yaml.CollectionNode) and bool(node.flow_style)


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _value_of(node: yaml.Node) -> Any:
    try:
        return yaml.constructor.SafeConstructor().construct_object(node, deep=True)
    except (yaml.YAMLError, *UNREADABLE) as error:
        raise _not_yaml(error) from None


def _not_yaml(error: Exception) -> ThresholdsError:
    problem = " ".join(str(error).split())
    return ThresholdsError("the overlay", f"is not valid YAML ({problem})", "YAML 1.1")


# Edits.


@dataclass(frozen=True)
class _Edit:
    """Replace characters `start` … `end`."""

    start: int
    end: int
    new: str


def _edited(text: str, edits: Iterable[_Edit]) -> str:
    in_order = sorted(edits, key=lambda edit: (edit.start, edit.end))
    for edit in in_order[::-1]:
        text = text[: edit.start] + edit.new + text[edit.end :]
    return text


def _with_entry(text: str, path: tuple[str, ...], value: object) -> str:
    """The text with a value set at a path of keys, replaced or added."""
    node: yaml.Node | None = _root(text)
    is_in_flow = False
    for depth, key in enumerate(path):
        assert node is not None
        below = _child(node, key)
        if below is None:
            return _edited(text, [_added(text, node, path, depth, value)])
        is_in_flow = is_in_flow or _is_flow(node)
        if _is_nothing(below) and (depth + 1 < len(path) or isinstance(value, list)):
            return _edited(text, _filled(text, node, below, path, depth + 1, value, is_in_flow))
        node = below
    assert node is not None
    if _value_of(node) == value:
        return text
    start = _start(node)
    column = start - _line_start(text, start)
    indent = node.start_mark.column if is_in_flow else _column_of_key(text, start) + _STEP
    return _edited(text, [_Edit(start, _end_in(text, node), flow_lines("", value, indent, column))])


def _column_of_key(text: str, at: int) -> int:
    line = text[_line_start(text, at) : at]
    return len(line) - len(line.lstrip())


def _added(text: str, node: yaml.Node, path: tuple[str, ...], depth: int, value: object) -> _Edit:
    """A new entry after the last one of a non-empty mapping."""
    if not isinstance(node, yaml.MappingNode) or not node.value:
        where = ".".join(path[:depth])
        raise ThresholdsError("the overlay", f"{where} is not a mapping", f"`{path[depth]}:` and others below it")
    last, first_key = _end_in(text, node.value[-1][1]), node.value[0][0].start_mark.column
    if _is_flow(node):
        entry = {path[depth]: _nested(path[depth + 1 :], value)}
        column = last - _line_start(text, last)
        whole, *rest = flow_lines("", entry, first_key + _STEP, first_key).split("\n")
        inline = flow(entry)[1:-1]
        if depth > 1 and column + len(inline) + 3 <= WIDTH:
            return _Edit(last, last, f", {inline}")
        unbraced = "\n".join([whole, *rest])[1:-1]
        return _Edit(last, last, f",\n{' ' * first_key}{unbraced}")
    lines = _entry_lines(path, depth, value, first_key)
    end = _line_end(text, last)
    return _Edit(end, end, "\n" + "\n".join(lines))


def _filled(
    text: str, parent: yaml.Node, nothing: yaml.Node, path: tuple[str, ...], depth: int, value: Any, is_in_flow: bool
) -> list[_Edit]:
    """The first entry of an empty mapping or list."""
    key = next(name for name, one in _entries(parent) if one is nothing)
    after_colon = text.index(":", int(key.end_mark.index)) + 1
    end = max(_end(nothing), after_colon)
    if is_in_flow:
        return [_Edit(after_colon, end, " " + flow(_nested(path[depth:], value)))]
    lines = _entry_lines(path, depth, value, key.start_mark.column + _STEP)
    line_end = _line_end(text, end)
    return [_Edit(after_colon, end, ""), _Edit(line_end, line_end, "\n" + "\n".join(lines))]


def _nested(path: Sequence[str], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _entry_lines(path: tuple[str, ...], depth: int, value: Any, indent: int) -> list[str]:
    """Lines of a value at a path from `depth` on; of rows if the path ends there."""
    if depth == len(path):
        return _row_lines(value, indent)
    before, key = " " * indent, scalar(path[depth])
    rest = path[depth + 1 :]
    if isinstance(value, list) or (rest and path[0] == "skus" and depth < _BLOCK_LEVELS):
        return [f"{before}{key}:", *_entry_lines(path, depth + 1, value, indent + _STEP)]
    return flow_lines(f"{before}{key}: ", _nested(rest, value), indent + _STEP).split("\n")


def _row_lines(rows: Iterable[Mapping[str, Any]], indent: int) -> list[str]:
    lines: list[str] = []
    for row in rows:
        lines += flow_lines(" " * indent + "- ", row, indent + _STEP + 1).split("\n")
    return lines


# Rows of requirements.

_Identity = tuple[str, str, str, str]


def _metric_of(row: Mapping[str, Any]) -> str:
    return next((key for key in row if key in METRICS), "")


def _identity(row: Mapping[str, Any]) -> _Identity:
    subject = next((str(row[key]) for key in ("of", "probe", "check") if row.get(key)), "")
    return _metric_of(row), subject, str(row.get("placement", "packed")), str(row.get("versus"))


def _sizes(row: Mapping[str, Any]) -> set[str]:
    """World sizes of a row; an empty text stands for a row without world sizes."""
    values = row[_metric_of(row)]
    return {str(size) for size in values} if isinstance(values, Mapping) else {""}


def _with_rows(text: str, sku: str, rows: Sequence[Mapping[str, Any]]) -> str:
    path = ("skus", sku, "requirements")
    node = _find(_root(text), path)
    if node is None or _is_nothing(node):
        return _with_entry(text, path, [dict(row) for row in rows])
    if not isinstance(node, yaml.SequenceNode):
        raise ThresholdsError("the overlay", f"skus.{sku}.requirements is not a list", "a list of rows")
    by_identity: dict[_Identity, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_identity.setdefault(_identity(row), []).append(row)
    edits: list[_Edit] = []
    unplaced: list[Mapping[str, Any]] = []
    for identity, theirs in by_identity.items():
        found, is_placed = _replaced(text, node, identity, theirs)
        edits += found
        unplaced += [] if is_placed else theirs
    if unplaced:
        edits.append(_inserted(text, node, node.value[-1], unplaced))
    return _edited(text, edits)


def _find(node: yaml.Node | None, path: Iterable[str]) -> yaml.Node | None:
    for key in path:
        node = None if node is None else _child(node, key)
    return node


def _replaced(
    text: str, rows: yaml.SequenceNode, identity: _Identity, new: Sequence[Mapping[str, Any]]
) -> tuple[list[_Edit], bool]:
    """Edits that replace old rows by new ones, and whether a place for the new ones was found."""
    given = {size for row in new for size in _sizes(row)}
    edits: list[_Edit] = []
    is_placed, last_alike = False, None
    for item in rows.value:
        row = _value_of(item)
        if not isinstance(row, Mapping) or not _metric_of(row) or _identity(row) != identity:
            continue
        last_alike = item
        said = _sizes(row)
        if not said <= given:
            edits += _without_sizes(text, item, _metric_of(row), said & given)
        elif is_placed:
            edits.append(_removed(text, rows, item))
        else:
            edits += [] if [row] == [*new] else _in_place_of(text, rows, item, new)
            is_placed = True
    if not is_placed and last_alike is not None:
        edits.append(_inserted(text, rows, last_alike, new))
    return edits, last_alike is not None


def _in_place_of(
    text: str, rows: yaml.SequenceNode, item: yaml.Node, new: Sequence[Mapping[str, Any]]
) -> list[_Edit]:  # fmt: skip
    start, end = _start(item), _end_in(text, item)
    column = int(item.start_mark.column)
    written = flow_lines("", new[0], column + 1, column)
    edits = [_Edit(start, end, written), *_comments_above(text, item, [(start, end)])]
    if len(new) > 1:
        edits.append(_inserted(text, rows, item, new[1:]))
    return edits


def _inserted(text: str, rows: yaml.SequenceNode, after: yaml.Node, new: Sequence[Mapping[str, Any]]) -> _Edit:
    end, column = _end_in(text, after), int(rows.value[0].start_mark.column)
    if _is_flow(rows):
        lines = [flow_lines("", row, column + 1, column) for row in new]
        return _Edit(end, end, "".join(f",\n{' ' * column}{line}" for line in lines))
    at = _line_end(text, end)
    return _Edit(at, at, "\n" + "\n".join(_row_lines(new, int(rows.start_mark.column))))


def _removed(text: str, rows: yaml.SequenceNode, item: yaml.Node) -> _Edit:
    """Remove a row that is not the first one, but keep its comments."""
    start, end = _start(item), _end_in(text, item)
    if _is_flow(rows):
        before = rows.value[rows.value.index(item) - 1]
        return _Edit(_end_in(text, before), end, "")
    line_start, line_end = _line_start(text, start), _line_end(text, end)
    kept = _comment_lines(text, [(start, line_end)], int(rows.start_mark.column))
    return _Edit(line_start, min(line_end + 1, len(text)), kept)


def _without_sizes(text: str, item: yaml.Node, metric: str, sizes: set[str]) -> list[_Edit]:
    """Remove some of a row's world sizes; at least one stays."""
    values = _child(item, metric)
    assert values is not None
    entries = _entries(values)
    kept = [number for number, (key, _) in enumerate(entries) if key.value not in sizes]
    gone = [number for number in range(len(entries)) if number not in kept]
    if not _is_flow(values):
        lines = [(_line_start(text, _start(entries[n][0])), _line_end(text, _end(entries[n][1]))) for n in gone]
        column = int(values.start_mark.column)
        return [_Edit(at, min(end + 1, len(text)), _comment_lines(text, [(at, end)], column)) for at, end in lines]
    edits = [_Edit(_start(entries[n][0]), _start(entries[n + 1][0]), "") for n in gone if n < kept[-1]]
    if gone and gone[-1] > kept[-1]:
        edits.append(_Edit(_end(entries[kept[-1]][1]), _end(entries[-1][1]), ""))
    return [*edits, *_comments_above(text, item, [(edit.start, edit.end) for edit in edits])]


def _comments_above(text: str, item: yaml.Node, spans: Sequence[tuple[int, int]]) -> list[_Edit]:
    """Move comments of replaced text to lines above its row."""
    line = _line_start(text, _start(item))
    lines = _comment_lines(text, spans, max(0, int(item.start_mark.column) - _STEP))
    return [_Edit(line, line, lines)] if lines else []


def _comment_lines(text: str, spans: Sequence[tuple[int, int]], column: int) -> str:
    found = [comment for start, end in spans for comment in _comments(text, start, end)]
    return "".join(f"{' ' * column}{comment}\n" for comment in found)


def _comments(text: str, start: int, end: int) -> list[str]:
    """Comments between two positions, each with its #."""
    if "#" not in text[start:end]:
        return []
    found, at = [], 0
    for token in yaml.scan(text, yaml.SafeLoader):
        between = text[at : token.start_mark.index]
        for line in between.splitlines(keepends=True):
            position = at + line.find("#")
            if "#" in line and start <= position < end:
                found.append(line[line.index("#") :].rstrip())
            at += len(line)
        at = max(at, int(token.end_mark.index))
    return found
