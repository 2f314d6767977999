"""The records of measurements.jsonl: one JSON object per line, distinguished by ``kind``.

What is timed has one line per arm and round (`pytest_ddpscale.run.block`), with columns over ranks, so a block is
complete or absent. Host and device of a rank are stored once, in the record of its gang.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta, field

from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.strict_json import (
    Count,
    Positive,
    Record,
    Seconds,
    UnixSeconds,
)

# Round number of decisions before the first round of a study.
BEFORE_ROUNDS = -1

Ranks = Annotated[tuple[Count, ...], Meta(min_length=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Joules = Annotated[float, Meta(ge=0, le=1e12)]
PeakBytes = Annotated[float, Meta(ge=2**20, le=2**47)]  # no process is smaller, and no device larger
Deviation = Annotated[float, Meta(ge=0, le=1e7)]
Texts = tuple[str, ...]
EndReason = Literal["decided", "rounds", "budget", "interrupted", "error"]


class Rank(Record, frozen=True, kw_only=True):
    """A rank of a launch, as it announces itself to rank 0.

    Attributes:
        place: with its local rank and its device.
        device_name: from the driver or the system.
        pid: of its process.
        import_s: seconds from the start of the process until torch was imported.
        rendezvous_s: seconds from then until the rank had joined the others.
        numa_note: why it is not bound to its GPU's NUMA node as it should be; empty without a problem.
        versions: of the software; None if rank 0 has the same.
        environment: of rank 0: variables that change the speed of training or communication, secrets masked.
    """

    place: Place
    device_name: str = ""
    pid: Count = 0
    import_s: Deviation = 0.0
    rendezvous_s: Deviation = 0.0
    numa_note: str = ""
    versions: dict[str, str | None] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.place.local_rank is None or not self.place.uuid:
            raise ValueError("place has no local rank or no device (uuid)")


class GangRecord(Record, frozen=True, kw_only=True, tag_field="kind", tag="gang"):
    """The ranks of one launch, numbered from 0; measurements refer to its number in this run, `gang`."""

    gang: Count
    ranks: Annotated[tuple[Rank, ...], Meta(min_length=1)]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def places(self) -> list[Place]:
        """Host, local rank and device of every rank."""
        return [rank.place for rank in self.ranks]

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts, in order of their first ranks."""
        return list(dict.fromkeys(rank.place.host for rank in self.ranks))

    def versions_of(self, rank: int) -> dict[str, str | None]:
        """Software versions of a rank."""
        own = self.ranks[rank].versions
        return (self.ranks[0].versions or {}) if own is None else own


class RunStart(Record, frozen=True, kw_only=True, tag_field="kind", tag="run"):
    """The first line: `id` of run.json, so that a file of another run is recognized."""

    id: str


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
    """

    study: str
    arm: str
    first_block_s: Seconds


class SeededStep(Record, frozen=True, kw_only=True):
    """Result of a step with the same seed, which a rank computes alone and sends to rank 0.

    Attributes:
        rank: that computed it.
        checksum: of the gradients' bits, hexadecimal.
        repeats: whether the rank got the same bits when it repeated the step.
    """

    rank: Count
    checksum: str
    repeats: bool = True


class SeededSteps(Record, frozen=True, kw_only=True, tag_field="kind", tag="seeded_step"):
    """The seeded steps of a study's ranks."""

    study: str
    gang: Count
    ranks: Annotated[tuple[SeededStep, ...], Meta(min_length=1)]


class WorkloadFlops(Record, frozen=True, kw_only=True, tag_field="kind", tag="flops"):
    """Floating-point operations per sample of forward and backward pass of a study's model."""

    study: str
    flops_per_sample: Annotated[float, Meta(gt=0, le=1e18)]


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


class RankGpuError(Record, frozen=True, kw_only=True):
    """One rank.

    Attributes:
        place: without UUID and index if the rank could not tell them.
        error: ``CUDA error: unspecified launch failure``.
        study: that it measured; None between studies, like `arm`.
        peers: number of other ranks that did the same work at the same time.
    """

    place: Place
    error: str
    study: str | None = None
    arm: str | None = None
    peers: Count = 0


class GpuErrors(Record, frozen=True, kw_only=True, tag_field="kind", tag="gpu_errors"):
    """The ranks of one gang, which may have ended before it was announced.

    Attributes:
        gang: its number.
        ranks: of the gang.
        errors: those that an error of their own GPU ended.
        studies: that the end of the gang left without a result.
    """

    gang: Count
    ranks: Positive
    errors: tuple[RankGpuError, ...]
    studies: tuple[str, ...] = ()


def gangs_by_number(records: Iterable[object]) -> dict[int, GangRecord]:
    """The gangs among records, by number."""
    return {record.gang: record for record in records if isinstance(record, GangRecord)}


class RankMemory(Record, frozen=True, kw_only=True):
    """Peak memory of one rank, in bytes.

    Attributes:
        own_bytes: memory of this rank alone. GPU: all device memory in use: peak of torch's allocator, NCCL's buffers,
            CUDA's context. CPU: peak resident set minus shared pages.
        shared_bytes: pages shared by the ranks of a node, such as those of libraries; 0 on a GPU.
        total_bytes: memory of the device; None on a CPU, where a rank does not know its limit.
    """

    own_bytes: Count
    shared_bytes: Count = 0
    total_bytes: Positive | None = None


class StudyMemory(Record, frozen=True, kw_only=True, tag_field="kind", tag="memory"):
    """Peak memory of the ranks of a gang in a study, in rank order: only for the search for the largest batch."""

    study: str
    ranks: tuple[RankMemory, ...]
