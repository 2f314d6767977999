"""The records of measurements.jsonl: one JSON object per line, distinguished by ``kind``.

Measurements have one line per arm and round, with columns over ranks, so a block is complete or absent. Host and device
of a rank are stored once, in the record of its gang.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from msgspec import Meta, field

from pytest_ddpscale.run.column_record import INTEGERS, NUMBERS, ColumnRecord, IntArray
from pytest_ddpscale.run.strict_json import (
    Count,
    Positive,
    Record,
    Seconds,
    UnixSeconds,
    column,
    refuse_other_lengths,
)

# Round number of decisions before the first round of a study.
BEFORE_ROUNDS = -1
# A thousand times the throughput of any GPU on the smallest images; more means a broken clock, and ratios overflow.
MOST_SAMPLES_PER_S = 1e9
NO_CHECKSUM = "0" * 16  # of parameters
# Tolerance: waiting is timed by the host's clock, the block by the device's.
_MOST_WAITED, _CLOCKS_DIFFER_S = 1.01, 0.001
STEP_BYTES = 4  # of one step time: float32 has seven digits, more than any GPU clock

Ranks = Annotated[tuple[Count, ...], Meta(min_length=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Joules = Annotated[float, Meta(ge=0, le=1e12)]
PeakBytes = Annotated[float, Meta(ge=2**20, le=2**47)]  # no process is smaller, and no device larger
Deviation = Annotated[float, Meta(ge=0, le=1e7)]
Texts = tuple[str, ...]
EndReason = Literal["decided", "rounds", "budget", "interrupted", "error"]


class RankPlace(NamedTuple):
    """Place of one rank: host, local rank, and GPU UUID or ``cpu``."""

    host: str
    local_rank: int
    device: str


class GangRecord(Record, frozen=True, kw_only=True, tag_field="kind", tag="gang"):
    """The ranks of one launch. Columns are over all its ranks; a shared value is stored once.

    Attributes:
        gang: its number in this run, to which its measurements refer.
        hosts: host name of each rank.
        local_ranks: rank on its host: the index of its GPU among the visible ones.
        devices: GPU UUID from NVML (``GPU-…``), or ``cpu``.
        device_names: from the driver or the system.
        pids: of the ranks' processes.
        import_s: seconds from the start of the process until torch was imported.
        rendezvous_s: seconds from then until the rank had joined the others.
        threads: number of CPU threads of torch.
        cores: number of cores that the rank may run on.
        numa_nodes: NUMA node whose cores and memory the rank is bound to; None if it is not bound.
        numa_notes: why it is not bound as it should be; empty without a problem.
        versions: of the software.
        environment: variables that change the speed of training or communication, secrets masked.
    """

    gang: Count
    hosts: Annotated[Texts, Meta(min_length=1)]
    local_ranks: Ranks
    devices: Texts
    device_names: str | Texts = ""
    pids: Count | tuple[Count, ...] = 0
    import_s: Deviation | tuple[Deviation, ...] = 0.0
    rendezvous_s: Deviation | tuple[Deviation, ...] = 0.0
    threads: Count | tuple[Count, ...] = 0
    cores: Count | tuple[Count | None, ...] | None = None
    numa_nodes: Count | tuple[Count | None, ...] | None = None
    numa_notes: str | Texts = ""
    versions: dict[str, str | None] | tuple[dict[str, str | None], ...] = field(default_factory=dict)
    environment: dict[str, str] | tuple[dict[str, str], ...] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = [name for name in self.__struct_fields__ if name != "gang"]
        refuse_other_lengths(self, len(self.hosts), *columns)

    @property
    def world_size(self) -> int:
        """Number of ranks, numbered from 0."""
        return len(self.hosts)

    def place(self, rank: int) -> RankPlace:
        """Host, local rank and device of a rank."""
        return RankPlace(self.hosts[rank], self.local_ranks[rank], self.devices[rank])

    @property
    def places_of_devices(self) -> set[tuple[str, str]]:
        """Host and device of every rank."""
        return set(zip(self.hosts, self.devices, strict=True))


class WhoIAm(Record, frozen=True, kw_only=True):
    """One rank's part of a `GangRecord`, sent to rank 0."""

    host: str
    local_rank: Count
    device: str
    device_name: str
    pid: Count
    import_s: Deviation
    rendezvous_s: Deviation
    threads: Count
    cores: Count | None
    numa_node: Count | None
    numa_note: str
    versions: dict[str, str | None]
    environment: dict[str, str]


