"""Interface between a gang and its owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_ddpscale.node.protocol import Failed
from pytest_ddpscale.run.rank_folder import WantedArms
from pytest_ddpscale.run.record_lines import AnyRecord, Notice
from pytest_ddpscale.run.records import RankGpuError
from pytest_ddpscale.run.survey_record import PostMortem, Survey


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
        left: a sentence about processes left on nodes that another gang would use; empty if there are none.
        rank_ends: ranks whose processes ended early and not by us, the first one first.
        gpu_errors: ranks that an error of their own GPU ended, or a node that did not answer.
        oom_kills: OOM kills on its nodes during the gang, of any user's processes.
    """

    exit_code: int | None
    why: str = ""
    interrupted: str = ""
    lost_hosts: tuple[str, ...] = ()
    failures: tuple[Failed, ...] = ()
    refused: str = ""
    post_mortems: tuple[PostMortem, ...] = ()
    left: str = ""
    rank_ends: tuple[RankEnd, ...] = ()
    oom_kills: int = 0
    gpu_errors: tuple[RankGpuError, ...] = ()


class GangOwner(Protocol):
    """The owner of a gang: keeps its records and answers its questions."""

    def keep(self, lines: bytes) -> list[AnyRecord]:
        """Write rank 0's lines to the run's file. Returns the records.

        Raises:
            WritingError: they cannot be written.
        """

    def hear(self, record: AnyRecord | Notice) -> WantedArms | None:
        """Handle a record that was written, or a notice.

        Returns:
            The answer for rank 0, if it waits for one.
        """

    def deadline_unix_s(self) -> float | None:
        """The time after which no round may start, called once all nodes are up; None for no limit."""

    def admit(self, surveys: Sequence[Survey]) -> str:
        """Record the surveys before any rank starts. Returns why no rank may start; empty if they may."""

    def interrupted(self, interrupt: KeyboardInterrupt) -> None:
        """The session was interrupted; called immediately, while agents still end their ranks."""
