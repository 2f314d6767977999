"""Context of one rank of a gang: progress, telemetry, and steps from round to round that all ranks take together."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import ProbeStudy, Study
from pytest_ddpscale.run.block import RankBlock
from pytest_ddpscale.run.rank_folder import (
    RankFailure,
    RankStatus,
    RecordSink,
    StatusWriter,
    WantedArms,
    read_message,
    write_message,
)
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import EndReason, RoundEnd
from pytest_ddpscale.run.strict_json import Record
from pytest_ddpscale.run.telemetry import joined_readings
from pytest_ddpscale.telemetry.windows import Sampler
from pytest_ddpscale.util.masking import masked_text
from pytest_ddpscale.worker.control import Control, rank_of
from pytest_ddpscale.worker.device import Device


class RankProgress:
    """Progress of this rank, updated by the gang. Setting `phase` publishes all fields, so it is set last.

    Attributes:
        rank: global rank; -1 before the gang is joined.

    Args:
        folder: status folder of the node's agent; None without an agent.
    """

    def __init__(self, folder: Path | None = None, local_rank: int = 0) -> None:
        self.rank = -1
        self.study: str | None = None
        self.arm: str | None = None
        self.round: int | None = None
        self.device = ""
        self.gpu_index: int | None = None
        self._local_rank = local_rank
        self._writer: StatusWriter | None = None
        if folder is not None:
            with contextlib.suppress(OSError):  # a full /dev/shm costs the status, not the measurement
                self._writer = StatusWriter(folder, local_rank)
        self._entered = 0
        self.phase = "start-up"

    @property
    def phase(self) -> str:
        """Current phase: ``preparation``, ``warm-up``, ``timed block`` …"""
        return self._phase

    @phase.setter
    def phase(self, phase: str) -> None:
        self._phase = phase
        self._entered += 1
        if self._writer is not None:
            status = RankStatus(
                pid=os.getpid(), rank=self.rank, local_rank=self._local_rank, phase=phase, study=self.study,
                arm=self.arm, round=self.round, entered=self._entered,
            )  # fmt: skip
            with contextlib.suppress(OSError):  # as above
                self._writer.tell(status)

    def count_step(self) -> None:
        """Count one training step."""
        if self._writer is not None:
            self._writer.count_step()

    def tell_failure(self, error: Exception) -> None:
        """Report an error and its place to the node's agent, if there is one; a killed rank's log may lack it."""
        # File names that are not UTF-8 have characters that JSON cannot represent.
        message = str(error).encode("utf-8", "backslashreplace").decode("utf-8")
        if "socket interface" in message or "find address" in message:
            message += "".join(f"\n{name}={value}" for name, value in os.environ.items() if "SOCKET_IFNAME" in name)
        failure = RankFailure(
            local_rank=self._local_rank, rank=self.rank if self.rank >= 0 else rank_of(os.environ), study=self.study,
            arm=self.arm, round=self.round, phase=self.phase, type=type(error).__name__,
            message=masked_text(message), unix_s=time.time(), device=self.device, gpu_index=self.gpu_index,
        )  # fmt: skip
        if self._writer is not None:
            with contextlib.suppress(OSError):  # as above; it is in the log too
                write_message(self._writer.folder, failure)


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
        sampler: of the rank's GPU; None on a CPU.
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
    sampler: Sampler | None
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

    def has_time_for(self, seconds: float) -> bool:
        """Whether that takes at most a quarter of the time left: rounds decide, so they have most of it."""
        return self.deadline_unix_s is None or time.time() + 4 * seconds <= self.deadline_unix_s

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

    def wait_for_first_poll(self) -> None:
        """Before each block; only the first waits."""
        if self.sampler is not None:
            self.sampler.wait_for_first_poll()

    def sampled(self, part: RankBlock, *essence: str) -> RankBlock:
        """A part of a block with the telemetry of its time window, of which `essence` are also readings of the part.

        A dead or late sampler never stops training; the telemetry says so instead.
        """
        if self.sampler is None:
            return part
        telemetry = self.sampler.cut(part.began_unix_s, part.began_unix_s + part.seconds)
        readings = part.readings | {name: getattr(telemetry, name) for name in essence}
        return msgspec.structs.replace(part, readings=readings, telemetry=telemetry)

    def append_telemetry(self, parts: Sequence[RankBlock], study: str, arm: str, number: int) -> None:
        """On rank 0: write the telemetry of a block, before the block itself."""
        by_rank = [(part.rank, part.telemetry) for part in parts if part.telemetry is not None]
        if by_rank:
            common = {"study": study, "arm": arm, "round": number, "gang": self.gang}
            ranks, readings = zip(*by_rank, strict=True)
            self.sink.append_record(joined_readings(readings, ranks=ranks, **common))

    def run_rounds(
        self, study: Study | ProbeStudy, seed: int, prepare: Callable[[Sequence[Arm]], Sequence[Arm]],
        measure: Callable[[Arm, int], None],
    ) -> EndReason:  # fmt: skip
        """Rounds of a study, until all are done, time is up or all is decided. All ranks of the gang call this.

        Args:
            prepare: called before the first round; returns the arms that can be timed.
            measure: one arm, in the round of a number.
        """
        timed: Sequence[Arm] = study.arms
        for number in range(study.rounds):
            ended, names = self.next_round(study.id, number, [arm.name for arm in timed])
            if ended:
                return ended
            timed = [arm for arm in (timed if number else prepare(timed)) if arm.name in names]
            if not timed:
                break
            self.progress.round = number
            for arm in arm_order(timed, seed, study.id, number):
                measure(arm, number)
            if self.control.rank == 0:
                arms = tuple(arm.name for arm in timed)
                self.sink.append_record(RoundEnd(study=study.id, round=number, arms=arms))
        return "rounds"

    def gather(
        self, key: str, ranks: Sequence[int], part: Part | None, kind: type[Part],
        join: Callable[[list[Part]], Any], *, is_timed: bool = False,
    ) -> Any:  # fmt: skip
        """Rank 0 joins the parts of ranks, and all ranks wait for it. All ranks of the gang call this.

        Args:
            key: unique for each call.
            is_timed: whether it is of a timed block, of which nobody asks what rank 0 returned.

        Returns:
            What rank 0's `join` returned, which is JSON, on all ranks; None for a timed block.
        """
        control, mine, done = self.control, f"{key}/{self.control.rank}", f"{key}/done"
        if part is not None:
            control.say(mine, part)
        if control.rank == 0:
            control.say(done, join(control.hear_all([f"{key}/{rank}" for rank in ranks], kind)))
        decision = None
        if is_timed:
            control.wait_for(done)  # a round trip less
        else:
            decision = control.hear(done)
        if part is not None:
            control.forget(mine)  # each rank its own, because rank 0 would take long to do it for all
        return decision

    def record(
        self, key: str, part: Part | None, kind: type[Part], record: Callable[..., AnyRecord],
        ranks: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """Rank 0 writes a record of the parts of ranks, or of all; all ranks of the gang call this."""
        everybody = range(self.control.world_size)

        def join(parts: list[Part]) -> None:
            self.sink.append_record(record(ranks=tuple(parts)))

        self.gather(key, everybody if ranks is None else ranks, part, kind, join)


def needed_arms(folder: Path, study_id: str, round_number: int, patience_s: float) -> list[str] | None:
    """The arms that need further rounds, decided by the supervisor; empty if the study is finished.

    Args:
        round_number: the round that has just ended, counted from 0.

    Returns:
        None without a decision in time; the measurement then goes on, which costs one round at most.
    """
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        wanted = read_message(folder, WantedArms)
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
