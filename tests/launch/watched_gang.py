"""A gang of small programs that say what agents say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_ddpscale.launch.gang_state import GangEnd, GangOwner
from pytest_ddpscale.run.rank_folder import WantedArms
from pytest_ddpscale.run.strict_json import parse_strict_json

Run = Callable[..., GangEnd]


class Owner(GangOwner):
    """Has a gang run, and takes note of all it hears of it."""

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard
        self.take: Callable[[Any], None] = heard.append
        self.deadline: Callable[[], float | None] = lambda: None
        self.told: Callable[[KeyboardInterrupt], None] = lambda interrupt: None
        self.kept = b""
        self.answers: list[WantedArms] = []

    def keep(self, lines: bytes) -> list[Any]:
        self.kept += lines
        return [parse_strict_json(line.decode()) for line in lines.splitlines()]

    def hear(self, record: Any) -> WantedArms | None:
        self.take(record)
        return self.answers.pop() if self.answers and kind_of(record) == "round_end" else None

    def deadline_unix_s(self) -> float | None:
        return self.deadline()

    def interrupted(self, interrupt: KeyboardInterrupt) -> None:
        self.told(interrupt)


def kind_of(heard: Any) -> str:
    """Of a record as agents here make it, which is a dictionary; empty for a notice."""
    return str(heard.get("kind")) if isinstance(heard, dict) else ""
