"""What a node's agent and its ranks leave each other in a folder of the node's own, see also rank_status.py.

The agent leaves what is to be measured, and the supervisor's word on whether a study goes on; rank 0 hands over the
lines that it has measured, which the agent sends to the supervisor. So no file system has to be shared by nodes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pytest_ddpscale.results.memory_record import StudyMemory
from pytest_ddpscale.results.profile_record import ArmProfile
from pytest_ddpscale.results.record_lines import AnyRecord, checked_line, line_of
from pytest_ddpscale.results.telemetry_record import TelemetryBlock

MEASUREMENTS, TELEMETRY, PROFILES = "measurements.jsonl", "telemetry.jsonl", "profiles.jsonl"
MEMORY = "memory"  # no file of a run
LOGS = "logs"  # a folder of that, with `gang` for the logs of this launch and `run` for those of the run
TRACES = "profiles"  # beside these, for traces, which are sent whole; a folder of the run
MOST_TRACE_BYTES = 2**25
_ASSIGNMENT, _RECORDS, _WANTED = "assignment.json", "records", "wanted_arms.json"
_F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", 1031)  # Python has the name since 3.10 on Linux
_PIPE_BYTES = 2**20  # what an ordinary user may ask for: a round of thousands of ranks


class Assignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the ranks of a gang are to do.

    Attributes:
        plan: all studies of the run, as in plan.json.
        studies: ids of those to measure, in order.
        timeout_s: limit for one wait or collective.
        steered: whether rank 0 waits after each round for the supervisor's word.
        tries_memory: whether it is tried if a study fits into memory: ranks say how much it took, and are the first
            that the kernel ends for lack of it.
        profile_steps: of each arm, that are profiled after the timed rounds; 0 for none.
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
    """The supervisor's word after a round: which arms are timed further; none once the study has told enough."""

    study: str
    round: int
    arms: tuple[str, ...]


def leave_assignment(folder: Path, assignment: Assignment) -> None:
    """Tell the ranks what to do. Raises OSError."""
    replace_file(folder / _ASSIGNMENT, msgspec.json.encode(assignment))


def read_assignment(folder: Path) -> Assignment:
    """What this rank is to do. Raises OSError."""
    return msgspec.json.decode((folder / _ASSIGNMENT).read_bytes(), type=Assignment)


def leave_wanted_arms(folder: Path, wanted: WantedArms) -> None:
    """Tell rank 0 whether a study goes on. Raises OSError."""
    replace_file(folder / _WANTED, msgspec.json.encode(wanted))


def read_wanted_arms(folder: Path) -> WantedArms | None:
    """The supervisor's last word; None before the first."""
    try:
        return msgspec.json.decode((folder / _WANTED).read_bytes(), type=WantedArms)
    except (OSError, msgspec.MsgspecError):
        return None


def open_records(folder: Path) -> int:
    """The agent's end of the pipe for rank 0's records, a descriptor that is never waited for. Raises OSError."""
    os.mkfifo(folder / _RECORDS)
    # Also for writing, so that the pipe has no end while no rank has it open.
    descriptor = os.open(folder / _RECORDS, os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(OSError):  # a user with many pipes gets small ones, in which rank 0 waits more often
        fcntl.fcntl(descriptor, _F_SETPIPE_SZ, _PIPE_BYTES)
    return descriptor


class RecordSink:
    """Rank 0's end, in the folder of its agent: what it appends is sent on as it is, as a whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _RECORDS
        self.folder = folder

    def append_record(self, record: AnyRecord) -> None:
        """Hand over one record. Raises as `append_records`."""
        self.append_records([record])

    def append_records(self, records: Sequence[AnyRecord]) -> None:
        """Hand over records of measurements.jsonl; waits where the agent has not sent on what came before.

        Raises:
            OSError: there is no agent any more.
        """
        self._append(MEASUREMENTS, records)

    def append_telemetry(self, records: Sequence[TelemetryBlock]) -> None:
        """Hand over records of what GPUs said of themselves. Raises as `append_records`."""
        self._append(TELEMETRY, records)

    def append_profile(self, record: ArmProfile) -> None:
        """Hand over what torch.profiler saw of an arm. Raises as `append_records`."""
        self._append(PROFILES, [record])

    def append_memory(self, record: StudyMemory) -> None:
        """Hand over what a study took, for whoever started this gang to find out. Raises as `append_records`."""
        self._write(MEMORY.encode() + b" " + line_of(record))

    def _append(self, file: str, records: Sequence[AnyRecord | TelemetryBlock | ArmProfile]) -> None:
        self._write(b"".join(file.encode() + b" " + checked_line(record) for record in records))

    def _write(self, lines: bytes) -> None:
        with self._path.open("ab", buffering=0) as pipe:
            rest = memoryview(lines)
            while rest:
                rest = rest[pipe.write(rest) :]


def lines_by_file(data: bytes) -> dict[str, bytes]:
    """What a `RecordSink` was given, by the file that it is for."""
    found: dict[str, list[bytes]] = {}
    for line in data.splitlines(keepends=True):
        file, _, record = line.partition(b" ")
        name = file.decode("ascii", errors="replace")
        if name in (MEASUREMENTS, TELEMETRY, PROFILES, MEMORY):
            found.setdefault(name, []).append(record)
    return {name: b"".join(records) for name, records in found.items()}


def replace_file(path: Path, data: bytes) -> None:
    """Write a file that readers see as it was or as it will be. Raises OSError."""
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)
