"""Who has a gang run, and what it is told of the gang's end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_ddpscale.node.protocol import Failed
from pytest_ddpscale.results.notices import Notice
from pytest_ddpscale.results.rank_folder import WantedArms
from pytest_ddpscale.results.record_lines import AnyRecord
from pytest_ddpscale.results.survey_record import PostMortem, Survey


@dataclass(frozen=True)
class RankEnd:
    """How the process of a rank ended that did not come to its end.

    Attributes:
        name: ``rank 3 on n2``.
        exit_code: negative for a signal's number; None where nobody saw it.
    """

    name: str
    exit_code: int | None


@dataclass(frozen=True)
class GangEnd:
    """How a gang ended.

    Attributes:
        exit_code: of what carried its agents; None if it was stopped.
        why: what went wrong, in words; empty if nothing did.
        interrupted: why a scheduler ended it, if one did: no fault of what is measured.
        lost_hosts: nodes that fell silent.
        failures: reports that ranks left of themselves.
        was_started: whether any process of it ran.
        refused: why its nodes were not admitted, so that no rank was started; empty if they were.
        post_mortems: what GPUs were after ranks had failed, as records.
        left: which processes may be left on nodes that another gang would use, in a sentence; empty if none are.
        rank_ends: ranks whose processes ended too early, not by us, the first one first.
        oom_kills: processes on its nodes, of whomever, that kernels ended for lack of memory meanwhile.
    """

    exit_code: int | None
    why: str = ""
    interrupted: str = ""
    lost_hosts: tuple[str, ...] = ()
    failures: tuple[Failed, ...] = ()
    was_started: bool = True
    refused: str = ""
    post_mortems: tuple[PostMortem, ...] = ()
    left: str = ""
    rank_ends: tuple[RankEnd, ...] = ()
    oom_kills: int = 0


class GangOwner(Protocol):
    """Who has a gang run, and what it does with what comes of it."""

    def keep(self, lines: bytes) -> list[AnyRecord]:
        """Write down what rank 0 has measured, as `RecordSink` was given it. Returns the records of measurements.jsonl.

        Raises:
            WritingError: they cannot be written.
        """

    def hear(self, record: AnyRecord | Notice) -> WantedArms | None:
        """Take note of a record that was written, and of notices meanwhile.

        Returns:
            The answer that rank 0 waits for, if it does.
        """

    def deadline_unix_s(self) -> float | None:
        """Asked when all nodes are there: after which time no round may start; None for no limit."""

    def admit(self, surveys: Sequence[Survey]) -> str:
        """Write down what the nodes are, before any rank starts. Returns why none shall, or nothing."""

    def interrupted(self, interrupt: KeyboardInterrupt) -> None:
        """Somebody ends the session: told at once, while agents end their ranks."""
