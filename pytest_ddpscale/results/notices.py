"""What a listener hears between records: it passes, and is kept nowhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_ddpscale.results.record_lines import AnyRecord


@dataclass(frozen=True)
class Idle:
    """Nothing was recorded since the last time."""


@dataclass(frozen=True)
class Queued:
    """The nodes that were asked for are not there yet: why, as the launcher says it."""

    state: str


@dataclass(frozen=True)
class Interrupted:
    """Somebody ends the session."""

    message: str


@dataclass(frozen=True)
class Unfit:
    """Nodes are not as they should be: host → why."""

    nodes: Mapping[str, str]


Notice = Idle | Queued | Interrupted | Unfit
Listener = Callable[[AnyRecord | Notice], None]
