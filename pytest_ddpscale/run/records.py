"""The records of measurements.jsonl: one JSON object per line, distinguished by ``kind``.

What is timed has one line per arm and round (`pytest_ddpscale.run.block`), with columns over ranks, so a block is
complete or absent. Host and device of a rank are stored once, in the record of its gang.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from msgspec import Meta, field

from pytest_ddpscale.run.column_record import IntArray
from pytest_ddpscale.run.place import CPU, Place
from pytest_ddpscale.run.strict_json import (
    Count,
    Positive,
    Record,
    Seconds,
    UnixSeconds,
    refuse_other_lengths,
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


class GangRecord(Record, frozen=True, kw_only=True, tag_field="kind", tag="gang"):
    """The ranks of one launch. Columns are over all its ranks; a shared value is stored once.

    Attributes:
        gang: its number in this run, to which its measurements refer.
        hosts: host name of each rank.
        local_ranks: rank on its host: the index of its GPU among those that CUDA lists.
        devices: GPU UUID from NVML (``GPU-…``), or ``cpu``.
        gpu_indices: NVML's index of its GPU; None if NVML did not give it, and on a CPU.
        pci_bus_ids: NVML's PCI address of its GPU, ``00000000:17:00.0``; empty where `gpu_indices` is None.
        device_names: from the driver or the system.
        pids: of the ranks' processes.
        import_s: seconds from the start of the process until torch was imported.
        rendezvous_s: seconds from then until the rank had joined the others.
        numa_nodes: NUMA node whose cores and memory the rank is bound to; None if it is not bound.
        numa_notes: why it is not bound as it should be; empty without a problem.
        versions: of the software.
        environment: variables that change the speed of training or communication, secrets masked.
    """

    gang: Count
    hosts: Annotated[Texts, Meta(min_length=1)]
    local_ranks: Ranks
    devices: Texts
    gpu_indices: Count | tuple[Count | None, ...] | None = None
    pci_bus_ids: str | Texts = ""
    device_names: str | Texts = ""
    pids: Count | tuple[Count, ...] = 0
    import_s: Deviation | tuple[Deviation, ...] = 0.0
    rendezvous_s: Deviation | tuple[Deviation, ...] = 0.0
    numa_nodes: Count | tuple[Count | None, ...] | None = None
    numa_notes: str | Texts = ""
    versions: dict[str, str | None] | tuple[dict[str, str | None], ...] = field(default_factory=dict)
    environment: dict[str, str] | tuple[dict[str, str], ...] = field(default_factory=dict)

    joins: ClassVar[Mapping[str, Any]] = {
        "hosts": tuple,
        "local_ranks": tuple,
        "devices": tuple,
    }

    def __post_init__(self) -> None:
        columns = [name for name in self.__struct_fields__ if name != "gang"]
        refuse_other_lengths(self, len(self.hosts), *columns)

    @property
    def world_size(self) -> int:
        """Number of ranks, numbered from 0."""
        return len(self.hosts)

    def refuse_without(self, rank: int) -> None:
        """Raises ValueError if it has no such rank."""
        if rank >= self.world_size:
            raise ValueError(f"rank {rank} is named, but gang {self.gang} has {self.world_size} ranks")

    def place(self, rank: int) -> Place:
        """Host, local rank and device of a rank."""
        index = self.gpu_indices[rank] if isinstance(self.gpu_indices, tuple) else self.gpu_indices
        address = self.pci_bus_ids if isinstance(self.pci_bus_ids, str) else self.pci_bus_ids[rank]
        device, local_rank = self.devices[rank], self.local_ranks[rank]
        return Place(self.hosts[rank], local_rank, device, local_rank if device == CPU else index, address)

    @property
    def places_of_devices(self) -> set[tuple[str, str]]:
        """Host and device of every rank."""
        return set(zip(self.hosts, self.devices, strict=True))


class WhoIAm(Record, frozen=True, kw_only=True):
    """One rank's part of a `GangRecord`, sent to rank 0."""

    host: str
    local_rank: Count
    device: str
    gpu_index: Count | None = None
    pci_bus_id: str = ""
    device_name: str
    pid: Count
    import_s: Deviation
    rendezvous_s: Deviation
    numa_node: Count | None
    numa_note: str
    versions: dict[str, str | None]
    environment: dict[str, str]


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

    def __post_init__(self) -> None:
        refuse_twice([one.rank for one in self.ranks])


class WorkloadFlops(Record, frozen=True, kw_only=True, tag_field="kind", tag="flops"):
    """Floating-point operations per sample of forward and backward pass of a study's model, and their counter."""

    study: str
    flops_per_sample: Annotated[float, Meta(gt=0, le=1e18)]
    counter: str


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


def gangs_by_number(records: Iterable[object]) -> dict[int, GangRecord]:
    """The gangs among records, by number."""
    return {record.gang: record for record in records if isinstance(record, GangRecord)}


def refuse_twice(ranks: Sequence[int] | IntArray) -> None:
    """Refuse duplicate ranks. Raises ValueError."""
    twice = int((np.diff(np.sort(ranks)) == 0).sum())
    if twice:
        raise ValueError(
            f"ranks has {len(ranks)} values, but {len(ranks) - twice} different ones; expected each rank once"
        )
