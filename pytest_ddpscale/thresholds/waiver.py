"""Waivers: failures that a person accepts until a given day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timezone

LONGEST_DAYS = 400  # from today


@dataclass(frozen=True)
class Waiver:
    """Who accepts a requirement's failure, why, and the last day of the waiver (UTC)."""

    who: str
    why: str
    until: date

    def holds_on(self, day: date) -> bool:
        """Whether the waiver is valid on that day."""
        return day <= self.until

    def __str__(self) -> str:
        return f"waiver by {self.who} until {self.until}"


def today() -> date:
    """The current day in UTC, which decides whether a waiver holds."""
    return datetime.now(timezone.utc).date()
