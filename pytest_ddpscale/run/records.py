"""The records of measurements.jsonl: one JSON object per line, distinguished by ``kind``.

What is timed has one line per arm and round (`pytest_ddpscale.run.block`), with columns over ranks, so a block is
complete or absent. Host and device of a rank are stored once, in the record of its gang.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Annotated, Literal, TypeVar

from msgspec import Meta, field

from pytest_ddpscale.plan.study import MOST_PROFILED_STEPS
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.reason import Why
from pytest_ddpscale.run.strict_json import (
    Count,
    Line,
    Positive,
    Record,
    Seconds,
    UnixSeconds,
)

T = TypeVar("T")
Some = Annotated[tuple[T, ...], Meta(min_length=1)]
Ranks = Some[Count]
Share = Annotated[float, Meta(ge=0, le=1)]
Joules = Annotated[float, Meta(ge=0, le=1e12)]
PeakBytes = Annotated[float, Meta(ge=2**20, le=2**47)]  # no process is smaller, and no device larger
Milliseconds = Annotated[float, Meta(ge=0, le=1e10)]
Span = Annotated[float, Meta(ge=0, le=1e7)]
Texts = tuple[str, ...]
EndReason = Literal["decided", "rounds", "budget", "interrupted", "error"]


class Rank(Record):
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
    import_s: Span = 0.0
    rendezvous_s: Span = 0.0
    numa_note: str = ""
    versions: dict[str, str | None] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.place.local_rank is None or not self.place.uuid:
            raise ValueError("place has no local rank or no device (uuid)")


class GangRecord(Line, tag="gang"):
    """The ranks of one launch, numbered from 0; measurements refer to its number in this run, `gang`."""

    gang: Count
    ranks: Some[Rank]

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


class RunStart(Line, tag="run"):
    """The first line: `id` of run.json, so that a file of another run is recognized."""

    id: str


class StudyStart(Line, tag="study_start"):
    """The ranks begin a study."""

    study: str
    unix_s: UnixSeconds


class WarmUp(Line, tag="warm_up"):
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


class RankStretch(Record):
    """One rank's part of a `Sustained`.

    Attributes:
        rank: in the gang.
        step_s: seconds of each step, little-endian float32 in base64, of the first rank of each group that trains
            together: all others wait for each other in every step, and have none.
        sm_clock_mhz: mean of its GPU over the last `plan.study.SUSTAINED_S`; None if it was not read.
        temperature_c: likewise.
    """

    rank: Count
    step_s: bytes = b""
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None


class Sustained(Line, tag="sustained"):
    """All ranks of an arm trained it in one stretch before the first round of its study."""

    study: str
    arm: str
    gang: Count
    ranks: tuple[RankStretch, ...]


class SeededStep(Record):
    """Result of a step with the same seed, which a rank computes alone and sends to rank 0.

    Attributes:
        rank: that computed it.
        checksum: of the gradients' bits, hexadecimal.
        repeats: whether the rank got the same bits when it repeated the step.
    """

    rank: Count
    checksum: str
    repeats: bool = True


class SeededSteps(Line, tag="seeded_step"):
    """The seeded steps of a study's ranks."""

    study: str
    gang: Count
    ranks: Some[SeededStep]


class WorkloadFlops(Line, tag="flops"):
    """Floating-point operations per sample of forward and backward pass of a study's model."""

    study: str
    flops_per_sample: Annotated[float, Meta(gt=0, le=1e18)]


class RoundEnd(Line, tag="round_end"):
    """The end of a round, with names of the arms or ids of the probes that it timed."""

    study: str
    round: Count
    arms: Texts


class StudyEnd(Line, tag="study_end"):
    """How a study ended.

    Attributes:
        study: its id.
        reason: ``decided`` (further rounds would change nothing), ``rounds`` (the limit is reached),
            ``budget`` (time ran out), ``interrupted`` (ended from outside) or ``error``.
        message: why, for ``error``: rank and host, arm, round, phase and error message; for ``interrupted``: the cause,
            such as ``the job reached its time limit``.
    """

    study: str
    reason: EndReason
    message: Why = ""


class Lost(Line, tag="lost"):
    """Nodes that stopped responding or that the launcher gave up, and why."""

    hosts: Texts
    message: Why


class RankGpuError(Record):
    """One rank.

    Attributes:
        place: without UUID and index if the rank could not tell them.
        error: ``CUDA error: unspecified launch failure``.
        is_program: whether a wrong kernel or a wrong batch is as likely as the GPU.
        peer: address of the node that did not answer it, which is no error of the GPU; else empty.
        study: that it measured; None between studies, like `arm`.
        peers: number of other ranks that did the same work at the same time.
    """

    place: Place
    error: str
    is_program: bool = False
    study: str | None = None
    arm: str | None = None
    peers: Count = 0
    peer: str = ""


