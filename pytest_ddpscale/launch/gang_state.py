"""State of a gang's nodes and ranks, from their agents' messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from pytest_ddpscale.node.protocol import (
    Endpoint,
    Exit,
    Failed,
    Gone,
    LastWords,
    News,
    NodeAfterFailure,
    NodeSurvey,
    ProcessExit,
    RankSeen,
    Up,
)
from pytest_ddpscale.run.survey_record import Survey


@dataclass
class NodeState:
    """State of one node.

    Attributes:
        heard_s: time of its agent's latest message, on the supervisor's clock.
        exit: the agent's last message; None while it serves.
    """

    host: str
    heard_s: float
    addresses: tuple[str, ...] = ()
    exit: Exit | None = None


@dataclass
class GangState:
    """All nodes and ranks of a gang.

    Attributes:
        nodes: by index in rank order; nodes without a message yet are absent.
        ranks: by node and local rank.
        failures: failure reports of ranks, in order of arrival.
        gone: ranks whose process ended before its work was done, in order of arrival.
        last_words: last lines of ranks and their NCCL, by node and local rank.
        versions: package version → hosts that have it.
        loopback_problems: why ranks cannot connect at 127.0.0.1, by host.
        endpoint: the ranks' rendezvous, an address and port of the first node; empty until known.
        endpoint_problem: why there is no rendezvous; empty otherwise.
        moved_s: when any rank last made progress, on the supervisor's clock; None before.
        surveys: by node index, as far as received.
        post_mortems: surveys of GPUs after ranks failed, by node index.
    """

    nodes: dict[int, NodeState] = field(default_factory=dict)
    ranks: dict[tuple[int, int], RankSeen] = field(default_factory=dict)
    failures: list[Failed] = field(default_factory=list)
    gone: list[Gone] = field(default_factory=list)
    last_words: dict[tuple[int, int], LastWords] = field(default_factory=dict)
    versions: dict[str, list[str]] = field(default_factory=dict)
    loopback_problems: dict[str, str] = field(default_factory=dict)
    endpoint: str = ""
    endpoint_problem: str = ""
    moved_s: float | None = None
    surveys: dict[int, Survey] = field(default_factory=dict)
    post_mortems: dict[int, Survey] = field(default_factory=dict)

    def hear(self, news: News, now_s: float) -> None:
        """Update the state from a message.

        Args:
            now_s: the supervisor's monotonic clock.
        """
        node = self.nodes.setdefault(news.node, NodeState(news.host, now_s))
        node.heard_s = now_s
        match news:
            case Up():
                self.versions.setdefault(news.version, []).append(node.host)
                node.addresses = news.addresses
                if news.loopback_problem:
                    self.loopback_problems[node.host] = news.loopback_problem
            case Endpoint():
                self.endpoint, self.endpoint_problem = news.endpoint, news.problem
            case Gone():
                self.ranks[news.node, news.local_rank] = news
                self.gone.append(news)
            case RankSeen():
                before = self.ranks.get((news.node, news.local_rank))
                if before is None or news.progress != before.progress:
                    self.moved_s = now_s
                self.ranks[news.node, news.local_rank] = news
            case Failed():
                self.failures.append(news)
            case LastWords():
                self.last_words[news.node, news.local_rank] = news
            case NodeAfterFailure():
                self.post_mortems.setdefault(news.node, news.survey)
            case NodeSurvey():
                self.surveys.setdefault(news.node, news.survey)
            case Exit():
                node.exit = news

    @property
    def has_trouble(self) -> bool:
        """Whether a rank failed or is gone, or torchrun failed on a node."""
        return bool(self.failures or self.gone) or any(said.code for said in self.farewells)

    @property
    def farewells(self) -> list[Exit]:
        """`Exit` messages of the nodes' agents, in node order, as far as received."""
        return [node.exit for _, node in sorted(self.nodes.items()) if node.exit is not None]

    @property
    def exits(self) -> Iterator[tuple[Exit, ProcessExit, RankSeen]]:
        """Ended processes: the agent's `Exit`, its entry for a process, and the state of the process's rank."""
        for said in self.farewells:
            for one in said.exits:
                unseen = RankSeen(node=said.node, host=said.host, local_rank=one.local_rank, pid=one.pid)
                yield said, one, self.ranks.get((said.node, one.local_rank), unseen)

    def surveyed(self) -> list[Survey]:
        """The surveys of all nodes in order."""
        return [
            self.surveys.get(index) or Survey(node.host, time.time(), "its agent sent no survey in time")
            for index, node in sorted(self.nodes.items())
        ]

    def host_at(self, address: str) -> str:
        """The node with an address; empty if none has it, or several, as a bridge's."""
        found = [node.host for node in self.nodes.values() if address in node.addresses]
        return found[0] if len(found) == 1 else ""

    def expect_beats(self, now_s: float) -> None:
        """Start measuring silence now; before this, agents had nothing to send."""
        for node in self.nodes.values():
            node.heard_s = now_s

    def silent_hosts(self, now_s: float, silence_s: float) -> list[str]:
        """Nodes silent for longer than `silence_s` whose agents have not sent `Exit`."""
        return [n.host for n in self.nodes.values() if n.exit is None and now_s - n.heard_s > silence_s]
