"""State of a gang's nodes and ranks, from their agents' messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from pytest_ddpscale.node.protocol import Failed, Gone, LastWords, News, ProcessExit, RankSeen, Report
from pytest_ddpscale.run.survey_record import Survey


@dataclass
class GangState:
    """All nodes and ranks of a gang.

    Attributes:
        nodes: all that each node reported, by its index in rank order; nodes without a message yet are absent.
        heard_s: time of each agent's latest message, on the supervisor's clock, by node.
        ranks: by node and local rank.
        failures: failure reports of ranks, in order of arrival.
        gone: ranks whose process ended before its work was done, in order of arrival.
        last_words: last lines of ranks and their NCCL, by node and local rank.
        moved_s: when any rank last made progress, on the supervisor's clock; None before.
    """

    nodes: dict[int, Report] = field(default_factory=dict)
    heard_s: dict[int, float] = field(default_factory=dict)
    ranks: dict[tuple[int, int], RankSeen] = field(default_factory=dict)
    failures: list[Failed] = field(default_factory=list)
    gone: list[Gone] = field(default_factory=list)
    last_words: dict[tuple[int, int], LastWords] = field(default_factory=dict)
    moved_s: float | None = None

    def hear(self, news: News, now_s: float) -> None:
        """Update the state from a message.

        Args:
            now_s: the supervisor's monotonic clock.
        """
        self.heard_s[news.node] = now_s
        known = self.nodes.setdefault(news.node, Report(node=news.node, host=news.host))
        match news:
            case Report():
                fields = {name: getattr(news, name) for name in news.__struct_fields__}
                said = {name: value for name, value in fields.items() if value not in (None, "", ())}
                self.nodes[news.node] = replace(known, **said)
                if news.words is not None:
                    self.last_words[news.node, news.words.local_rank] = news.words
            case Failed():
                self.failures.append(news)
            case RankSeen():
                before = self.ranks.get((news.node, news.local_rank))
                self.ranks[news.node, news.local_rank] = news
                if isinstance(news, Gone):
                    self.gone.append(news)
                elif before is None or news.progress != before.progress:
                    self.moved_s = now_s

    @property
    def has_trouble(self) -> bool:
        """Whether a rank failed or is gone, or torchrun failed on a node."""
        return bool(self.failures or self.gone) or any(said.code for said in self.farewells)

    @property
    def in_order(self) -> list[Report]:
        """The nodes in rank order."""
        return [node for _, node in sorted(self.nodes.items())]

    @property
    def farewells(self) -> list[Report]:
        """The nodes whose agents have sent their last message, in order."""
        return [node for node in self.in_order if node.is_last]

    @property
    def serving(self) -> dict[str, int]:
        """The other nodes, whose agents serve, with their indices."""
        return {node.host: node.node for node in self.in_order if not node.is_last}

    @property
    def exits(self) -> Iterator[tuple[Report, ProcessExit, RankSeen]]:
        """Ended processes: what their node's agent reported last, its entry for a process, and the process's rank."""
        for said in self.farewells:
            for one in said.exits:
                unseen = RankSeen(node=said.node, host=said.host, local_rank=one.local_rank, pid=one.pid)
                yield said, one, self.ranks.get((said.node, one.local_rank), unseen)

    def surveyed(self) -> list[Survey]:
        """The surveys of all nodes in order."""
        missing = "its agent sent no survey in time"
        return [node.survey or Survey(node.host, time.time(), missing) for node in self.in_order]

    def host_at(self, address: str) -> str:
        """The node with an address; empty if none has it, or several, as a bridge's."""
        found = [node.host for node in self.nodes.values() if address in node.addresses]
        return found[0] if len(found) == 1 else ""

    def expect_beats(self, now_s: float) -> None:
        """Start measuring silence now; before this, agents had nothing to send."""
        self.heard_s = dict.fromkeys(self.nodes, now_s)

    def silent_hosts(self, now_s: float, silence_s: float) -> list[str]:
        """Nodes silent for longer than `silence_s` whose agents serve."""
        return [host for host, node in self.serving.items() if now_s - self.heard_s[node] > silence_s]
