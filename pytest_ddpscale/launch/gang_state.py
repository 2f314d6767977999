"""A gang as its owner has it: its limits, its nodes and ranks as their agents report them, and its end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from pytest_ddpscale.node.protocol import SILENCE_S, Failed, Gone, LastWords, News, ProcessExit, RankSeen, Report
from pytest_ddpscale.run.rank_folder import WantedArms
from pytest_ddpscale.run.reason import Why
from pytest_ddpscale.run.record_lines import AnyRecord, Notice
from pytest_ddpscale.run.records import RankGpuError
from pytest_ddpscale.run.survey_record import PostMortem, Survey

STARTUP_S = 600.0


@dataclass(frozen=True)
class Limits:
    """All in seconds.

    Attributes:
        budget_s: wall time for all measuring; no round starts after it. None: no limit.
        inactivity_s: a gang without progress of any rank and without records for this long is ended.
        startup_s: the same before the first record, when imports from a shared disk may take minutes, whatever the
            limit after that; a scheduler's queue does not count.
        total_s: a gang is ended after this long in any case. None: never.
        survey_s: longest wait for the agents' surveys.
        silence_s: a node whose agent is silent for this long is considered lost.
    """

    budget_s: float | None = None
    inactivity_s: float = 600.0
    startup_s: float = STARTUP_S
    total_s: float | None = None
    survey_s: float = 90.0
    silence_s: float = SILENCE_S

    @property
    def timeout_s(self) -> float:
        """Of one wait or collective of a rank: longer than `inactivity_s`.

        The supervisor sees all ranks and can name the one that holds up the others.
        """
        return 1.5 * self.inactivity_s + 30

    @property
    def startup_timeout_s(self) -> float:
        """As `timeout_s`, until all ranks are up."""
        return 1.5 * self.startup_s + 30


@dataclass
class GangState:
    """All nodes and ranks of a gang.

    Attributes:
        nodes: all that each node reported, by its index in rank order; nodes without a message yet are absent.
        heard_s: time of each agent's latest message, on the supervisor's clock, by node.
        ranks: by node and local rank.
        failures: failure reports of ranks, in order of arrival.
        gone: ranks whose process ended before its work was done, in order of arrival.
        log_tails: last lines of ranks and their NCCL, by node and local rank.
        moved_s: when any rank last made progress, on the supervisor's clock; None before.
    """

    nodes: dict[int, Report] = field(default_factory=dict)
    heard_s: dict[int, float] = field(default_factory=dict)
    ranks: dict[tuple[int, int], RankSeen] = field(default_factory=dict)
    failures: list[Failed] = field(default_factory=list)
    gone: list[Gone] = field(default_factory=list)
    log_tails: dict[tuple[int, int], LastWords] = field(default_factory=dict)
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
                news_fields = {name: value for name, value in fields.items() if value not in (None, "", ())}
                self.nodes[news.node] = replace(known, **news_fields)
                if news.words is not None:
                    self.log_tails[news.node, news.words.local_rank] = news.words
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
        return bool(self.failures or self.gone) or any(report.code for report in self.final_reports)

    @property
    def in_order(self) -> list[Report]:
        """The nodes in rank order."""
        return [node for _, node in sorted(self.nodes.items())]

    @property
    def final_reports(self) -> list[Report]:
        """The nodes whose agents have sent their last message, in order."""
        return [node for node in self.in_order if node.is_last]

    @property
    def live_agents(self) -> dict[str, int]:
        """The other nodes, whose agents serve, with their indices."""
        return {node.host: node.node for node in self.in_order if not node.is_last}

    @property
    def exits(self) -> Iterator[tuple[Report, ProcessExit, RankSeen]]:
        """Ended processes: what their node's agent reported last, its entry for a process, and the process's rank."""
        for report in self.final_reports:
            for exit_ in report.exits:
                unseen = RankSeen(node=report.node, host=report.host, local_rank=exit_.local_rank, pid=exit_.pid)
                yield report, exit_, self.ranks.get((report.node, exit_.local_rank), unseen)

    def surveyed(self) -> list[Survey]:
        """The surveys of all nodes in order."""
        missing = "its agent sent no survey in time"
        return [node.survey or Survey(node.host, time.time(), missing) for node in self.in_order]

    def host_at(self, address: str) -> str:
        """The node with an address; empty if none has it, or several, as a bridge's."""
        hosts = [node.host for node in self.nodes.values() if address in node.addresses]
        return hosts[0] if len(hosts) == 1 else ""

    def expect_beats(self, now_s: float) -> None:
        """Start measuring silence now; before this, agents had nothing to send."""
        self.heard_s = dict.fromkeys(self.nodes, now_s)

    def silent_hosts(self, now_s: float, silence_s: float) -> list[str]:
        """Nodes silent for longer than `silence_s` whose agents serve."""
        return [host for host, node in self.live_agents.items() if now_s - self.heard_s[node] > silence_s]


@dataclass(frozen=True)
class RankEnd:
    """How a rank's process ended early.

    Attributes:
        name: ``rank 3 on n2``.
        exit_code: negative for a signal's number; None if unknown.
    """

    name: str
    exit_code: int | None


@dataclass(frozen=True)
class GangEnd:
    """How a gang ended.

    Attributes:
        exit_code: exit code of the process that carried its agents; None if it was stopped.
        why: what went wrong; empty if nothing did.
        interrupted: why a scheduler ended it, which is no fault of the nodes; empty otherwise.
        lost_hosts: nodes that were lost.
        failures: failure reports that ranks left.
        refused: why its nodes were not admitted, so that no rank was started; empty if they were.
        post_mortems: surveys of GPUs after ranks failed, as records.
        left: which processes are left on nodes that another gang would use; empty if none are.
        rank_ends: ranks whose processes ended early and not by us, the first one first.
        gpu_errors: ranks that an error of their own GPU ended, or a node that did not answer.
        oom_kills: OOM kills on its nodes during the gang, of any user's processes.
    """

    exit_code: int | None
    why: Why = ""
    interrupted: Why = ""
    lost_hosts: tuple[str, ...] = ()
    failures: tuple[Failed, ...] = ()
    refused: str = ""
    post_mortems: tuple[PostMortem, ...] = ()
    left: Why = ""
    rank_ends: tuple[RankEnd, ...] = ()
    oom_kills: int = 0
    gpu_errors: tuple[RankGpuError, ...] = ()


class GangOwner:
    """The owner of a gang: keeps its records and answers its questions."""

    def keep(self, lines: bytes) -> list[AnyRecord]:
        """Write rank 0's lines to the run's file. Returns the records.

        Raises:
            WritingError: they cannot be written.
        """
        return []

    def hear(self, record: AnyRecord | Notice) -> WantedArms | None:
        """Handle a record that was written, or a notice.

        Returns:
            The answer for rank 0, if it waits for one.
        """
        return None

    def deadline_unix_s(self) -> float | None:
        """The time after which no round may start, called once all nodes are up; None for no limit."""
        return None

    def preflight(self, surveys: Sequence[Survey]) -> str:
        """Record the surveys before any rank starts. Returns why no rank may start; empty if they may."""
        return ""

    def interrupted(self, interrupt: KeyboardInterrupt) -> None:
        """The session was interrupted; called immediately, while agents still end their ranks."""
