"""Reads the YAML of one thresholds file: its content, the line of each entry, and duplicate keys."""

from __future__ import annotations

import hashlib
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from pytest_ddpscale.errors import ThresholdsError
from pytest_ddpscale.thresholds.composing import UNREADABLE, composed

YamlPath = tuple[str | int, ...]
_NEWLINE = "\n"
SECTIONS = ("sources", "reasons", "margins", "workloads", "families", "skus")
ROW_LISTS = ("requirements", "remove", "change")  # of a SKU
LARGEST_FILE_BYTES = 400 * 1024  # several times the packaged file; reading it takes about a second
_NUMBER_TAGS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_MERGE_TAG = "tag:yaml.org,2002:merge"
# Matches numbers that YAML 1.1 reads as they look: 0, 0.5, .5, .nan, 1.0e+3; a whole number starting with 0 is octal.
_AS_IT_LOOKS = re.compile(r"[-+]?((0|[1-9][0-9]*)|[0-9]*\.[0-9]*([eE][-+]?[0-9]+)?|\.(inf|nan))", re.IGNORECASE)


@dataclass(frozen=True)
class Layer:
    """One file as read, with line numbers.

    Attributes:
        path: the file.
        sha256: digest of its bytes.
        data: its content, unchecked.
        lines: line number (from 1) of every mapping entry and list item, by path.
        odd: problems that a YAML library accepts silently: duplicate keys, and numbers that it reads differently.
    """

    path: Path
    sha256: str
    data: Mapping[str, Any]
    lines: Mapping[YamlPath, int]
    odd: tuple[tuple[YamlPath, ThresholdsError], ...]

    def has(self, at: YamlPath) -> bool:
        """Whether the entry is in this file."""
        return at in self.lines

    def where(self, at: YamlPath) -> str:
        """``file:line`` of an entry, or of the nearest one above it."""
        known = (self.lines[at[:end]] for end in range(len(at), 0, -1) if at[:end] in self.lines)
        return f"{self.path}:{next(known, 1)}"

    def section(self, name: str) -> dict[str, Any]:
        """The entries of a top-level mapping; empty if it is missing.

        Raises:
            ThresholdsError: it is not a mapping.
        """
        found = self.data.get(name)
        if found is None and name not in self.data:
            return {}
        if not isinstance(found, dict):
            raise ThresholdsError(
                self.where((name,)), f"{name} is {shown(found)}", "a mapping", f"Correct it. {what_next(self.path)}"
            )
        return {str(key): value for key, value in found.items()}


def read_layer(path: Path) -> Layer:
    """Read one file.

    Raises:
        ThresholdsError: it cannot be read or is not YAML. The message has file:line, what was found, what was
            expected and what to do.
    """
    return _parsed(path, *_read(path))


@lru_cache(maxsize=8)  # one process reads a site's file and those that it extends several times
def _parsed(path: Path, raw: bytes, text: str) -> Layer:
    try:
        node, constructor = composed(path, text)
        if node is None:
            found, expected = "the file is empty", "`schema_version: 2` and `skus:`"
            raise ThresholdsError(f"{path}:1", found, expected, what_next(path))
        lines: dict[YamlPath, int] = {}
        odd: list[tuple[YamlPath, ThresholdsError]] = []
        _walk(path, node, (), lines, odd)
        data = constructor.construct_document(node)
    except yaml.reader.ReaderError as error:
        where = f"{path}:{text.count(_NEWLINE, 0, error.position) + 1}"
        found = f"not valid YAML (unprintable character 0x{error.character:02x})"
        raise ThresholdsError(where, found, "YAML 1.1", f"Fix that line. {what_next(path)}") from None
    except yaml.YAMLError as error:
        raise _not_yaml(path, error) from None
    if not isinstance(data, dict):
        raise ThresholdsError(f"{path}:1", f"the file is {shown(data)}", "a mapping with `skus:`", what_next(path))
    if "extends" in data:
        data = _with_empty_sections(data)
    return Layer(path, hashlib.sha256(raw).hexdigest(), data, lines, tuple(odd))


def _with_empty_sections(data: dict[str, Any]) -> dict[str, Any]:
    """Make sections with only comments empty mappings or lists; a file that extends another may have such sections."""
    filled = {key: {} if value is None and key in SECTIONS else value for key, value in data.items()}
    skus = filled.get("skus")
    if isinstance(skus, dict):
        filled["skus"] = {name: _with_empty_lists(sku) for name, sku in skus.items()}
    return filled


