"""Progress of a rank, for its own error report, and for its node's agent if it cannot report."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from pytest_ddpscale.run.rank_folder import RankFailure, RankStatus, StatusWriter, leave
from pytest_ddpscale.util.masking import masked_text
from pytest_ddpscale.worker.control import rank_of


class RankProgress:
    """Progress of this rank, updated by the gang. Setting `phase` publishes all fields, so it is set last.

    Attributes:
        rank: global rank; -1 before the gang is joined.

    Args:
        folder: status folder of the node's agent; None without an agent.
    """

    def __init__(self, folder: Path | None = None, local_rank: int = 0) -> None:
        self.rank = -1
        self.study: str | None = None
        self.arm: str | None = None
        self.round: int | None = None
        self.device = ""
        self.gpu_index: int | None = None
        self._local_rank = local_rank
        self._writer: StatusWriter | None = None
        if folder is not None:
            with contextlib.suppress(OSError):  # a full /dev/shm costs the status, not the measurement
                self._writer = StatusWriter(folder, local_rank)
        self._entered = 0
        self.phase = "start-up"

    @property
    def phase(self) -> str:
        """Current phase: ``preparation``, ``warm-up``, ``timed block`` …"""
        return self._phase

    @phase.setter
    def phase(self, phase: str) -> None:
        self._phase = phase
        self._entered += 1
        if self._writer is not None:
            status = RankStatus(
                pid=os.getpid(), rank=self.rank, local_rank=self._local_rank, phase=phase, study=self.study,
                arm=self.arm, round=self.round, entered=self._entered,
            )  # fmt: skip
            with contextlib.suppress(OSError):  # as above
                self._writer.tell(status)

    def count_step(self) -> None:
        """Count one training step."""
        if self._writer is not None:
            self._writer.count_step()

    def tell_failure(self, error: Exception) -> None:
        """Report an error and its place to the node's agent, if there is one; a killed rank's log may lack it."""
        # File names that are not UTF-8 have characters that JSON cannot represent.
        message = str(error).encode("utf-8", "backslashreplace").decode("utf-8")
        if "socket interface" in message or "find address" in message:
            message += "".join(f"\n{name}={value}" for name, value in os.environ.items() if "SOCKET_IFNAME" in name)
        failure = RankFailure(
            local_rank=self._local_rank, rank=self.rank if self.rank >= 0 else rank_of(os.environ), study=self.study,
            arm=self.arm, round=self.round, phase=self.phase, type=type(error).__name__,
            message=masked_text(message), unix_s=time.time(), device=self.device, gpu_index=self.gpu_index,
        )  # fmt: skip
        if self._writer is not None:
            with contextlib.suppress(OSError):  # as above; it is in the log too
                leave(self._writer.folder, failure)
