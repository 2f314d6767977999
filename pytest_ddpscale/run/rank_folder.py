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
_RECORDS = "records"
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


# Names of files, the last two with a rank's local rank.
_FILES: dict[type, str] = {
    Assignment: "assignment.json",
    WantedArms: "wanted_arms.json",
    RankStatus: "{}.json",
    RankFailure: "{}.error.json",
}


def write_message(folder: Path, message: Assignment | WantedArms | RankStatus) -> None:
    """Write what one says to the other: the assignment for the ranks, the supervisor's last decision for rank 0, or a
    rank's status or error. Raises OSError."""
    name = _FILES[type(message)].format(getattr(message, "local_rank", ""))
    write_atomically(folder / name, msgspec.json.encode(message), sync=False)


def read_message(folder: Path, kind: type[T], local_rank: int = 0) -> T | None:
    """What was said last of that kind; None if nothing was."""
    try:
        return msgspec.json.decode((folder / _FILES[kind].format(local_rank)).read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


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
        self.folder, counter = folder, folder / f"{local_rank}.steps"
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
        write_message(self.folder, status)
        self._steps = 0
        self._counter[:] = bytes(_COUNTER_BYTES)


def read_status(folder: Path, local_rank: int) -> RankStatus | None:
    """The last status of a rank; None before the first."""
    status = read_message(folder, RankStatus, local_rank)
    try:
        steps = int.from_bytes((folder / f"{local_rank}.steps").read_bytes(), "little")
    except OSError:
        return None
    return status and msgspec.structs.replace(status, steps=steps)
