"""Reading thresholds.yaml: duplicate keys refused, and every complaint with its line."""

from __future__ import annotations

import difflib
import hashlib
import re
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pytest_ddpscale.errors import SkuError, ThresholdsError
from pytest_ddpscale.thresholds.composing import UNREADABLE, composed
from pytest_ddpscale.thresholds.consistency import contradictions
from pytest_ddpscale.thresholds.model import Thresholds

YamlPath = tuple[str | int, ...]
_NEWLINE = "\n"
LARGEST_FILE_BYTES = 400 * 1024  # twice the packaged file; reading so much takes about a second
_CHECK = "Then run `ddpscale thresholds check {file}`."
_NUMBER_TAGS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
# A whole number that starts with 0 is octal to YAML 1.1; 0, 0.5, .5, .nan and 1.0e+3 are as they look.
_AS_IT_LOOKS = re.compile(r"[-+]?((0|[1-9][0-9]*)|[0-9]*\.[0-9]*([eE][-+]?[0-9]+)?|\.(inf|nan))", re.IGNORECASE)


@dataclass(frozen=True)
class ThresholdsFile:
    """A valid thresholds file and what it takes to point into it.

    Attributes:
        path: the file.
        sha256: of its bytes: a run records which thresholds judged it.
        thresholds: its content.
        lines: line number (from 1) of every mapping entry and list item, by path.
    """

    path: Path
    sha256: str
    thresholds: Thresholds
    lines: dict[YamlPath, int]

    def where(self, *path: str | int) -> str:
        """``file:line`` of the nearest known ancestor of `path`."""
        return f"{self.path}:{nearest_line(self.lines, path)}"

    def sku_name(self, asked: str, where: str = "--gpu-sku") -> str:
        """The canonical name of the SKU asked for.

        Args:
            asked: a name or alias.
            where: who asked, for the message.

        Raises:
            SkuError: there is none; the message has the nearest name.
        """
        name = self.thresholds.canonical_name(asked)
        if name is not None:
            return name
        known = [*self.thresholds.skus, *(a for sku in self.thresholds.skus.values() for a in sku.aliases)]
        near = difflib.get_close_matches(asked.lower(), known, n=1, cutoff=0.4)
        hint = f"Did you mean --gpu-sku={near[0]}?" if near else ""
        raise SkuError(where, f"{self.path} has no SKU {asked!r}", f"one of {', '.join(sorted(known))}", hint)


def load_thresholds(path: Path) -> ThresholdsFile:
    """Read and check a thresholds file.

    Raises:
        ThresholdsError: it cannot be read, is not YAML, has duplicate or unknown keys, or contradicts
            itself. The message has file:line, what was found, what was expected and what to do.
    """
    raw, text = _read(path)
    data, lines = _parse(path, text)
    try:
        thresholds = Thresholds.model_validate(data)
    except ValidationError as error:
        raise _first_violation(path, lines, error) from None
    found = contradictions(thresholds)
    if found:
        at, sentence = found[0]
        more = f" ({len(found) - 1} more like this)" if len(found) > 1 else ""
        where = f"{path}:{nearest_line(lines, at)}"
        raise ThresholdsError(where, f"{dotted(at)}: {sentence}{more}", "", _what_next(path))
    return ThresholdsFile(path, hashlib.sha256(raw).hexdigest(), thresholds, lines)


def nearest_line(lines: dict[YamlPath, int], path: YamlPath) -> int:
    """Line of `path`, or of the nearest ancestor that has one."""
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return 1


