"""The state of one node's ranks: their latest status files, and their processes in /proc."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from pytest_ddpscale.node.protocol import MOST_TEXT, Failed, Gone, RankSeen
from pytest_ddpscale.run.rank_folder import FINISHED, RankFailure, left, read_status

# States of a process that has ended, in /proc/PID/stat (proc(5)).
_ENDED = {"Z", "X", "x", ""}


class LocalRanks:
    """Watches the ranks of this node."""

    def __init__(self, folder: Path, count: int, node: int, host: str) -> None:
        self._folder = folder
        self._count = count
        self._where: dict[str, Any] = {"node": node, "host": host}
        self._told: set[int] = set()  # local ranks whose end was reported

    def beats(self) -> list[RankSeen]:
        """One message per rank that has begun and is running."""
        return [
            RankSeen(**self._where, **asdict(status), state=state)
            for local_rank in range(self._count)
            if (status := read_status(self._folder, local_rank)) is not None
            and (state := process_state(status.pid)) not in _ENDED
        ]

    def news(self) -> list[Failed | Gone]:
        """Events since the last call: failures reported by ranks, and ranks that ended early without a report."""
        found: list[Failed | Gone] = []
        for local_rank in sorted(set(range(self._count)) - self._told):
            status = read_status(self._folder, local_rank)
            is_gone = status and status.phase != FINISHED and process_state(status.pid) in _ENDED
            failure = left(self._folder, RankFailure, local_rank)  # last: a rank that is gone writes nothing
            if failure is not None:
                message = failure.message
                short = message if len(message) <= MOST_TEXT else f"{message[: MOST_TEXT - 1]}…"
                found.append(Failed(**self._where, **{**asdict(failure), "message": short}))
            elif status and is_gone:
                found.append(Gone(**self._where, **asdict(status)))
        self._told |= {one.local_rank for one in found}
        return found


def process_state(pid: int) -> str:
    """Process state: ``R`` running, ``S`` sleeping, ``D`` in uninterruptible wait, ``T`` stopped; empty if gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]  # the process name before it may contain anything


def oom_kills() -> int:
    """Number of OOM kills of this machine's kernel since boot; 0 if unknown."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
