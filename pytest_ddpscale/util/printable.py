"""Text of unknown origin, made harmless for a terminal and for reports.

Escape sequences could hide or rewrite lines of a report, a line feed could add one, and marks of direction show text
in another order than it has.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def one_line(text: str) -> str:
    """Text from any source as one harmless line.

    White space becomes single spaces. Characters that move a cursor or change the direction of text, and those that
    encodings or XML parsers reject, become U+FFFD.
    """
    if not text.isprintable():
        text = "".join(
            character if character.isprintable() or character.isspace() else "\N{REPLACEMENT CHARACTER}"
            for character in text
        )
    return " ".join(text.split())


def as_typed(line: str) -> str:
    """A line without control characters, with its columns kept."""
    return "".join(filter(str.isprintable, line.expandtabs(8))).rstrip()


def several_lines(text: str) -> str:
    """Text without control characters, with its lines and columns kept."""
    return "\n".join(map(as_typed, text.splitlines()))


def shell_line(words: Iterable[str]) -> str:
    """Words as a command to paste, in one harmless line."""
    return shlex.join(map(one_line, words))
