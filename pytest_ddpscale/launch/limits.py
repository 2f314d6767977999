"""Time limits of measuring and of each phase of a gang."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ddpscale.node.protocol import SILENCE_S

STARTUP_S = 600.0


@dataclass(frozen=True)
class Limits:
    """All in seconds.

    Attributes:
        budget_s: wall time for all measuring; no round starts after it. None: no limit.
        inactivity_s: a gang without progress of any rank and without records for this long is ended.
        startup_s: the same before the first record, when imports from a shared disk may take minutes, whatever the
            limit after that; a scheduler's queue does not count.
        total_s: a gang is ended after this long in any case. None: never.
        survey_s: longest wait for the agents' surveys.
        silence_s: a node whose agent is silent for this long is considered lost.
    """

    budget_s: float | None = None
    inactivity_s: float = 600.0
    startup_s: float = STARTUP_S
    total_s: float | None = None
    survey_s: float = 90.0
    silence_s: float = SILENCE_S

    @property
    def timeout_s(self) -> float:
        """Of one wait or collective of a rank: longer than `inactivity_s`.

        The supervisor sees all ranks and can name the one that holds up the others.
        """
        return 1.5 * self.inactivity_s + 30

    @property
    def startup_timeout_s(self) -> float:
        """As `timeout_s`, until all ranks are up."""
        return 1.5 * self.startup_s + 30
