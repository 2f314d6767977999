"""Composing a YAML document within limits: a file of one kilobyte may mean a document that fills any memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pytest_ddpscale.errors import ThresholdsError

# Several times what the packaged file has; reading so much takes about a second.
MOST_NODES = 30_000  # keys and values, with aliases written out
LONGEST_TEXT = 4_000
DEEPEST = 40
# What PyYAML raises on 2026-02-30, which looks like a date, and on `!!bool maybe`, `!!timestamp soon`, `!!int ""`.
UNREADABLE = (ValueError, LookupError, AttributeError, OverflowError)


class LimitedLoader(yaml.SafeLoader):
    """Refuses a document that is too large with its aliases written out, at the line where it becomes so.

    Args:
        path: of the file, for messages.
        text: its content.
    """

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(text)
        self._path = path
        self._depth = 0
        self._nodes = 0
        self._sizes: dict[int, int] = {}  # of each composed node, with all below it

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node as the base class does, and count what it stands for."""
        line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
        before = self._nodes
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._refusal(line, "nested too deeply", f"at most {DEEPEST} levels")
        node: Any = super().compose_node(parent, index)
        self._depth -= 1
        if node.end_mark is None:
            raise self._refusal(line, "a YAML anchor contains itself", "a finite document")
        if isinstance(node, yaml.ScalarNode) and len(node.value) > LONGEST_TEXT:
            raise self._refusal(line, f"a text of {len(node.value)} characters", f"at most {LONGEST_TEXT}")
        self._nodes += self._sizes.get(id(node), 1)  # an alias stands for all that its anchor does
        if self._nodes > MOST_NODES:
            raise self._refusal(line, f"more than {MOST_NODES} keys and values, aliases written out", "a smaller file")
        self._sizes.setdefault(id(node), self._nodes - before)
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Make a Python value of a node as the base class does; say where, if that fails."""
        try:
            return super().construct_object(node, deep)
        except UNREADABLE as error:
            found = f"not valid YAML (a value that cannot be read: {error})"
            raise self._refusal(node.start_mark.line + 1, found, "YAML 1.1, text in quotes") from None

    def _refusal(self, line: int, found: str, expected: str) -> ThresholdsError:
        where = f"{self._path}:{line}"
        return ThresholdsError(where, found, expected, f"Then run `ddpscale thresholds check {self._path}`.")
