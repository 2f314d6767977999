"""What the supervisor knows of a gang's nodes and ranks, from what their agents say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pytest_ddpscale.launch.surveying import Surveys
from pytest_ddpscale.results.rank_status import FINISHED

_NUMBERS = ("local_rank", "rank", "pid", "entered", "steps", "oom_kills")
_EXIT = [int, int, int, bool]  # local rank, exit code, pid, whether torchrun saw it first


@dataclass
class RankNews:
    """One rank, as its node's agent last saw it.

    Attributes:
        node: the node's index.
        host: its name.
        local_rank: on that node.
        rank: global rank; -1 before it joined the gang.
        pid: of its process.
        state: the process's, as in /proc: ``T`` is stopped; empty once it is gone.
        phase: what it was doing.
        study: id of the study, or None.
        arm: name of the arm, or None.
        round: number of the round, or None.
        entered: how many phases it had entered.
        steps: training steps since it entered that phase.
    """

    node: int
    host: str
    local_rank: int
    rank: int = -1
    pid: int = 0
    state: str = ""
    phase: str = "start-up"
    study: str | None = None
    arm: str | None = None
    round: int | None = None
    entered: int = 0
    steps: int = 0

    @property
    def name(self) -> str:
        """``rank 3 on n2``; by its local rank before it has joined."""
        return f"rank {self.rank} on {self.host}" if self.rank >= 0 else f"local rank {self.local_rank} on {self.host}"

    @property
    def progress(self) -> tuple[int, int]:
        """Grows with all that this rank does."""
        return self.entered, self.steps


@dataclass
class NodeNews:
    """One node, as its agent last described it.

    Attributes:
        host: its name.
        heard_s: when its agent last said something, on the supervisor's clock.
        exit: the agent's last message; None while it serves.
    """

    host: str
    heard_s: float
    exit: dict[str, Any] | None = None


@dataclass
class GangState:
    """All nodes and ranks of a gang.

    Attributes:
        nodes: by index in Slurm's order, as far as they were heard of.
        ranks: by node and local rank.
        failures: reports that ranks left of themselves, in the order in which they were heard.
        gone: ranks whose process ended before its work did, in that order.
        words: last lines of a rank's output, by node and local rank.
        nccl: last lines that its NCCL wrote, likewise.
        versions: of the package on the nodes, with the hosts that have it.
        blind: hosts that do not see the run directory.
        endpoint: where ranks meet, an address and port of the first node; empty before that says so.
        endpoint_problem: why it cannot say so.
        moved_s: when any rank last did something, on the supervisor's clock; None before all began.
        surveys: what the nodes are, as far as their agents said so.
        post_mortems: what GPUs were after ranks had failed, likewise.
    """

    nodes: dict[int, NodeNews] = field(default_factory=dict)
    ranks: dict[tuple[int, int], RankNews] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    gone: list[RankNews] = field(default_factory=list)
    words: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    nccl: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    versions: dict[str, list[str]] = field(default_factory=dict)
    blind: list[str] = field(default_factory=list)
    endpoint: str = ""
    endpoint_problem: str = ""
    moved_s: float | None = None
    surveys: Surveys = field(default_factory=Surveys)
    post_mortems: Surveys = field(default_factory=Surveys)

    def hear(self, message: dict[str, Any], now_s: float) -> None:
        """Take note of a message; one that is not as agents make them is passed over.

        Args:
            message: decoded.
            now_s: the supervisor's monotonic clock.
        """
        if not _is_as_agents_make_it(message):
            return
        node, host = message["node"], message["host"]
        news = self.nodes.setdefault(node, NodeNews(host, now_s))
        news.heard_s = now_s
        handler = {
            "up": self._up, "rank": self._rank, "failed": self._failed, "gone": self._gone, "words": self._words,
            "nccl": self._nccl, "exit": self._exit, "survey": self._survey, "clock": self._clock,
            "post_mortem": self._post_mortem, "endpoint": self._endpoint,
        }.get(str(message["say"]))  # fmt: skip
        if handler is not None:
            handler(message, node, now_s)

    @property
    def has_trouble(self) -> bool:
        """Whether a rank failed or is gone, or torchrun has given up on a node."""
        gave_up = any(node.exit is not None and node.exit.get("code") for node in self.nodes.values())
        return gave_up or bool(self.failures or self.gone)

    def expect_beats(self, now_s: float) -> None:
        """From now on agents speak regularly; before, they waited in silence."""
        for node in self.nodes.values():
            node.heard_s = now_s

    def silent_hosts(self, now_s: float, silence_s: float) -> list[str]:
        """Nodes that have not been heard of for so long, and did not say that they end."""
        return [n.host for n in self.nodes.values() if n.exit is None and now_s - n.heard_s > silence_s]

    def _up(self, message: dict[str, Any], node: int, now_s: float) -> None:
        self.versions.setdefault(str(message.get("version")), []).append(self.nodes[node].host)
        if message.get("sees_run_directory") is False:
            self.blind.append(self.nodes[node].host)

    def _endpoint(self, message: dict[str, Any], node: int, now_s: float) -> None:
        self.endpoint, self.endpoint_problem = str(message.get("endpoint", "")), str(message.get("problem", ""))

    def _rank(self, message: dict[str, Any], node: int, now_s: float) -> None:
        found = self._news_of(message, node)
        before = self.ranks.get((node, found.local_rank))
        if before is None or found.progress != before.progress:
            self.moved_s = now_s
        self.ranks[node, found.local_rank] = found

    def _failed(self, message: dict[str, Any], node: int, now_s: float) -> None:
        self.failures.append(message)

    def _gone(self, message: dict[str, Any], node: int, now_s: float) -> None:
        found = self._news_of(message, node)
        found.state = ""
        self.ranks[node, found.local_rank] = found
        if not message.get("reported") and found.phase != FINISHED:
            self.gone.append(found)

    def _words(self, message: dict[str, Any], node: int, now_s: float) -> None:
        self.words.setdefault((node, int(message.get("local_rank", -1))), []).append(str(message.get("text", "")))

    def _nccl(self, message: dict[str, Any], node: int, now_s: float) -> None:
        self.nccl.setdefault((node, int(message["local_rank"])), []).append(str(message.get("text", "")))

    def _exit(self, message: dict[str, Any], node: int, now_s: float) -> None:
        self.nodes[node].exit = message

    def _survey(self, message: dict[str, Any], node: int, now_s: float) -> None:
        self.surveys.hear_piece(message)

    def _post_mortem(self, message: dict[str, Any], node: int, now_s: float) -> None:
        self.post_mortems.hear_piece(message)

    def _clock(self, message: dict[str, Any], node: int, now_s: float) -> None:
        self.surveys.hear_clock(message)

    def _news_of(self, message: dict[str, Any], node: int) -> RankNews:
        known = RankNews.__dataclass_fields__
        return RankNews(**{name: value for name, value in message.items() if name in known})


def _is_as_agents_make_it(message: dict[str, Any]) -> bool:
    """Whether what is read of it later has the type it should."""
    if type(message.get("node")) is not int or not isinstance(message.get("host"), str):
        return False
    needed = {"local_rank"} if message["say"] in ("rank", "gone", "words", "nccl") else set()
    if any(type(message.get(name, None if name in needed else 0)) is not int for name in _NUMBERS):
        return False
    if not all(isinstance(message.get(name, ""), str) for name in ("state", "phase")):
        return False
    exits, ended_pids = message.get("exits", []), message.get("ended_pids", [])
    if not isinstance(exits, list) or not isinstance(ended_pids, list):
        return False
    return all(isinstance(one, list) and [type(part) for part in one] == _EXIT for one in exits)
