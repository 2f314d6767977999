"""Files that a node's agent and its ranks exchange in a local folder of the node; see also rank_status.py.

The agent writes the assignment and the supervisor's decisions on whether a study goes on; rank 0 passes on its records,
which the agent sends to the supervisor. So nodes need no shared file system.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pytest_ddpscale.run.memory_record import StudyMemory
from pytest_ddpscale.run.profile_record import ArmProfile
from pytest_ddpscale.run.record_lines import AnyRecord, checked_line, line_of
from pytest_ddpscale.run.telemetry import TelemetryBlock
from pytest_ddpscale.util.atomic_writing import write_atomically

MEASUREMENTS, TELEMETRY, PROFILES = "measurements.jsonl", "telemetry.jsonl", "profiles.jsonl"
MEMORY = "memory"  # not a file of a run
LOGS = "logs"  # subfolder, with `gang` for the logs of this launch and `run` for those of the run
TRACES = "profiles"  # subfolder for traces, which are sent as whole files; also a folder of the run
MOST_TRACE_BYTES = 2**25
_ASSIGNMENT, _RECORDS, _WANTED = "assignment.json", "records", "wanted_arms.json"
_F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", 1031)
_PIPE_BYTES = 2**20  # default limit for unprivileged users; holds a round of thousands of ranks


class Assignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The work of the ranks of a gang.

    Attributes:
        plan: all studies of the run, as in plan.json.
        studies: ids of the studies to measure, in order.
        timeout_s: limit for one wait or collective.
        steered: whether rank 0 waits after each round for the supervisor's decision.
        tries_memory: whether this launch tests if a study fits into memory: ranks report their memory use, and the
            kernel kills them first if memory runs out.
        profile_steps: number of steps of each arm to profile after the timed rounds; 0 for none.
        nvtx: whether steps and their parts are NVTX ranges.
        launched_unix_s: when the supervisor began to start the gang, by its clock.
        deadline_unix_s: no round starts after it; None for no limit.
    """

    plan: msgspec.Raw
    studies: tuple[str, ...]
    gang: int = 0
    timeout_s: float = 600.0
    steered: bool = False
    deadline_unix_s: float | None = None
    tries_memory: bool = False
    profile_steps: int = 0
    nvtx: bool = False
    launched_unix_s: float = 0.0


class WantedArms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="say", tag="wanted"):
    """The supervisor's decision after a round: the arms to go on timing; none if the study is finished."""

    study: str
    round: int
    arms: tuple[str, ...]


def leave_assignment(folder: Path, assignment: Assignment) -> None:
    """Write the assignment for the ranks. Raises OSError."""
    write_atomically(folder / _ASSIGNMENT, msgspec.json.encode(assignment), sync=False)


def read_assignment(folder: Path) -> Assignment:
    """Read this rank's assignment. Raises OSError."""
    return msgspec.json.decode((folder / _ASSIGNMENT).read_bytes(), type=Assignment)


def leave_wanted_arms(folder: Path, wanted: WantedArms) -> None:
    """Write the supervisor's decision for rank 0. Raises OSError."""
    write_atomically(folder / _WANTED, msgspec.json.encode(wanted), sync=False)


def read_wanted_arms(folder: Path) -> WantedArms | None:
    """The supervisor's last decision; None before the first."""
    try:
        return msgspec.json.decode((folder / _WANTED).read_bytes(), type=WantedArms)
    except (OSError, msgspec.MsgspecError):
        return None


def open_records(folder: Path) -> int:
    """Open the agent's end of the pipe for rank 0's records, as a non-blocking descriptor. Raises OSError."""
    os.mkfifo(folder / _RECORDS)
    # Also open for writing, so the pipe does not report its end while no rank has it open.
    descriptor = os.open(folder / _RECORDS, os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(OSError):  # with a small pipe, for users of many pipes, rank 0 only waits more often
        fcntl.fcntl(descriptor, _F_SETPIPE_SZ, _PIPE_BYTES)
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
        """Send records of measurements.jsonl; blocks while the pipe is full.

        Raises:
            OSError: the agent is gone.
        """
        self._append(MEASUREMENTS, records)

    def append_telemetry(self, records: Sequence[TelemetryBlock]) -> None:
        """Send telemetry records. Raises like `append_records`."""
        self._append(TELEMETRY, records)

    def append_profile(self, record: ArmProfile) -> None:
        """Send the profile of an arm. Raises like `append_records`."""
        self._append(PROFILES, [record])

    def append_memory(self, record: StudyMemory) -> None:
        """Send the memory use of a study, for the search that started this gang. Raises like `append_records`."""
        self._write(MEMORY.encode() + b" " + line_of(record))

    def _append(self, file: str, records: Sequence[AnyRecord | TelemetryBlock | ArmProfile]) -> None:
        self._write(b"".join(file.encode() + b" " + checked_line(record) for record in records))

    def _write(self, lines: bytes) -> None:
        with self._path.open("ab", buffering=0) as pipe:
            rest = memoryview(lines)
            while rest:
                rest = rest[pipe.write(rest) :]


def lines_by_file(data: bytes) -> dict[str, bytes]:
    """Lines from a `RecordSink`, by destination file."""
    found: dict[str, list[bytes]] = {}
    for line in data.splitlines(keepends=True):
        file, _, record = line.partition(b" ")
        name = file.decode("ascii", errors="replace")
        if name in (MEASUREMENTS, TELEMETRY, PROFILES, MEMORY):
            found.setdefault(name, []).append(record)
    return {name: b"".join(records) for name, records in found.items()}
