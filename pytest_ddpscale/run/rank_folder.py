"""Files that a node's agent and its ranks exchange in a folder in the node's memory, never on a shared disk.

The agent writes the assignment and the supervisor's decisions on whether a study goes on; rank 0 passes on its records,
which the agent sends to the supervisor. So nodes need no shared file system. Each rank writes its progress: one that
hangs or was killed cannot report any more, but its last status shows where it was. Steps are counted in eight bytes of
shared memory, which costs a training step nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from pytest_ddpscale.run.record_lines import AnyRecord, checked_line
from pytest_ddpscale.run.strict_json import Record
from pytest_ddpscale.util.atomic_writing import write_atomically

T = TypeVar("T")
# Environment variable of ranks with the folder of their status; without it no status is written.
STATUS_VARIABLE = "DDPSCALE_STATUS_DIR"
FINISHED = "finished"
LOGS = "logs"  # subfolder, with `gang` for the logs of this launch and `run` for those of the run
TRACES = "profiles"  # subfolder for traces, which are sent as whole files; also a folder of the run
MOST_TRACE_BYTES = 2**25
_ASSIGNMENT, _RECORDS, _WANTED = "assignment.json", "records", "wanted_arms.json"
_COUNTER_BYTES = 8
_PIPE_BYTES = 2**20  # default limit for unprivileged users; holds a round of thousands of ranks


class Assignment(Record):
    """The work of the ranks of a gang.

    Attributes:
        plan: all studies of the run, as in plan.json.
        studies: ids of the studies to measure, in order.
        timeout_s: limit for one wait or collective.
        startup_timeout_s: the same until all ranks are up.
        steered: whether rank 0 waits after each round for the supervisor's decision.
        tries_memory: whether this launch tests if a study fits into memory: ranks report their memory use, and the
            kernel kills them first if memory runs out.
        profile_steps: number of steps of each arm to profile after the timed rounds; 0 for none.
        nvtx: whether steps and their parts are NVTX ranges.
        secret: known to the ranks of this gang alone, who find and sign their messages by it.
        launched_unix_s: when the supervisor began to start the gang, by its clock.
        deadline_unix_s: no round starts after it; None for no limit.
    """

    plan: msgspec.Raw
    studies: tuple[str, ...]
    gang: int = 0
    timeout_s: float = 600.0
    startup_timeout_s: float = 930.0
    steered: bool = False
    deadline_unix_s: float | None = None
    tries_memory: bool = False
    profile_steps: int = 0
    nvtx: bool = False
    launched_unix_s: float = 0.0
    secret: str = ""


class WantedArms(Record, tag_field="say", tag="wanted"):
    """The supervisor's decision after a round: the arms to go on timing; none if the study is finished."""

    study: str
    round: int
    arms: tuple[str, ...]


class RankStatus(Record, kw_only=True):
    """Last status of a rank.

    Attributes:
        rank: global rank; -1 before it has joined the gang.
        phase: what it is doing; `FINISHED` once all its studies are done.
        study: id of the study; None between studies, like `arm` and `round`.
        entered: number of phases entered so far, which shows a change even if the phase has the same name.
        steps: training steps since it entered the phase; not in total, because ranks train in different numbers of
            arms.
    """

    local_rank: int
    rank: int = -1
    pid: int = 0
    phase: str = "start-up"
    study: str | None = None
    arm: str | None = None
    round: int | None = None
    entered: int = 0
    steps: int = 0


class RankFailure(RankStatus, kw_only=True, omit_defaults=False):
    """Error of a rank: type and message, and its status when it happened.

    Attributes:
        device: UUID of the rank's GPU; empty on a CPU, and before the rank has opened it.
        gpu_index: NVML's index of that GPU; None if NVML did not give it.
    """

    type: str = ""
    message: str = ""
    unix_s: float = 0.0
    device: str = ""
    gpu_index: int | None = None


def leave_order(folder: Path, order: Assignment | WantedArms) -> None:
    """Write the assignment for the ranks, or the supervisor's decision for rank 0. Raises OSError."""
    name = _ASSIGNMENT if isinstance(order, Assignment) else _WANTED
    write_atomically(folder / name, msgspec.json.encode(order), sync=False)


def read_assignment(folder: Path) -> Assignment:
    """Read this rank's assignment. Raises OSError."""
    return msgspec.json.decode((folder / _ASSIGNMENT).read_bytes(), type=Assignment)


def read_wanted_arms(folder: Path) -> WantedArms | None:
    """The supervisor's last decision; None before the first."""
    return _read(folder / _WANTED, WantedArms)


def open_records(folder: Path) -> int:
    """Open the agent's end of the pipe for rank 0's records, as a non-blocking descriptor. Raises OSError."""
    os.mkfifo(folder / _RECORDS)
    # Also open for writing, so the pipe does not report its end while no rank has it open.
    descriptor = os.open(folder / _RECORDS, os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(OSError):  # with a small pipe, for users of many pipes, rank 0 only waits more often
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return descriptor


class RecordSink:
    """Rank 0's end of the pipe: the agent sends its lines on unchanged, each one complete or not at all."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _RECORDS
        self.folder = folder

    def append_record(self, record: AnyRecord) -> None:
        """Send one record. Raises like `append_records`."""
        self.append_records([record])

    def append_records(self, records: Sequence[AnyRecord]) -> None:
        """Send records; blocks while the pipe is full.

        Raises:
            OSError: the agent is gone.
        """
        lines = b"".join(map(checked_line, records))
        # Not blocking, or it would wait for a reader for ever.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
        os.set_blocking(descriptor, True)
        with os.fdopen(descriptor, "wb", buffering=0) as pipe:
            rest = memoryview(lines)
            while rest:
                rest = rest[pipe.write(rest) :]


class StatusWriter:
    """Writes the status of one local rank; the folder is in memory, for example below /dev/shm."""

    def __init__(self, folder: Path, local_rank: int) -> None:
        self._path, self._error = folder / f"{local_rank}.json", folder / f"{local_rank}.error.json"
        counter = folder / f"{local_rank}.steps"
        counter.write_bytes(bytes(_COUNTER_BYTES))
        with counter.open("r+b") as file:
            self._counter = mmap.mmap(file.fileno(), _COUNTER_BYTES)
        self._steps = 0

    def count_step(self) -> None:
        """Count one training step."""
        self._steps += 1
        self._counter[:] = self._steps.to_bytes(_COUNTER_BYTES, "little")

    def tell(self, status: RankStatus) -> None:
        """Replace the status and restart the step count."""
        write_atomically(self._path, msgspec.json.encode(status), sync=False)
        self._steps = 0
        self._counter[:] = bytes(_COUNTER_BYTES)

    def tell_failure(self, failure: RankFailure) -> None:
        """Write this rank's error."""
        write_atomically(self._error, msgspec.json.encode(failure), sync=False)


def read_status(folder: Path, local_rank: int) -> RankStatus | None:
    """The last status of a rank; None before the first."""
    said = _read(folder / f"{local_rank}.json", RankStatus)
    try:
        steps = int.from_bytes((folder / f"{local_rank}.steps").read_bytes(), "little")
    except OSError:
        return None
    return said and msgspec.structs.replace(said, steps=steps)


def read_failure(folder: Path, local_rank: int) -> RankFailure | None:
    """The error of a rank; None if it wrote none."""
    return _read(folder / f"{local_rank}.error.json", RankFailure)


def _read(path: Path, kind: type[T]) -> T | None:
    """The content of a file; None if it is missing or not of that kind."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None
