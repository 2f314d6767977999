"""One rank of a gang: what it measures with, and how all ranks go from round to round together."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.results.rank_folder import RecordSink, read_wanted_arms
from pytest_ddpscale.results.records import EndReason
from pytest_ddpscale.results.strict_json import Record
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import Device
from pytest_ddpscale.worker.node_telemetry import GangTelemetry, TimedWindow
from pytest_ddpscale.worker.rank_progress import RankProgress

# Judging takes a tenth of a second, 512 nodes' probes 5 s. After more than this another round is better use of time.
STEERING_PATIENCE_S = 10.0
POLL_S = 0.02
Part = TypeVar("Part", bound=Record)
Timed = TypeVar("Timed")


@dataclass(frozen=True)
class RankContext:
    """One rank of a gang.

    Attributes:
        sink: where rank 0 appends what was measured.
        timeout: limit for connecting ranks, and for one collective.
        deadline_unix_s: no round starts after it; None for no limit.
        steered: whether a supervisor says after each round if the study goes on.
        tries_memory: whether ranks say how much memory a study took.
        profile_steps: of each arm, that are profiled after the timed rounds; 0 for none.
        nvtx: whether steps and their parts are NVTX ranges.
        loader_cores: that processes which load its data may use; none for those of the rank.
        launched_unix_s: when the supervisor began to start the gang, by its clock.
    """

    device: Device
    control: Control
    progress: RankProgress
    sink: RecordSink
    telemetry: GangTelemetry
    timeout: timedelta
    deadline_unix_s: float | None = None
    gang: int = 0
    steered: bool = False
    tries_memory: bool = False
    profile_steps: int = 0
    nvtx: bool = False
    loader_cores: tuple[int, ...] = ()
    launched_unix_s: float = 0.0

    @property
    def is_out_of_time(self) -> bool:
        """Whether no further round may start."""
        return self.deadline_unix_s is not None and time.time() >= self.deadline_unix_s

    def next_round(self, study_id: str, number: int, names: Sequence[str]) -> tuple[EndReason | None, list[str]]:
        """Why round `number` is not begun, or else which of these arms or probes it times.

        It is rank 0's word, which all ranks follow.
        """

        def decide() -> tuple[EndReason | None, list[str]]:
            if self.is_out_of_time:
                return "budget", []
            left = list(names)
            if self.steered and number >= FEWEST_ROUNDS:
                needed = needed_arms(self.sink.folder, study_id, number - 1, STEERING_PATIENCE_S)
                left = left if needed is None else [name for name in left if name in needed]
            return (None, left) if left else ("decided", [])

        ended, left = self.control.decided(f"{study_id}/{number}/next", decide)
        return ended, left

    def gather(
        self, key: str, ranks: Sequence[int], part: Part | None, kind: type[Part],
        join: Callable[[list[Part]], object], windows: Callable[[Part], Sequence[TimedWindow]] | None = None,
    ) -> None:  # fmt: skip
        """Rank 0 does something with what ranks say; nobody goes on before. All ranks of the gang call this.

        Args:
            key: another one for each call.
            windows: when a rank worked, by what it says, where GPUs are asked what they saw of it.
        """
        control, mine = self.control, f"{key}/{self.control.rank}"
        if part is not None:
            control.say(mine, part)
        if windows is not None:
            self.telemetry.tell(
                key, ranks, lambda keys: [one for said in control.hear_all(keys, kind) for one in windows(said)]
            )
        if control.rank == 0:
            join(control.hear_all([f"{key}/{rank}" for rank in ranks], kind))
            control.say(f"{key}/done", True)
        else:
            control.wait_for(f"{key}/done")
        if windows is not None:
            self.telemetry.forget(key, ranks)
        if part is not None:
            control.forget(mine)  # each its own, so that nobody waits for rank 0 to do it for all


def needed_arms(folder: Path, study_id: str, round_number: int, patience_s: float) -> list[str] | None:
    """The arms of which the supervisor wants further rounds; none once the study has told enough.

    Args:
        round_number: the round that has just ended, counted from 0.

    Returns:
        None without a word in time: measuring goes on then, which costs a round and no more.
    """
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        wanted = read_wanted_arms(folder)
        if wanted is not None and (wanted.study, wanted.round) == (study_id, round_number):
            return list(wanted.arms)
        time.sleep(POLL_S)
    return None


def arm_order(arms: Sequence[Timed], seed: int, study_id: str, round_number: int) -> list[Timed]:
    """The arms, or probes, in the random order of this round, the same on every rank.

    Random, so that what comes in waves (a neighbour's job, the room's cooling) falls on no arm more
    than on another.
    """
    shuffled = list(arms)
    random.Random(f"{seed}/{study_id}/{round_number}").shuffle(shuffled)  # noqa: S311 (an order, no secret)
    return shuffled
