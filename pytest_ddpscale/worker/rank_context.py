"""What every part of a rank's work needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import Device
from pytest_ddpscale.worker.rank_progress import RankProgress


@dataclass(frozen=True)
class RankContext:
    """One rank of a gang.

    Attributes:
        device: what it measures with.
        control: how ranks tell each other things, and how they are numbered over the nodes.
        progress: kept up to date.
        timeout: limit for connecting ranks, and for one collective.
        deadline_unix_s: no round starts after it; None for no limit.
        gang: number of the gang in the run.
    """

    device: Device
    control: Control
    progress: RankProgress
    timeout: timedelta
    deadline_unix_s: float | None = None
    gang: int = 0
