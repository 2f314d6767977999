"""Where a rank is, told to its node's agent: files in a folder of the node's own memory, never on a shared disk.

A rank that hangs, is stopped or killed can say nothing any more: what it wrote last says where that
happened. Steps are counted in eight bytes of shared memory, which costs a training step nothing.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# In the environment of ranks: the folder; without it nothing is told.
STATUS_VARIABLE = "DDPSCALE_STATUS_DIR"
FINISHED = "finished"
_COUNTER = struct.Struct("<Q")


@dataclass(frozen=True)
class RankStatus:
    """What a rank last said of itself.

    Attributes:
        rank: global rank; -1 before it has joined the gang.
        phase: what it is doing; `FINISHED` once all its studies are done.
        study: id of the study; None between studies, as `arm` and `round` are outside of them.
        entered: how many phases it has entered, so that a change is seen even if the words are the same.
        steps: training steps since it entered that phase: ranks that take part in more arms are not ahead by it.
    """

    pid: int
    rank: int
    local_rank: int
    phase: str
    study: str | None = None
    arm: str | None = None
    round: int | None = None
    entered: int = 0
    steps: int = 0


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
        _replace(self._path, asdict(status))
        self._steps = 0
        _COUNTER.pack_into(self._counter, 0, 0)

    def tell_failure(self, report: dict[str, Any]) -> None:
        """Leave word of what this rank failed with."""
        _replace(self._error, report)


def read_status(folder: Path, local_rank: int) -> RankStatus | None:
    """What a rank last said; None if it has not yet."""
    said = _read(folder / f"{local_rank}.json")
    if said is None:
        return None
    try:
        steps = _COUNTER.unpack((folder / f"{local_rank}.steps").read_bytes())[0]
        return RankStatus(**{**said, "steps": steps})
    except (OSError, struct.error, TypeError):
        return None


def read_failure(folder: Path, local_rank: int) -> dict[str, Any] | None:
    """What a rank failed with; None if it did not say."""
    return _read(folder / f"{local_rank}.error.json")


def _replace(path: Path, data: dict[str, Any]) -> None:
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(data), encoding="utf-8")
    temporary.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None
