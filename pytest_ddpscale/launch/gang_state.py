"""What the supervisor knows of a gang's nodes and ranks, from what their agents say."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_ddpscale.launch.surveying import Surveys
from pytest_ddpscale.node.protocol import (
    Clock,
    Endpoint,
    Exit,
    Failed,
    Gone,
    LastWords,
    News,
    NodeAfterFailure,
    NodeSurvey,
    RankSeen,
    Up,
)
from pytest_ddpscale.results.rank_status import FINISHED


@dataclass
class NodeState:
    """One node, as its agent last described it.

    Attributes:
        host: its name.
        heard_s: when its agent last said something, on the supervisor's clock.
        addresses: its own.
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
        nodes: by index in rank order, as far as they were heard of.
        ranks: by node and local rank.
        failures: reports that ranks left of themselves, in the order in which they were heard.
        gone: ranks whose process ended before its work did, in that order.
        last_words: what ranks and their NCCL wrote last, by node and local rank.
        versions: of the package on the nodes, with the hosts that have it.
        endpoint: where ranks meet, an address and port of the first node; empty before that says so.
        endpoint_problem: why it cannot say so.
        moved_s: when any rank last did something, on the supervisor's clock; None before all began.
        surveys: what the nodes are, as far as their agents said so.
        post_mortems: what GPUs were after ranks had failed, likewise.
    """

    nodes: dict[int, NodeState] = field(default_factory=dict)
    ranks: dict[tuple[int, int], RankSeen] = field(default_factory=dict)
    failures: list[Failed] = field(default_factory=list)
    gone: list[Gone] = field(default_factory=list)
    last_words: dict[tuple[int, int], LastWords] = field(default_factory=dict)
    versions: dict[str, list[str]] = field(default_factory=dict)
    endpoint: str = ""
    endpoint_problem: str = ""
    moved_s: float | None = None
    surveys: Surveys = field(default_factory=Surveys)
    post_mortems: Surveys = field(default_factory=Surveys)

    def hear(self, news: News, now_s: float, now_unix_s: float = 0.0) -> None:
        """Take note of a message.

        Args:
            news: the message.
            now_s: the supervisor's monotonic clock.
            now_unix_s: when it arrived.
        """
        node = self.nodes.setdefault(news.node, NodeState(news.host, now_s))
        node.heard_s = now_s
        match news:
            case Up():
                self.versions.setdefault(news.version, []).append(node.host)
                node.addresses = news.addresses
            case Endpoint():
                self.endpoint, self.endpoint_problem = news.endpoint, news.problem
            case Gone():
                self.ranks[news.node, news.local_rank] = news
                if not news.reported and news.phase != FINISHED:
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
                self.post_mortems.hear(news)
            case NodeSurvey():
                self.surveys.hear(news)
            case Clock():
                self.surveys.clocks[news.node] = news.unix_s, now_unix_s
            case Exit():
                node.exit = news

    @property
    def has_trouble(self) -> bool:
        """Whether a rank failed or is gone, or torchrun has given up on a node."""
        gave_up = any(node.exit is not None and node.exit.code for node in self.nodes.values())
        return gave_up or bool(self.failures or self.gone)

    def expect_beats(self, now_s: float) -> None:
        """From now on agents speak regularly; before, they waited in silence."""
        for node in self.nodes.values():
            node.heard_s = now_s

    def silent_hosts(self, now_s: float, silence_s: float) -> list[str]:
        """Nodes that have not been heard of for so long, and did not say that they end."""
        return [n.host for n in self.nodes.values() if n.exit is None and now_s - n.heard_s > silence_s]