def joined_gang(ranks: Sequence[WhoIAm], number: int) -> GangRecord:
    """Join the parts of all ranks to the record of their gang.

    Args:
        ranks: parts of all ranks, in order.
        number: of the gang.
    """
    alike = ("device_name", "pid", "numa_node", "numa_note")
    columns = {f"{name}s": column(getattr(one, name) for one in ranks) for name in alike}
    same = ("import_s", "rendezvous_s", "threads", "cores", "versions", "environment")
    columns |= {name: column(getattr(one, name) for one in ranks) for name in same}
    return GangRecord(
        gang=number, hosts=tuple(one.host for one in ranks), local_ranks=tuple(one.local_rank for one in ranks),
        devices=tuple(one.device for one in ranks), **columns,
    )  # fmt: skip


class StudyStart(Record, frozen=True, kw_only=True, tag_field="kind", tag="study_start"):
    """The ranks begin a study."""

    study: str
    unix_s: UnixSeconds


class WarmUp(Record, frozen=True, kw_only=True, tag_field="kind", tag="warm_up"):
    """Warm-up before an arm's first timed block.

    Attributes:
        study: id of the study.
        arm: name of the arm.
        first_block_s: from the construction of the arm to the end of its first steps: compilation, cuDNN's choice of
            algorithms, NCCL's connections. Kept apart from steady state.
        steps_per_block: number of steps in its timed blocks.
    """

    study: str
    arm: str
    first_block_s: Seconds
    steps_per_block: Positive


class SeededSteps(Record, frozen=True, kw_only=True, tag_field="kind", tag="seeded_step"):
    """Results of a step with the same seed, which each rank computes alone.

    Attributes:
        study: id of the study.
        gang: number of the gang.
        ranks: ranks that computed it; columns are in their order.
        checksums: of the gradients' bits, hexadecimal.
        repeats: whether a rank got the same bits when it repeated the step.
    """

    study: str
    gang: Count
    ranks: Ranks
    checksums: str | Texts
    repeats: bool | tuple[bool, ...] = True

    def __post_init__(self) -> None:
        refuse_twice(self.ranks)
        refuse_other_lengths(self, len(self.ranks), "checksums", "repeats")


class RankSeededStep(Record, frozen=True, kw_only=True):
    """One rank's part of `SeededSteps`, sent to rank 0."""

    rank: Count
    checksum: str
    repeats: bool


def joined_seeded_steps(parts: Sequence[RankSeededStep], study: str, gang: int) -> SeededSteps:
    """Join the seeded steps of all ranks of a study."""
    return SeededSteps(
        study=study, gang=gang, ranks=tuple(part.rank for part in parts),
        checksums=column(part.checksum for part in parts), repeats=column(part.repeats for part in parts),
    )  # fmt: skip


class WorkloadFlops(Record, frozen=True, kw_only=True, tag_field="kind", tag="flops"):
    """Floating-point operations per sample of forward and backward pass of a study's model, and their counter."""

    study: str
    flops_per_sample: Annotated[float, Meta(gt=0, le=1e18)]
    counter: str


class FormerFlops(Record, frozen=True, kw_only=True, tag_field="kind", tag="workload_flops"):
    """`WorkloadFlops` in runs of earlier versions."""

    study: str
    flops_per_image: Annotated[float, Meta(gt=0, le=1e18)]
    counter: str


