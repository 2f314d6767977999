"""Context of one rank of a gang, and the steps from round to round that all ranks take together."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.rank_folder import RecordSink, WantedArms, left
from pytest_ddpscale.run.records import EndReason
from pytest_ddpscale.run.strict_json import Record
from pytest_ddpscale.worker.control import Control
from pytest_ddpscale.worker.device import Device
from pytest_ddpscale.worker.node_telemetry import GangTelemetry, TimedWindow
from pytest_ddpscale.worker.rank_progress import RankProgress

# Judging takes a tenth of a second, and 5 s for probes of 512 nodes. After this time another round is a better use.
STEERING_PATIENCE_S = 10.0
POLL_S = 0.02
Part = TypeVar("Part", bound=Record)
Timed = TypeVar("Timed")


@dataclass(frozen=True)
class RankContext:
    """Context of one rank of a gang.

    Attributes:
        sink: where rank 0 appends records.
        timeout: limit for connecting ranks, and for one collective.
        deadline_unix_s: no round starts after it; None for no limit.
        steered: whether a supervisor decides after each round if the study goes on.
        tries_memory: whether ranks report the memory use of a study.
        profile_steps: number of steps of each arm to profile after the timed rounds; 0 for none.
        nvtx: whether steps and their parts are NVTX ranges.
        loader_cores: cores for loader workers; empty for those of the rank.
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
        """Why round `number` does not begin, or else which of these arms or probes it times.

        Rank 0 decides for all ranks.
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
        join: Callable[[list[Part]], Any], windows: Callable[[Part], Sequence[TimedWindow]] | None = None,
    ) -> Any:  # fmt: skip
        """Rank 0 joins the parts of ranks, and all ranks wait for it. All ranks of the gang call this.

        Args:
            key: unique for each call.
            windows: returns the time windows of a part, of a timed block; None if no telemetry is needed.

        Returns:
            What rank 0's `join` returned, which is JSON, on all ranks; None for a timed block.
        """
        control, mine, done = self.control, f"{key}/{self.control.rank}", f"{key}/done"
        if part is not None:
            control.say(mine, part)
        if windows is not None:
            self.telemetry.tell(
                key, ranks, lambda keys: [one for said in control.hear_all(keys, kind) for one in windows(said)]
            )
        if control.rank == 0:
            control.say(done, join(control.hear_all([f"{key}/{rank}" for rank in ranks], kind)))
        decision = None
        if windows is None:
            decision = control.hear(done)
        else:
            control.wait_for(done)  # a round trip less
            self.telemetry.forget(key, ranks)
        if part is not None:
            control.forget(mine)  # each rank its own, because rank 0 would take long to do it for all
        return decision


def needed_arms(folder: Path, study_id: str, round_number: int, patience_s: float) -> list[str] | None:
    """The arms that need further rounds, decided by the supervisor; empty if the study is finished.

    Args:
        round_number: the round that has just ended, counted from 0.

    Returns:
        None without a decision in time; the measurement then goes on, which costs one round at most.
    """
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        wanted = left(folder, WantedArms)
        if wanted is not None and (wanted.study, wanted.round) == (study_id, round_number):
            return list(wanted.arms)
        time.sleep(POLL_S)
    return None


def arm_order(arms: Sequence[Timed], seed: int, study_id: str, round_number: int) -> list[Timed]:
    """The arms, or probes, in the random order of this round, the same on every rank.

    Random, so periodic disturbances (a neighbour's job, the room's cooling) affect all arms equally.
    """
    shuffled = list(arms)
    random.Random(f"{seed}/{study_id}/{round_number}").shuffle(shuffled)  # noqa: S311 (not a secret)
    return shuffled
