"""Composes a YAML document within limits and without anchors, which named entries replace."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import Resolver
from yaml.scanner import Scanner

from pytest_ddpscale.errors import ThresholdsError

# Several times the packaged file; reading that much takes about a second.
MOST_NODES = 30_000  # keys and values
LONGEST_TEXT = 4_000
DEEPEST = 40
# What PyYAML raises on 2026-02-30, which looks like a date, and on `!!bool maybe`, `!!timestamp soon`, `!!int ""`.
UNREADABLE = (ValueError, LookupError, AttributeError, OverflowError)


class _Limits(Composer, SafeConstructor, Resolver):
    """Refuses a document that is too large or has anchors, and names the line.

    Args:
        path: of the file, for messages.
    """

    def __init__(self, path: Path) -> None:
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._path = path
        self._depth = 0
        self._nodes = 0

    peek_event: Any  # of the parser

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node as in the base class, and count it."""
        event = self.peek_event()
        line = event.start_mark.line + 1
        if getattr(event, "anchor", None) is not None:
            expected = "a name under `reasons`, `sources`, `workloads` or `families` for repeated text"
            raise self._refusal(line, f"the YAML anchor or alias {event.anchor!r}", expected)
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._refusal(line, "nested too deeply", f"at most {DEEPEST} levels")
        node: Any = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, yaml.ScalarNode) and len(node.value) > LONGEST_TEXT:
            raise self._refusal(line, f"a text of {len(node.value)} characters", f"at most {LONGEST_TEXT}")
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise self._refusal(line, f"more than {MOST_NODES} keys and values", "a smaller file")
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Convert a node to a Python value as in the base class; on failure raise an error with the line."""
        try:
            return super().construct_object(node, deep)
        except UNREADABLE as error:
            found = f"not valid YAML (a value that cannot be read: {error})"
            raise self._refusal(node.start_mark.line + 1, found, "YAML 1.1, text in quotes") from None

    def _refusal(self, line: int, found: str, expected: str) -> ThresholdsError:
        where = f"{self._path}:{line}"
        return ThresholdsError(where, found, expected, f"Then run `ddpscale thresholds check {self._path}`.")


class ExactLoader(_Limits, Reader, Scanner, Parser):
    """A loader in Python, with precise error messages.

    Args:
        path: of the file, for messages.
        text: its content.

    Raises:
        yaml.reader.ReaderError: the text has an unprintable character.
    """

    def __init__(self, path: Path, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        super().__init__(path)


if yaml.__with_libyaml__:
    from yaml._yaml import CParser

    class FastLoader(_Limits, CParser):
        """The same on libyaml, which takes a tenth of the time but gives less precise errors."""

        def __init__(self, path: Path, text: str) -> None:
            CParser.__init__(self, text)
            super().__init__(path)


def composed(path: Path, text: str) -> tuple[yaml.Node | None, SafeConstructor]:
    """The document of a text, None if empty, and its constructor of Python values.

    Args:
        path: of the file, for messages.
        text: its content.

    Raises:
        ThresholdsError: it is too large.
        yaml.YAMLError: it is not YAML.
    """
    loader: Any = ExactLoader(path, text)  # finds unprintable characters
    if yaml.__with_libyaml__:
        fast: Any = FastLoader(path, text)
        with contextlib.suppress(yaml.YAMLError):
            return fast.get_single_node(), fast
    return loader.get_single_node(), loader
