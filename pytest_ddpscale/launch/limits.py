"""Time limits of measuring and of each phase of a gang."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ddpscale.node.protocol import SILENCE_S


@dataclass(frozen=True)
class Limits:
    """All in seconds.

    Attributes:
        budget_s: wall time for all measuring; no round starts after it. None: no limit.
        inactivity_s: a gang without progress of any rank and without records for this long is ended.
        startup_s: the same before the first record, when imports from a shared disk may take minutes; a scheduler's
            queue does not count.
        total_s: a gang is ended after this long in any case. None: never.
        survey_s: longest wait for the agents' surveys.
        silence_s: a node whose agent is silent for this long is considered lost.
    """

    budget_s: float | None = None
    inactivity_s: float = 600.0
    startup_s: float = 600.0
    total_s: float | None = None
    survey_s: float = 90.0
    silence_s: float = SILENCE_S
