"""Context of one rank of a gang: progress, telemetry, and steps from round to round that all ranks take together."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import ProbeStudy, Study
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.block import RankBlock
from pytest_ddpscale.run.rank_folder import RankFailure, RankStatus, RecordSink, StatusWriter, WantedArms, leave, left
from pytest_ddpscale.run.record_lines import AnyRecord
from pytest_ddpscale.run.records import EndReason, RoundEnd
from pytest_ddpscale.run.strict_json import Record, each
from pytest_ddpscale.run.telemetry import GpuReadings, TelemetryBlock, joined_readings
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
                leave(self._writer.folder, failure)


class NodeReadings(Record, frozen=True, kw_only=True):
    """Readings of one node's GPUs in the blocks of its ranks, in the order of `ranks`."""

    ranks: tuple[int, ...]
    readings: tuple[GpuReadings, ...]


class TimedWindow(NamedTuple):
    """The time window of one rank's block."""

    rank: int
    started_unix_s: float
    seconds: float


class GangTelemetry:
    """One rank's part in the telemetry; does nothing on CPUs.

    A dead or late sampler never stops training; the telemetry of a block says so instead.

    Args:
        sink: where rank 0 writes the telemetry of each block before the block itself; its folder has the node's lines.
    """

    def __init__(
        self, control: Control, device_type: DeviceType, sink: RecordSink, gang: int,
        sampler: Callable[[Iterable[str], Path], Sampler] = Sampler,
    ) -> None:  # fmt: skip
        self._control = control
        self._is_on = device_type == "cuda"
        self._sink = sink
        self._gang = gang
        self._new_sampler = sampler
        self._sampler: Sampler | None = None
        self._devices: dict[int, str] = {}
        self._is_awaited = True

    def start(self, devices: Callable[[Sequence[int]], Sequence[str]]) -> None:
        """Start the sampler on local rank 0, for the GPUs of its node."""
        if self._is_on and self._control.local_rank == 0:
            mine = self._mine(range(self._control.world_size))
            self._devices = dict(zip(mine, devices(mine), strict=True))
            self._sampler = self._new_sampler(self._devices.values(), self._sink.folder / "gpus.jsonl")

    def wait_for_first_poll(self) -> None:
        """Before each block; only the first may wait, because the sampler starts while arms warm up."""
        if self._sampler is not None and self._is_awaited:
            self._sampler.wait_for_first_poll()
            self._is_awaited = False

    def tell(
        self, key: str, ranks: Sequence[int], windows_of: Callable[[Sequence[str]], Sequence[TimedWindow]]
    ) -> None:
        """On local rank 0: cut what was sampled to the windows of the node's ranks, and publish the readings.

        Args:
            key: of the block; each of `ranks` publishes its part under ``KEY/RANK``.
            windows_of: returns the time windows of the ranks that published under some keys.
        """
        mine = self._mine(ranks)
        if self._sampler is None or not mine:
            return
        timed = windows_of([f"{key}/{rank}" for rank in mine])
        windows = [(self._devices[one.rank], one.started_unix_s, one.started_unix_s + one.seconds) for one in timed]
        told = NodeReadings(ranks=tuple(one.rank for one in timed), readings=self._sampler.cut(windows))
        self._control.say(f"{key}/telemetry/{self._node}", told)

    def collect(self, key: str, ranks: Sequence[int], study: str, arm: str, number: int) -> TelemetryBlock | None:
        """On rank 0: collect and write the readings of all nodes for a block."""
        if not self._is_on:
            return None
        per_node = self._control.layout.ranks_per_node
        keys = [f"{key}/telemetry/{node}" for node in sorted({rank // per_node for rank in ranks})]
        told = self._control.hear_all(keys, NodeReadings)
        named = [rank for one in told for rank in one.ranks]
        if not named:
            return None
        readings = [one for node in told for one in node.readings]
        common = {"study": study, "arm": arm, "round": number, "gang": self._gang}
        block = joined_readings(readings, **common, ranks=tuple(named))
        self._sink.append_record(block)
        return block

    def forget(self, key: str, ranks: Sequence[int]) -> None:
        """Remove the published readings, once they are written."""
        if self._sampler is not None and self._mine(ranks):
            self._control.forget(f"{key}/telemetry/{self._node}")

    def close(self) -> None:
        """End the sampler."""
        if self._sampler is not None:
            self._sampler.close()

    @property
    def _node(self) -> int:
        return self._control.rank // self._control.layout.ranks_per_node

    def _mine(self, ranks: Sequence[int]) -> list[int]:
        """The ranks on this node, in order."""
        per_node = self._control.layout.ranks_per_node
        return [rank for rank in range(self._node * per_node, (self._node + 1) * per_node) if rank in ranks]


def with_telemetry(parts: Sequence[RankBlock], telemetry: TelemetryBlock) -> list[RankBlock]:
    """Ranks' parts of a block, completed with the utilization and energy of their GPU if known."""
    count = len(telemetry.ranks)
    columns = each(telemetry.utilization, count), each(telemetry.energy_j, count)
    known = zip(telemetry.ranks, *columns, strict=True)
    told = {rank: {"utilization": mean, "energy_j": energy_j} for rank, mean, energy_j in known}
    return [msgspec.structs.replace(part, readings=part.readings | told.get(part.rank, {})) for part in parts]


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
