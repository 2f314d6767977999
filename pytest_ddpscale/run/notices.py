"""Notices to listeners between records; they are not stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_ddpscale.run.record_lines import AnyRecord


@dataclass(frozen=True)
class Idle:
    """Nothing was recorded since the last notice."""


@dataclass(frozen=True)
class Queued:
    """The requested nodes are not available yet; `state` is the launcher's reason."""

    state: str


@dataclass(frozen=True)
class Interrupted:
    """The session is being ended from outside."""

    message: str


@dataclass(frozen=True)
class Unfit:
    """Nodes are unfit: reason by host."""

    nodes: Mapping[str, str]


Notice = Idle | Queued | Interrupted | Unfit
Listener = Callable[[AnyRecord | Notice], None]
