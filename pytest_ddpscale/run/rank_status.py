"""Progress of a rank for its node's agent: files in a folder in the node's memory, never on a shared disk.

A rank that hangs or was killed cannot report any more, but its last status shows where it was. Steps are counted in
eight bytes of shared memory, which costs a training step nothing.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import msgspec

from pytest_ddpscale.run.strict_json import Record
from pytest_ddpscale.util.atomic_writing import write_atomically

# Environment variable of ranks with the folder; without it no status is written.
STATUS_VARIABLE = "DDPSCALE_STATUS_DIR"
FINISHED = "finished"
_COUNTER = struct.Struct("<Q")


class RankStatus(Record, frozen=True, kw_only=True):
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


class RankFailure(Record, frozen=True, kw_only=True, omit_defaults=False):
    """Error of a rank: type and message, and where it happened, with the fields of `RankStatus`."""

    local_rank: int
    rank: int = -1
    study: str | None = None
    arm: str | None = None
    round: int | None = None
    phase: str = ""
    type: str = ""
    message: str = ""
    unix_s: float = 0.0


class StatusWriter:
    """Writes the status of one local rank; the folder is in memory, for example below /dev/shm."""

    def __init__(self, folder: Path, local_rank: int) -> None:
        self._path, self._error = folder / f"{local_rank}.json", folder / f"{local_rank}.error.json"
        counter = folder / f"{local_rank}.steps"
        counter.write_bytes(_COUNTER.pack(0))
        with counter.open("r+b") as file:
            self._counter = mmap.mmap(file.fileno(), _COUNTER.size)
        self._steps = 0

    def count_step(self) -> None:
        """Count one training step."""
        self._steps += 1
        _COUNTER.pack_into(self._counter, 0, self._steps)

    def tell(self, status: RankStatus) -> None:
        """Replace the status and restart the step count."""
        write_atomically(self._path, msgspec.json.encode(status), sync=False)
        self._steps = 0
        _COUNTER.pack_into(self._counter, 0, 0)

    def tell_failure(self, failure: RankFailure) -> None:
        """Write this rank's error."""
        write_atomically(self._error, msgspec.json.encode(failure), sync=False)


def read_status(folder: Path, local_rank: int) -> RankStatus | None:
    """The last status of a rank; None before the first."""
    try:
        said = msgspec.json.decode((folder / f"{local_rank}.json").read_bytes(), type=RankStatus)
        steps = _COUNTER.unpack((folder / f"{local_rank}.steps").read_bytes())[0]
    except (OSError, msgspec.MsgspecError, struct.error):
        return None
    return msgspec.structs.replace(said, steps=steps)


def read_failure(folder: Path, local_rank: int) -> RankFailure | None:
    """The error of a rank; None if it wrote none."""
    try:
        return msgspec.json.decode((folder / f"{local_rank}.error.json").read_bytes(), type=RankFailure)
    except (OSError, msgspec.MsgspecError):
        return None