def dotted(path: YamlPath) -> str:
    """``skus.cpu.requirements[3].at_least``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.lstrip(".") or "the file"


def _read(path: Path) -> tuple[bytes, str]:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe or a terminal would wait for ever
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


def _parse(path: Path, text: str) -> tuple[Any, dict[YamlPath, int]]:
    try:
        node, constructor = composed(path, text)
        if node is None:
            raise ThresholdsError(f"{path}:1", "the file is empty", "`schema_version: 1` and `skus:`", _what_next(path))
        lines: dict[YamlPath, int] = {}
        _walk(path, node, (), lines)
        return constructor.construct_document(node), lines
    except yaml.reader.ReaderError as error:
        where = f"{path}:{text.count(_NEWLINE, 0, error.position) + 1}"
        found = f"not valid YAML (unprintable character 0x{error.character:02x})"
        raise ThresholdsError(where, found, "YAML 1.1", f"Mend that line. {_what_next(path)}") from None
    except yaml.YAMLError as error:
        raise _not_yaml(path, error) from None


def _walk(path: Path, node: yaml.Node, at: YamlPath, lines: dict[YamlPath, int]) -> None:
    """Record lines; refuse keys given twice and odd numbers, which libraries take in silence."""
    if isinstance(node, yaml.ScalarNode):
        _refuse_odd_number(path, node, at)
    if isinstance(node, yaml.SequenceNode):
        for i, child in enumerate(node.value):
            below = (*at, i)
            lines[below] = child.start_mark.line + 1
            _walk(path, child, below, lines)
    if isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, child in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                found = f"a key of {dotted(at)} is a list or a mapping"
                raise ThresholdsError(f"{path}:{line}", found, "text", f"Correct that key. {_what_next(path)}")
            _refuse_odd_number(path, key, at)
            name = str(key.value)
            if name in first:
                where = f"{path}:{line}"
                raise ThresholdsError(
                    where, f"key {name!r} is given twice in {dotted(at)}, first on line {first[name]}",
                    "each key once", "Remove one of them.",
                )  # fmt: skip
            first[name] = line
            below = (*at, name)
            lines[below] = line
            _walk(path, child, below, lines)


def _refuse_odd_number(path: Path, node: yaml.ScalarNode, at: YamlPath) -> None:
    """Refuse what is another number to YAML 1.1 than to its reader: 010 is 8, 1:30 is 90, 1_000 is 1000."""
    if node.tag in _NUMBER_TAGS and not _AS_IT_LOOKS.fullmatch(node.value):
        raise ThresholdsError(
            f"{path}:{node.start_mark.line + 1}",
            f"{dotted(at)} has {reprlib.repr(node.value)}, which YAML 1.1 {_reading(node)}",
            "a plain decimal number", f"Write it out, or in quotes if it is text. {_what_next(path)}",
        )  # fmt: skip


def _reading(node: yaml.ScalarNode) -> str:
    """What PyYAML makes of a number."""
    try:
        return f"reads as {yaml.constructor.SafeConstructor().construct_object(node)!s:.40}"
    except UNREADABLE:
        return "cannot read"


def _not_yaml(path: Path, error: yaml.YAMLError) -> ThresholdsError:
    mark = getattr(error, "problem_mark", None)
    where = f"{path}:{mark.line + 1}" if mark else str(path)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return ThresholdsError(where, f"not valid YAML ({problem})", "YAML 1.1", f"Mend that line. {_what_next(path)}")


def _first_violation(path: Path, lines: dict[YamlPath, int], error: ValidationError) -> ThresholdsError:
    errors = error.errors(include_url=False, include_context=False)
    first, rest = errors[0], len(errors) - 1
    at = tuple(first["loc"])
    more = f" ({rest} more like this)" if rest else ""
    where = f"{path}:{nearest_line(lines, at)}"
    found, expected, action = _explain(first["type"], at, first["msg"], first["input"])
    return ThresholdsError(where, found + more, expected, f"{action} {_what_next(path)}".strip())


def _explain(kind: str, at: YamlPath, message: str, value: Any) -> tuple[str, str, str]:
    """Pydantic's complaint as found, expected, action."""
    if kind in {"extra_forbidden", "unexpected_keyword_argument"}:
        return f"unknown key {dotted(at)}", "a key of the schema", "Remove it, or correct its spelling."
    if kind.startswith("missing"):
        return f"{dotted(at)} is missing", "a value", "Add it."
    if kind == "value_error":
        return f"{dotted(at)}: {message.removeprefix('Value error, ')}", "", "Correct that entry."
    if kind in {"int_type", "float_type"} and _looks_like_a_number(value):
        action = "Write it as a plain decimal number, without quotes: YAML 1.1 takes 1e3 and 08 for text."
        return f"{dotted(at)} is the text {value!r}", "a number", action
    shown = reprlib.repr(value) if isinstance(value, (list, dict)) else repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    expected = message.removeprefix("Input should be ").removeprefix("a valid ")
    return f"{dotted(at)} is {shown}", expected, "Correct that value."


def _looks_like_a_number(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True


def _what_next(path: Path) -> str:
    return _CHECK.format(file=path)
