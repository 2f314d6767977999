"""Waivers: failures that a person accepts until a given day; and what no site may waive, remove or let only warn."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ddpscale.thresholds.model import Requirement

LONGEST_DAYS, LONG_DAYS = 400, 90  # from today: what is refused, and what is remarked on
_CORRUPT = "memory errors corrupt data"
_CHECKS_THAT_STAND = {
    "gpus": "GPUs that are missing or do not answer are not tested",
    "ecc": _CORRUPT,
    "ecc_under_load": _CORRUPT,
    "transport": "it also covers links between nodes",
}


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


def why_it_stands(requirement: Requirement) -> str:
    """Why no site may waive a requirement, remove it or let it only warn; empty if one may."""
    is_beyond_node = isinstance(requirement.world_size, str) and requirement.world_size != "node"
    if is_beyond_node or requirement.placement == "spread":
        return "it covers links between nodes"
    if requirement.definition.compares_results:
        return "ranks with different results compute wrong ones"
    return _CHECKS_THAT_STAND.get(requirement.check, "")


def why_never_waived(requirement: Requirement) -> str:
    """Why a requirement can never be waived; empty if it can."""
    return why_it_stands(requirement) or ("it only warns" if requirement.severity == "warn" else "")
