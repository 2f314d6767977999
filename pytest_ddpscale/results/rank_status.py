"""Where a rank is, told to its node's agent: files in a folder of the node's own memory, never on a shared disk.

A rank that hangs, is stopped or killed can say nothing any more: what it wrote last says where that
happened. Steps are counted in eight bytes of shared memory, which costs a training step nothing.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import msgspec

from pytest_ddpscale.results.rank_folder import replace_file
from pytest_ddpscale.results.strict_json import Record

# In the environment of ranks: the folder; without it nothing is told.
STATUS_VARIABLE = "DDPSCALE_STATUS_DIR"
FINISHED = "finished"
_COUNTER = struct.Struct("<Q")


class RankStatus(Record, frozen=True, kw_only=True):
    """What a rank last said of itself.

    Attributes:
        rank: global rank; -1 before it has joined the gang.
        phase: what it is doing; `FINISHED` once all its studies are done.
        study: id of the study; None between studies, as `arm` and `round` are outside of them.
        entered: how many phases it has entered, so that a change is seen even if the words are the same.
        steps: training steps since it entered that phase: ranks that take part in more arms are not ahead by it.
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
    """What a rank failed with: the error's type and message, and where it was, as `RankStatus` has it."""

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
    """The side of the rank with that local rank; the folder is in memory, such as below /dev/shm."""

    def __init__(self, folder: Path, local_rank: int) -> None:
        self._path, self._error = folder / f"{local_rank}.json", folder / f"{local_rank}.error.json"
        counter = folder / f"{local_rank}.steps"
        counter.write_bytes(_COUNTER.pack(0))
        with counter.open("r+b") as file:
            self._counter = mmap.mmap(file.fileno(), _COUNTER.size)
        self._steps = 0

    def count_step(self) -> None:
        """One more training step."""
        self._steps += 1
        _COUNTER.pack_into(self._counter, 0, self._steps)

    def tell(self, status: RankStatus) -> None:
        """Replace what was said before. Steps are counted anew."""
        replace_file(self._path, msgspec.json.encode(status))
        self._steps = 0
        _COUNTER.pack_into(self._counter, 0, 0)

    def tell_failure(self, failure: RankFailure) -> None:
        """Leave word of what this rank failed with."""
        replace_file(self._error, msgspec.json.encode(failure))


def read_status(folder: Path, local_rank: int) -> RankStatus | None:
    """What a rank last said; None if it has not yet."""
    try:
        said = msgspec.json.decode((folder / f"{local_rank}.json").read_bytes(), type=RankStatus)
        steps = _COUNTER.unpack((folder / f"{local_rank}.steps").read_bytes())[0]
    except (OSError, msgspec.MsgspecError, struct.error):
        return None
    return msgspec.structs.replace(said, steps=steps)


def read_failure(folder: Path, local_rank: int) -> RankFailure | None:
    """What a rank failed with; None if it did not say."""
    try:
        return msgspec.json.decode((folder / f"{local_rank}.error.json").read_bytes(), type=RankFailure)
    except (OSError, msgspec.MsgspecError):
        return None