class GpuErrors(Line, tag="gpu_errors"):
    """The ranks of one gang, which may have ended before it was announced.

    Attributes:
        gang: its number.
        ranks: of the gang.
        errors: those that an error of their own GPU ended, or without any that lost the connection to another node.
        studies: that the end of the gang left without a result.
    """

    gang: Count
    ranks: Positive
    errors: tuple[RankGpuError, ...]
    studies: tuple[str, ...] = ()


def gangs_by_number(records: Iterable[object]) -> dict[int, GangRecord]:
    """The gangs among records, by number."""
    return {record.gang: record for record in records if isinstance(record, GangRecord)}


class RankMemory(Record):
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


class StudyMemory(Line, tag="memory"):
    """Peak memory of the ranks of a gang in a study, in rank order: only for the search for the largest batch."""

    study: str
    ranks: tuple[RankMemory, ...]


Channels = dict[str, Count]
# The backend that torch 2.15 calls ``nccl``. Read in its library, not measured: WorkNCCL::getFuture synchronizes the
# current stream, and DDP's hook calls it for each bucket.
WITHOUT_OVERLAP = "ProcessGroupNCCL2"


class RankTransport(Record):
    """Connections of one rank, from its NCCL log, sent to rank 0.

    Transports have NCCL's names without the number of the adapter: ``P2P/CUMEM``, ``SHM/direct/direct``,
    ``NET/IB/GDRDMA``, ``NET/Socket``. Connections are counted once per channel, at the sender.

    Attributes:
        network: network between nodes: ``IB``, ``Socket``, a plugin's name; ``gloo`` with gloo; None if unknown.
        channels: all connections of this rank, by transport; the other two count those known to be within its node
            or between nodes.
        nvls: whether it has channels that reduce in the NVLink switch.
        variables: environment variables of `plan.variables` that it saw set, once NCCL had begun.
        process_group: class of torch's backend, ``ProcessGroupNCCL`` or ``ProcessGroupNCCL2``; empty if unknown.
        problem: why nothing is known; empty if something is.
        unreadable: lines about connections that could not be parsed.
    """

    rank: Count
    network: str | None = None
    channels: Channels = field(default_factory=dict)
    channels_within_node: Channels = field(default_factory=dict)
    channels_between_nodes: Channels = field(default_factory=dict)
    nvls: bool = False
    process_group: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    unreadable: Texts = ()


class GangTransport(Line, tag="transport"):
    """Connections of ranks at the end of a study."""

    study: str
    gang: Count
    ranks: Some[RankTransport]


class ProfiledBucket(Record):
    """One all-reduce of a step, medians over the steps: under DDP that of one gradient bucket.

    Attributes:
        bytes: message size; None if the trace does not have it.
        begins_ms: time since the start of the step.
        took_ms: duration, including the wait for other ranks.
        hidden_ms: part of the duration in which the rank computed.
    """

    bytes: Positive | None
    begins_ms: Milliseconds
    took_ms: Milliseconds
    hidden_ms: Milliseconds


class ProfiledStep(Record):
    """One step, split into three parts: the rank computes, waits for a collective without computing, or is idle.

    Attributes:
        step_ms: duration, including profiler overhead.
        compute_ms: time in which a kernel other than a collective ran (CPU: an operator of the training thread).
        waiting_ms: time in which a collective ran and nothing was computed: exposed communication.
        idle_ms: the rest.
        all_reduce_ms: time in which an all-reduce ran.
        hidden_ms: part of that in which the rank computed.
    """

    step_ms: Milliseconds
    compute_ms: Milliseconds
    waiting_ms: Milliseconds
    idle_ms: Milliseconds
    all_reduce_ms: Milliseconds
    hidden_ms: Milliseconds


class ArmProfile(Line, tag="profile"):
    """Profiled steps of one rank of an arm, or why there are none.

    Attributes:
        study: id of the study.
        arm: name of the arm.
        gang: number of the gang.
        rank: the profiled rank.
        trace: path of the gzipped Chrome trace below the run directory; empty if it could not be kept.
        problem: why there are no numbers; empty if there are.
        steps: in order.
        buckets: all-reduces of a step, in order.
    """

    study: str
    arm: str
    gang: Count
    rank: Count
    trace: str = ""
    problem: str = ""
    steps: Annotated[tuple[ProfiledStep, ...], Meta(max_length=MOST_PROFILED_STEPS)] = ()
    buckets: tuple[ProfiledBucket, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.problem) == bool(self.steps):
            raise ValueError(f"problem is {self.problem!r} with {len(self.steps)} steps; expected either")