class Block(ColumnRecord, frozen=True, eq=False, kw_only=True, tag_field="kind", tag="block"):
    """One arm in one round, measured by all its ranks. Columns are in the order of `ranks`; a shared value is stored
    once.

    Attributes:
        study: id of the study, ``weak/resnet152-fp16``.
        arm: name of the arm: ``alone``, ``each@8``, ``no_sync@8``, ``ddp@8`` or ``infer@8``.
        round: counted from 0.
        gang: number of the gang.
        batch_size: per-GPU batch, in samples.
        steps: optimizer steps in the block, or forward passes; they may differ between ranks in imported results.
        ranks: ranks that took part, numbered as in the gang.
        started_unix_s: start of the block, seconds since 1970 UTC.
        block_s: its duration, in seconds.
        step_s: duration of each step in seconds, (ranks, steps): little-endian float32, rank after rank, in base64.
            Empty in imported results, which keep none. With 8,192 ranks a list of numbers would take twice the space
            and ten times as long to read.
        waited_s: seconds of each step in which the rank waited for data, in the same format; empty with synthetic
            data.
        step_stdev_s: sample standard deviation of the step time, in seconds, in imported results.
        utilization: share of the block in which the device was busy, 0 … 1 (CPU: process CPU time per thread);
            None if it could not be read.
        energy_j: energy of the GPU in the block, in joules; None if it could not be read, and on a CPU.
        peak_memory_bytes: peak memory (GPU: allocated by torch in this block; CPU: the process's largest resident set
            so far).
        skipped_steps: optimizer steps that fp16's loss scaler skipped in this block.
        parameters_checksum: of the bits of all parameters after the block: 16 hexadecimal digits per rank, rank after
            rank, `NO_CHECKSUM` if not taken; under ``ddp`` only, where all ranks of a group have to agree.
        single_sample: whether this is the one long sample of an imported result, whose spread is that of its steps.
    """

    study: str
    arm: str
    round: Count
    gang: Count
    batch_size: Positive
    steps: Positive | tuple[Positive, ...]
    ranks: Ranks
    started_unix_s: UnixSeconds | tuple[UnixSeconds, ...]
    block_s: Seconds | tuple[Seconds, ...]
    step_s: bytes = b""
    waited_s: bytes = b""
    step_stdev_s: Deviation | tuple[Deviation | None, ...] | None = None
    utilization: Share | tuple[Share | None, ...] | None = None
    energy_j: Joules | tuple[Joules | None, ...] | None = None
    peak_memory_bytes: PeakBytes | tuple[PeakBytes | None, ...] | None = None
    skipped_steps: Count | tuple[Count, ...] = 0
    parameters_checksum: Annotated[str, Meta(pattern="^([0-9a-f]{16})+$")] | None = None
    single_sample: bool = False

    columns: ClassVar[Mapping[str, str]] = {
        "ranks": INTEGERS, "steps": INTEGERS, "started_unix_s": NUMBERS, "block_s": NUMBERS, "step_stdev_s": NUMBERS,
        "utilization": NUMBERS, "energy_j": NUMBERS, "peak_memory_bytes": NUMBERS, "skipped_steps": INTEGERS,
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_twice(self.ranks)
        count, fewest, skipped = len(self.ranks), int(np.min(self.steps)), int(np.max(self.skipped_steps))
        if self.step_s and (isinstance(self.steps, np.ndarray) or len(self.step_s) != STEP_BYTES * count * fewest):
            found = f"{len(self.step_s)} bytes of step times (step_s)"
            raise ValueError(f"{found}; expected {STEP_BYTES} for each of {count} x {fewest}")
        if self.waited_s and len(self.waited_s) != len(self.step_s):
            found = f"{len(self.waited_s)} bytes of seconds waited for data (waited_s)"
            raise ValueError(f"{found}; expected as many as of step times, {len(self.step_s)}")
        waited_s = np.frombuffer(self.waited_s, "<f4").reshape(count, -1)
        if not (np.isfinite(waited_s) & (waited_s >= 0)).all():
            raise ValueError("a wait for data (waited_s) is negative or not finite; expected seconds from 0 on")
        if (waited_s.sum(axis=1, dtype=np.float64) > _MOST_WAITED * self.each("block_s") + _CLOCKS_DIFFER_S).any():
            raise ValueError("a rank waited longer for data (waited_s) than its block lasted (block_s)")
        if len(self.parameters_checksum or NO_CHECKSUM) not in (len(NO_CHECKSUM), len(NO_CHECKSUM) * count):
            found = f"parameters_checksum has {len(self.parameters_checksum or '')} digits"
            raise ValueError(f"{found}; expected {len(NO_CHECKSUM)} for each of {count} ranks")
        if skipped > fewest:
            raise ValueError(f"skipped_steps={skipped}; expected at most {fewest} steps")
        steps, block_s = self.each("steps"), self.each("block_s")
        with np.errstate(over="ignore"):  # an overflow to infinity is refused below
            absurd = np.flatnonzero(float(self.batch_size) * steps > MOST_SAMPLES_PER_S * block_s)
        if len(absurd):
            made, lasted = self.batch_size * int(steps[absurd[0]]), float(block_s[absurd[0]])
            raise ValueError(
                f"batch_size={self.batch_size}, steps={steps[absurd[0]]}, block_s={lasted} are "
                f"{made / lasted:g} samples/s; expected at most {MOST_SAMPLES_PER_S:g}"
            )

    @property
    def checksums(self) -> IntArray:
        """Checksum of each rank's parameters as a number, 0 if not taken, (ranks,)."""
        digits = bytes.fromhex(self.parameters_checksum or NO_CHECKSUM)
        return np.broadcast_to(np.frombuffer(digits, ">i8").astype(np.int64), len(self.ranks))


class RankBlock(Record, frozen=True, kw_only=True):
    """One rank's part of a `Block`, sent to rank 0."""

    rank: Count
    started_unix_s: UnixSeconds
    block_s: Seconds
    step_s: bytes
    utilization: Share | None
    peak_memory_bytes: PeakBytes | None
    skipped_steps: Count
    parameters_checksum: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")] | None
    energy_j: Joules | None = None
    waited_s: bytes = b""


def joined_block(parts: Sequence[RankBlock], **common: Any) -> Block:
    """Join the parts of all ranks to a block.

    Args:
        parts: of all ranks.
        common: study, arm, round, gang, batch_size and steps.
    """
    columns: dict[str, Any] = {
        name: column(getattr(part, name) for part in parts)
        for name in Block.columns
        if name not in ("ranks", "steps", "step_stdev_s")
    }
    ranks, step_s = tuple(part.rank for part in parts), b"".join(part.step_s for part in parts)
    columns["waited_s"] = b"".join(part.waited_s for part in parts)
    checksums = joined_checksums([part.parameters_checksum for part in parts])
    return Block(**common, ranks=ranks, step_s=step_s, parameters_checksum=checksums, **columns)


def joined_checksums(of_ranks: Sequence[str | None]) -> str | None:
    """Checksums in the form of `Block.parameters_checksum`; a shared one is stored once."""
    if len(set(of_ranks)) == 1:
        return of_ranks[0]
    return "".join(one or NO_CHECKSUM for one in of_ranks)


class RoundEnd(Record, frozen=True, kw_only=True, tag_field="kind", tag="round_end"):
    """The end of a round, with names of the arms or ids of the probes that it timed."""

    study: str
    round: Count
    arms: Texts


class StudyEnd(Record, frozen=True, tag_field="kind", tag="study_end"):
    """How a study ended.

    Attributes:
        study: its id.
        reason: ``decided`` (further rounds would change nothing), ``rounds`` (the limit is reached),
            ``budget`` (time ran out), ``interrupted`` (ended from outside) or ``error``.
        message: for ``error``: rank and host, arm, round, phase and error message; for ``interrupted``: the cause,
            such as ``the job reached its time limit``.
    """

    study: str
    reason: EndReason
    message: str = ""


class Lost(Record, frozen=True, kw_only=True, tag_field="kind", tag="lost"):
    """Nodes that stopped responding or that the launcher gave up, with a message."""

    hosts: Texts
    message: str


@dataclass(frozen=True)
class SeededStep:
    """One rank's part of `SeededSteps`."""

    study: str
    rank: int
    local_rank: int
    host: str
    device: str
    checksum: str
    repeats: bool = True


def gangs_by_number(records: Iterable[object]) -> dict[int, GangRecord]:
    """The gangs among records, by number."""
    return {record.gang: record for record in records if isinstance(record, GangRecord)}


def step_bytes(step_s: Iterable[float]) -> bytes:
    """Step times in the format of `Block.step_s`."""
    packed = array.array("f", step_s)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def refuse_twice(ranks: Sequence[int] | IntArray) -> None:
    """Refuse duplicate ranks. Raises ValueError."""
    twice = int((np.diff(np.sort(ranks)) == 0).sum())
    if twice:
        raise ValueError(
            f"ranks has {len(ranks)} values, but {len(ranks) - twice} different ones; expected each rank once"
        )
