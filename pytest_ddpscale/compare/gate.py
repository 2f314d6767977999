"""--fail-below: when a comparison fails, and the messages about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pytest_ddpscale.util.listing import first_few
from pytest_ddpscale.util.printable import one_line

_MOST_NAMES = 20


class Gated(Protocol):
    """A comparison that --fail-below can check."""

    @property
    def lost(self) -> Sequence[str]:
        """Values that were measured before but have nothing to compare with now."""

    def worse_by(self, share: float) -> list[str]:
        """Values that certainly are worse by more than `share`."""


@dataclass(frozen=True)
class Gate:
    """The check of --fail-below.

    Attributes:
        share: largest allowed loss, 0 … 1; None without --fail-below.
        allows_missing: whether lost values pass, for a run that measures less on purpose, such as one node of many.
    """

    share: float | None = None
    allows_missing: bool = False

    def fails(self, found: Gated) -> bool:
        """Whether anything is too much worse or was lost, because an unmeasured value is not shown to be as good."""
        return self.share is not None and bool(found.worse_by(self.share) or self._lost(found))

    def as_json(self, found: Gated) -> dict[str, Any]:
        """Its part of a JSON object."""
        worse = [] if self.share is None else found.worse_by(self.share)
        return {"fail_below": self.share, "worse": worse, "lost": list(found.lost), "fails": self.fails(found)}

    def lines(self, found: Gated) -> Iterator[str]:
        """A sentence for each reason to fail, or one sentence without any."""
        if self.share is None:
            return
        limit, worse = f"{100 * self.share:g} %", found.worse_by(self.share)
        if worse:
            yield f"FAIL: worse by more than {limit}: {len(worse)}: {_names(worse)}"
        if lost := self._lost(found):
            yield (
                f"FAIL: measured before, nothing to compare with it now: {len(lost)}: {_names(lost)} "
                "(--allow-missing accepts this)"
            )
        if not self.fails(found):
            left_out = f"; {len(found.lost)} measured before but not now: allowed" if found.lost else ""
            yield f"Nothing is certainly worse by more than {limit}{left_out}."

    def _lost(self, found: Gated) -> Sequence[str]:
        return () if self.allows_missing else found.lost


def _names(names: Sequence[str]) -> str:
    return first_few([one_line(name) for name in names], _MOST_NAMES)