class RankEpoch(Record):
    """One rank's epoch, sent to rank 0.

    Attributes:
        rank: all of the gang have one.
        trained: samples that it trained.
        validated: samples that it validated, each of them once.
        correct: validated samples that were classified correctly.
        compile_s: first step and first validated batch under torch.compile, in seconds; 0 without compilation.
        training_s: seconds of steps, including the wait for the device at the end of the epoch.
        waiting_s: seconds blocked in ``next(loader)`` while training.
        validation_s: seconds of forward passes.
        validation_waiting_s: seconds blocked in ``next(loader)`` while validating.
    """

    rank: Count
    trained: Positive
    validated: Count
    correct: Count
    compile_s: Span
    training_s: Span
    waiting_s: Span
    validation_s: Span
    validation_waiting_s: Span

    @property
    def trained_s(self) -> float:
        """Seconds of training, including compilation and waiting for data."""
        return self.compile_s + self.training_s + self.waiting_s


class TrainedEpoch(Line, tag="trained_epoch"):
    """One epoch.

    Attributes:
        study: id of the training run.
        gang: number of the gang.
        epoch: counted from 0.
        losses: loss of each iteration, mean over the ranks' batches.
        ranks: all of the gang, in order.
    """

    study: str
    gang: Count
    epoch: Count
    losses: Some[float]
    ranks: Some[RankEpoch]

    @property
    def mean_loss(self) -> float:
        """Mean over the iterations."""
        return fmean(self.losses)

    @property
    def samples_per_s(self) -> float:
        """Training throughput of all ranks at the slowest one's pace, including waiting for data."""
        return sum(rank.trained for rank in self.ranks) / max(rank.trained_s for rank in self.ranks)

    @property
    def accuracy(self) -> float:
        """Share of all validated samples that were classified correctly, ranks weighted by their samples."""
        return sum(rank.correct for rank in self.ranks) / sum(rank.validated for rank in self.ranks)

    @property
    def validation_samples_per_s(self) -> float:
        """Validation throughput, computed like `samples_per_s`."""
        longest_s = max(rank.validation_s + rank.validation_waiting_s for rank in self.ranks)
        return sum(rank.validated for rank in self.ranks) / longest_s


class RankTrained(Record, kw_only=True):
    """The end of a rank's run, sent to rank 0.

    Attributes:
        rank: all of the gang have one.
        allocated_bytes: peak memory allocated by torch's allocator; None on a CPU.
        reserved_bytes: peak memory that it reserved on the device; None on a CPU.
        energy_j: of its GPU from the start of the rank to the end of the run, by the GPU's counter; None if unknown.
        parameters_checksum: of the bits of all parameters at the end; replicas have to agree.
        skipped_steps: optimizer steps that the loss scaler skipped.
    """

    rank: Count
    allocated_bytes: PeakBytes | None = None
    reserved_bytes: PeakBytes | None = None
    energy_j: Joules | None = None
    parameters_checksum: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
    skipped_steps: Count = 0


class Checkpoint(Record, kw_only=True):
    """Weights and the optimizer's state, written to a disk by rank 0 and read back.

    Attributes:
        seconds: of all of it, also if it went wrong, while the other ranks waited.
        read_s: of these, those of reading.
        size_bytes: of the file.
        problem: why it could not be written, or was read with other weights; empty if all is well.
    """

    seconds: Span
    read_s: Span = 0.0
    size_bytes: Count = 0
    problem: str = ""


class TrainedRun(Line, tag="trained_run"):
    """The end of a run that trained all epochs or reached its loss.

    Attributes:
        study: id of the training run.
        gang: number of the gang.
        start_up_s: seconds from the supervisor's start of the launch until the first epoch, on rank 0's clock.
        parameters: number of parameters of the model.
        trainable_parameters: number of those that are trained.
        ranks: all of the gang, in order.
        checkpoint: after the last epoch; None of a run that trains to a loss.
    """

    study: str
    gang: Count
    start_up_s: Span
    parameters: Positive
    trainable_parameters: Positive
    ranks: Some[RankTrained]
    checkpoint: Checkpoint | None = None


class LaunchTime(Line, tag="launch_time"):
    """Seconds from the start of a launch until the supervisor heard of the run's end, by its clock."""

    study: str
    gang: Count
    seconds: Seconds


OfTraining = TrainedEpoch | TrainedRun | LaunchTime
