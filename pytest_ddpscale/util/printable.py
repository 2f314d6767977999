"""Text of unknown origin, made harmless for a terminal and for reports.

Escape sequences could hide or rewrite lines of a report, a line feed could add one, and marks of direction show text
in another order than it has.
"""

from __future__ import annotations

import json
import shlex
import unicodedata
from collections.abc import Iterable
from typing import Any

# Keys of texts that may have several lines: errors with their stacks, output of a command.
SEVERAL_LINES = frozenset(
    {"message", "reason", "reasons", "problem", "problems", "evidence", "notes", "topology", "lines",
     "nccl", "driver_problem", "torch_problem", "cuda_problem", "unread", "numa_note",
     "left_out"}
)  # fmt: skip
_REPLACED = {"Cs": "\N{REPLACEMENT CHARACTER}", "Cn": "\N{REPLACEMENT CHARACTER}", "Cc": "", "Cf": ""}  # by category


def printable(text: str, *, has_lines: bool = False) -> str:
    """A text in which control characters, marks of direction and other invisible characters are escaped, ``\\x1b``.

    Args:
        has_lines: whether it may have several lines, ended by ``\\n`` or ``\\r\\n``, and tabs.
    """
    if text.isprintable():
        return text
    kept, text = ("\n\t", text.replace("\r\n", "\n")) if has_lines else ("", text)
    return "".join(
        character
        if character.isprintable() or character in kept or unicodedata.category(character) == "Zs"
        else repr(character)[1:-1]
        for character in text
    )


def one_line(text: str) -> str:
    """Text from any source as one harmless line.

    White space becomes single spaces. Control and format characters, which move a cursor or change the direction of
    text, are dropped; characters that encodings or XML parsers reject become U+FFFD.
    """
    if text.isascii() and text.isprintable():
        return " ".join(text.split())
    harmless = (
        " " if character.isspace() else _REPLACED.get(unicodedata.category(character), character) for character in text
    )
    return " ".join("".join(harmless).split())


def shell_line(words: Iterable[str]) -> str:
    """Words as a command to paste, in one harmless line."""
    return shlex.join(map(one_line, words))


def printable_json(data: Any, key: str = "") -> Any:
    """JSON with all of its texts and keys `printable`.

    Args:
        data: parsed.
        key: of the entry that holds it, which tells whether a text may have several lines.
    """
    if isinstance(data, str):
        return printable(data, has_lines=key in SEVERAL_LINES)
    if isinstance(data, list):
        return [printable_json(item, key) for item in data]
    if isinstance(data, dict):
        outer = key in SEVERAL_LINES  # reasons by host or by reading
        return {printable(name): printable_json(value, key if outer else name) for name, value in data.items()}
    return data


def printable_line(line: bytes) -> bytes:
    """A line of JSON with all of its texts and keys `printable`; a line that is none stays."""
    if b"\\" not in line and line.isascii():  # in JSON control characters are escaped
        return line
    try:
        data = json.loads(line)
        json.dumps(data, ensure_ascii=False).encode()  # half a pair of surrogates is an error, not a text to be shown
        return json.dumps(printable_json(data)).encode() + b"\n"
    except (ValueError, RecursionError):  # told by whoever decodes it
        return line
