"""A waiver: a failure that a person answers for, with a reason and an end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ddpscale.thresholds.model import Requirement

_CORRUPT = "memory errors corrupt data"
# Checks that stand for what no waiver may cover.
_NEVER_WAIVED = {
    "gpus": "GPUs that are missing or do not answer are not tested",
    "ecc": _CORRUPT,
    "ecc_under_load": _CORRUPT,
    "transport": "it is about what connects nodes, too",
}


@dataclass(frozen=True)
class Waiver:
    """Who lets a failure of one requirement pass, why, and the last day on which it does (UTC)."""

    who: str
    why: str
    until: date

    def holds_on(self, day: date) -> bool:
        """Whether it has not ended before that day."""
        return day <= self.until

    def __str__(self) -> str:
        return f"waiver by {self.who} until {self.until}"


def today() -> date:
    """The day it is in UTC, by which waivers end."""
    return datetime.now(timezone.utc).date()


def why_never_waived(requirement: Requirement) -> str:
    """Why no waiver of a requirement is valid; empty if one may be."""
    is_beyond_node = isinstance(requirement.world_size, str) and requirement.world_size != "node"
    if is_beyond_node or requirement.placement == "spread":
        return "it is between nodes"
    if requirement.definition.compares_results:
        return "ranks that compute different results compute wrong ones"
    if requirement.severity == "warn":
        return "it only warns"
    return _NEVER_WAIVED.get(requirement.check, "")
