"""Gangs and news of them, as tests of the launching side need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_ddpscale.launch.gang_state import GangState
from pytest_ddpscale.launch.launcher import GangSpec

WORKER = ("--run-dir", "run dir", "--studies", "weak/r,strong/r")


def gang(**changes: Any) -> GangSpec:
    """One node of eight ranks."""
    fields: dict[str, Any] = {
        "gang_id": "g1", "nodes": 1, "ranks_per_node": 8, "log_dir": Path("run dir/logs/gang-0"),
        "worker_arguments": WORKER,
    }  # fmt: skip
    return GangSpec(**fields | changes)


class News:
    """A roll that hears what agents of some nodes say."""

    def __init__(self, *hosts: str, ranks_per_node: int = 2) -> None:
        self.roll = GangState()
        self._hosts = hosts
        self._ranks_per_node = ranks_per_node
        for node in range(len(hosts)):
            self.say("up", node, version="1", pid=1)

    def say(self, word: str, node: int, **fields: Any) -> None:
        """A message of a node's agent."""
        self.roll.hear({"say": word, "node": node, "host": self._hosts[node], **fields}, 0.0)

    def status(self, rank: int, **changes: Any) -> dict[str, Any]:
        """What an agent says of a rank: its third step of a timed block."""
        return {
            "local_rank": rank % self._ranks_per_node, "rank": rank, "pid": 100 + rank, "phase": "timed block",
            "study": "weak/r", "arm": "ddp@2", "round": 3, "entered": 12, "steps": 3, "state": "S",
        } | changes  # fmt: skip

    def rank(self, rank: int, **changes: Any) -> None:
        """A rank lives."""
        self.say("rank", rank // self._ranks_per_node, **self.status(rank, **changes))

    def gone(self, rank: int, *, reported: bool = False, **changes: Any) -> None:
        """A rank's process has ended before its work did."""
        self.say("gone", rank // self._ranks_per_node, **self.status(rank, **changes), reported=reported)

    def failed(self, rank: int, type_: str, message: str) -> None:
        """A rank reports an error."""
        node, local_rank = divmod(rank, self._ranks_per_node)
        report = {"study": "weak/r", "arm": "ddp@2", "round": 3, "phase": "timed block"}
        self.say("failed", node, local_rank=local_rank, rank=rank, **report, type=type_, message=message, unix_s=1.0)

    def exit(self, node: int, *exits: list[Any], code: int = 1, **fields: Any) -> None:
        """An agent's last word: how ranks ended, each as local rank, exit code, pid, and whether it was the first."""
        self.say("exit", node, code=code, exits=list(exits), **{"oom_kills": 0, "ended_pids": [], **fields})
