"""``python -m tests.forks.ranks COUNT LOGS``: the ranks of a node, in the place of torchrun.

Their output goes to files; when one fails the others are asked to end. What is told of them is in torchrun's words.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from types import FrameType

from tests.forks.server import fork, run_module

WORKER = "pytest_ddpscale.worker"
GRACE_S = 30.0  # as torchrun's
POLL_S = 0.02


class Ranks:
    """The ranks of this node.

    Args:
        count: of them.
        logs: folder for their output.
    """

    def __init__(self, count: int, logs: Path) -> None:
        self._count, self._logs = count, logs
        self._running: dict[int, int] = {}  # process → local rank
        self._failed: list[tuple[int, int, int]] = []  # local rank, exit code, process

    def run(self) -> int:
        """Start them and wait for their end. Returns torchrun's exit code."""
        self._running = {fork(partial(self._rank, rank)): rank for rank in range(self._count)}
        while self._running and not self._failed:
            self._wait()
        if self._running:
            self.end()
        if self._failed:
            root, *others = self._failed
            print("Failures:", *(_told(one) for one in others), "Root Cause (first observed failure):", _told(root))
        return 1 if self._failed else 0

    def end(self) -> None:
        """Ask those that run to end, and kill those that have not."""
        for pid in self._running:
            print(f"Sending process {pid} closing signal SIGTERM", flush=True)
            os.kill(pid, signal.SIGTERM)
        ends_s = time.monotonic() + GRACE_S
        while self._running and time.monotonic() < ends_s:
            self._wait()
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        while self._running:
            self._wait()

    def _wait(self) -> None:
        """Hear of ranks that have ended, for a moment."""
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            time.sleep(POLL_S)
            return
        local_rank, code = self._running.pop(pid), os.waitstatus_to_exitcode(status)
        if code:
            self._failed.append((local_rank, code, pid))

    def _rank(self, local_rank: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        folder = self._logs / "forked" / "attempt_0" / str(local_rank)
        folder.mkdir(parents=True)
        for number, name in ((1, "stdout.log"), (2, "stderr.log")):
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT)
            os.dup2(descriptor, number)
            os.close(descriptor)
        place = {"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(self._count)}
        run_module([WORKER], {**os.environ, **place})


def _told(failed: tuple[int, int, int]) -> str:
    local_rank, code, pid = failed
    return f"\n  rank      : {local_rank} (local_rank: {local_rank})\n  exitcode  : {code} (pid: {pid})\n"


def main() -> int:
    """As the module says."""
    _, count, logs = sys.argv
    ranks = Ranks(int(count), Path(logs))

    def end(number: int, frame: FrameType | None) -> None:
        ranks.end()
        sys.exit(1)

    signal.signal(signal.SIGTERM, end)
    return ranks.run()


if __name__ == "__main__":
    sys.exit(main())
