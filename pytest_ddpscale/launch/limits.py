"""How long measuring, and each part of a gang's life, may take."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_ddpscale.node.protocol import SILENCE_S


@dataclass(frozen=True)
class Limits:
    """All in seconds.

    Attributes:
        budget_s: wall time for all measuring; no round starts after it. None: as long as it takes.
        inactivity_s: a gang in which no rank does anything, and nothing is recorded, for this long is ended.
        startup_s: the same for the time before the first record, when nothing but imports may be seen for minutes
            where they come from a shared disk.
        total_s: a gang is ended after this long, whatever it does. None: never.
        queue_s: longest wait for a scheduler to give nodes.
        survey_s: longest wait for agents to say what their nodes are.
        silence_s: a node whose agent is not heard of for this long is taken for lost.
    """

    budget_s: float | None = None
    inactivity_s: float = 600.0
    startup_s: float = 600.0
    total_s: float | None = None
    queue_s: float = 3600.0
    survey_s: float = 90.0
    silence_s: float = SILENCE_S
