"""Where a rank is: for its own report if it fails there, and for its node's agent if it cannot report."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from pytest_ddpscale.results.rank_status import STATUS_VARIABLE, RankFailure, RankStatus, StatusWriter


class RankProgress:
    """Kept up to date by the gang. Setting `phase` publishes it, so it is set last.

    Attributes:
        rank: global rank; -1 before the gang is joined.

    Args:
        writer: how the node's agent hears of it; None where there is no agent.
    """

    def __init__(self, writer: StatusWriter | None = None, local_rank: int = 0) -> None:
        self.rank = -1
        self.study: str | None = None
        self.arm: str | None = None
        self.round: int | None = None
        self._writer = writer
        self.local_rank = local_rank
        self._entered = 0
        self.phase = "start-up"

    @property
    def phase(self) -> str:
        """What this rank is doing: ``preparation``, ``warm-up``, ``timed block`` …"""
        return self._phase

    @phase.setter
    def phase(self, phase: str) -> None:
        self._phase = phase
        self._entered += 1
        if self._writer is not None:
            status = RankStatus(
                pid=os.getpid(), rank=self.rank, local_rank=self.local_rank, phase=phase, study=self.study,
                arm=self.arm, round=self.round, entered=self._entered,
            )  # fmt: skip
            with contextlib.suppress(OSError):  # a full /dev/shm costs the word, not the measurement
                self._writer.tell(status)

    def count_step(self) -> None:
        """One more training step."""
        if self._writer is not None:
            self._writer.count_step()

    def tell_failure(self, failure: RankFailure) -> None:
        """Leave a report with the agent, if there is one."""
        if self._writer is not None:
            with contextlib.suppress(OSError):  # as above; it is in the log too
                self._writer.tell_failure(failure)


def rank_progress_of(environ: Mapping[str, str]) -> RankProgress:
    """Of this process: told to the agent where the environment names its folder."""
    folder, local_rank = environ.get(STATUS_VARIABLE), int(environ.get("LOCAL_RANK", "0"))
    writer = None
    if folder:
        with contextlib.suppress(OSError):  # as above
            writer = StatusWriter(Path(folder), local_rank)
    return RankProgress(writer, local_rank)
