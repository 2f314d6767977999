"""Writes values as YAML in flow style, broken into lines, like rows of thresholds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import yaml

WIDTH = 110
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./%+-]*( [A-Za-z0-9_./%+-]+)*")
_BETWEEN_WORDS = re.compile(r"(?<=[^ ]) (?=[^ ])")
_TEXT = "tag:yaml.org,2002:str"


def flow(value: Any) -> str:
    """A value on one line: ``{throughput_per_gpu: {1: 812.3}, of: resnet152-bf16, margin: 3.1 %}``."""
    return " ".join(_pieces(value))


def flow_lines(start: str, value: Any, indent: int, column: int = 0, width: int = WIDTH) -> str:
    """A value after a prefix, broken into lines of limited width.

    Args:
        start: prefix on the first line, such as ``- ``.
        value: numbers, texts, mappings and lists.
        indent: indentation of the other lines, in columns.
        column: column where the first line starts.
        width: largest width of a line; unbreakable pieces may exceed it.
    """
    first, *others = _pieces(value)
    lines, line, at = [], start + first, column
    for piece in others:
        if at + len(line) + 1 + len(piece) <= width:
            line += " " + piece
        else:
            lines.append(line)
            line, at = " " * indent + piece, 0
    return "\n".join([*lines, line])


def scalar(value: object) -> str:
    """A number or a text, quoted if any version of YAML would read it as something else."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        digits = f"{Decimal(repr(value)):f}"
        return digits if "." in digits else f"{digits}.0"
    if isinstance(value, int):
        return str(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and not _is_something_else(text):
        return text
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _pieces(value: Any) -> list[str]:
    """A value in pieces, which may be separated by a space or a line break."""
    if isinstance(value, Mapping):
        return _enclosed("{", [_entry(key, one) for key, one in value.items()], "}")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _enclosed("[", [_pieces(one) for one in value], "]")
    text = scalar(value)
    is_breakable = text.startswith("'") and isinstance(value, str) and value == value.strip()
    return _BETWEEN_WORDS.split(text) if is_breakable else [text]


def _entry(key: object, value: Any) -> list[str]:
    first, *others = _pieces(value)
    return [f"{scalar(key)}: {first}", *others]


def _enclosed(opening: str, parts: list[list[str]], closing: str) -> list[str]:
    for part in parts[:-1]:
        part[-1] += ","
    pieces = [piece for part in parts for piece in part] or [""]
    pieces[0] = opening + pieces[0]
    pieces[-1] += closing
    return pieces


def _is_something_else(text: str) -> bool:
    """Whether YAML would read a plain text as a number, boolean, null or date."""
    try:
        float(text)
    except ValueError:
        resolver: Any = yaml.resolver.Resolver()
        return bool(resolver.resolve(yaml.ScalarNode, text, (True, False)) != _TEXT)
    return True


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"