def _with_empty_lists(sku: Any) -> Any:
    if not isinstance(sku, dict):
        return {} if sku is None else sku
    return {key: [] if value is None and key in ROW_LISTS else value for key, value in sku.items()}


def dotted(path: YamlPath) -> str:
    """``skus.cpu.requirements[3].margin``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.lstrip(".") or "the file"


def shown(value: Any) -> str:
    """A value for a message, shortened."""
    text = reprlib.repr(value) if isinstance(value, (list, dict)) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def what_next(path: Path) -> str:
    """What to do after correcting a file."""
    return f"Then run `ddpscale thresholds check {path}`."


def _read(path: Path) -> tuple[bytes, str]:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe or a terminal would hang
            raise ThresholdsError(str(path), "is a device or a pipe", "a YAML file", "Check --thresholds.")
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise ThresholdsError(str(path), f"cannot be read ({error})", "a YAML file", "Check --thresholds.") from None
    if len(raw) > LARGEST_FILE_BYTES:
        found, expected = f"is larger than {LARGEST_FILE_BYTES // 1024} KiB", "a thresholds file, which is smaller"
        raise ThresholdsError(f"{path}:1", found, expected, "Check --thresholds.")
    try:
        return raw, raw.decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"{path}:{raw.count(_NEWLINE.encode(), 0, error.start) + 1}"
        found = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise ThresholdsError(where, found, "a UTF-8 YAML file", "Save the file as UTF-8.") from None


def _walk(
    path: Path,
    node: yaml.Node,
    at: YamlPath,
    lines: dict[YamlPath, int],
    odd: list[tuple[YamlPath, ThresholdsError]],
) -> None:
    """Record lines, duplicate keys and misleading numbers."""
    if isinstance(node, yaml.ScalarNode):
        odd += _odd_number(path, node, at)
    if isinstance(node, yaml.SequenceNode):
        for i, child in enumerate(node.value):
            below = (*at, i)
            lines[below] = child.start_mark.line + 1
            _walk(path, child, below, lines, odd)
    if isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, child in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                found = f"a key of {dotted(at)} is a list or a mapping"
                raise ThresholdsError(f"{path}:{line}", found, "text", f"Correct that key. {what_next(path)}")
            if key.tag == _MERGE_TAG:
                found = f"{dotted(at)} has a YAML merge key, `<<`"
                raise ThresholdsError(f"{path}:{line}", found, "each key written out", what_next(path))
            name = str(key.value)
            below = (*at, name)
            odd += _odd_number(path, key, at)
            if name in first:
                found = f"key {name!r} is given twice in {dotted(at)}, first on line {first[name]}"
                odd.append((below, ThresholdsError(f"{path}:{line}", found, "each key once", "Remove one of them.")))
            first[name] = lines[below] = line
            _walk(path, child, below, lines, odd)


def _odd_number(path: Path, node: yaml.ScalarNode, at: YamlPath) -> list[tuple[YamlPath, ThresholdsError]]:
    """A number that YAML 1.1 reads differently than a person: 010 is 8, 1:30 is 90, 1_000 is 1000."""
    if node.tag not in _NUMBER_TAGS or _AS_IT_LOOKS.fullmatch(node.value):
        return []
    where = f"{path}:{node.start_mark.line + 1}"
    reading = _reading(node)
    if reading is None:
        node.tag = "tag:yaml.org,2002:str"  # lets the rest of the file be read
    instead = "cannot read" if reading is None else f"reads as {reading}"
    found = f"{dotted(at)} has {reprlib.repr(node.value)}, which YAML 1.1 {instead}"
    action = f"Write it as a plain number, or in quotes if it is text. {what_next(path)}"
    return [(at, ThresholdsError(where, found, "a plain decimal number", action))]


def _reading(node: yaml.ScalarNode) -> str | None:
    """PyYAML's reading of a number; None if it cannot read it."""
    try:
        return f"{yaml.constructor.SafeConstructor().construct_object(node)!s:.40}"
    except UNREADABLE:
        return None


def _not_yaml(path: Path, error: yaml.YAMLError) -> ThresholdsError:
    mark = getattr(error, "problem_mark", None)
    where = f"{path}:{mark.line + 1}" if mark else str(path)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return ThresholdsError(where, f"not valid YAML ({problem})", "YAML 1.1", f"Fix that line. {what_next(path)}")
