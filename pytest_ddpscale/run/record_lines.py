"""Read and write lines of records; each may refer only to gangs and ranks that earlier lines announced.

Listeners hear of records as they arrive, and of notices between them, which are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from pytest_ddpscale.run.block import Block, Unsupported
from pytest_ddpscale.run.reason import Why
from pytest_ddpscale.run.records import (
    ArmProfile,
    GangRecord,
    GangTransport,
    GpuErrors,
    Lost,
    OfTraining,
    RoundEnd,
    RunStart,
    SeededSteps,
    StudyEnd,
    StudyMemory,
    StudyStart,
    Sustained,
    WarmUp,
    WorkloadFlops,
)
from pytest_ddpscale.run.strict_json import Record, decode
from pytest_ddpscale.run.survey_record import PostMortem, Survey
from pytest_ddpscale.run.telemetry import TelemetryBlock

OfRanks = Block | Unsupported | SeededSteps | Sustained | GangTransport
OfStudies = StudyStart | WarmUp | WorkloadFlops | RoundEnd | StudyEnd
OfDevices = TelemetryBlock | ArmProfile  # beside blocks
OfGangs = OfRanks | OfTraining | OfDevices
AnyRecord = RunStart | GangRecord | Lost | GpuErrors | Survey | PostMortem | OfStudies | OfGangs | StudyMemory
_RECORDS: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)


_encode = msgspec.json.Encoder(enc_hook=lambda column: column.tolist()).encode  # of numpy; NaN becomes null


class RecordReader:
    """Reads line by line; a line may name only ranks of a gang that an earlier line announced."""

    def __init__(self) -> None:
        self._gangs: dict[int, GangRecord] = {}

    def read(self, line: bytes) -> AnyRecord:
        """The record of a line.

        Raises:
            ValueError: the line holds no record, or names an unknown gang or rank.
        """
        record = decode(_RECORDS, line)
        if isinstance(record, GangRecord):
            if record.gang in self._gangs:
                raise ValueError(f"a second gang {record.gang}")
            self._gangs[record.gang] = record
        elif isinstance(record, OfGangs):
            gang = self._gangs.get(record.gang)
            if gang is None:
                raise ValueError(f"gang {record.gang} was not announced before")
            ranks: Any = getattr(record, "ranks", [getattr(record, "rank", 0)])
            if not len(ranks):
                raise ValueError("names no rank")
            rank = int(np.max([rank.rank for rank in ranks] if isinstance(ranks[0], Record) else ranks))
            if rank >= gang.world_size:
                raise ValueError(f"rank {rank} is named, but gang {gang.gang} has {gang.world_size} ranks")
        return record


def checked_line(record: AnyRecord) -> bytes:
    """`line_of` with a check that it can be read again, because NaN would be written as null. Raises ValueError."""
    line = line_of(record)
    decode(_RECORDS, line)
    return line


def line_of(record: Record) -> bytes:
    """A record as a line of its file, with the newline."""
    return _encode(record) + b"\n"


@dataclass(frozen=True)
class Idle:
    """Nothing was recorded since the last notice."""


@dataclass(frozen=True)
class Queued:
    """The requested nodes are not available yet; `state` is the launcher's reason."""

    state: str


@dataclass(frozen=True)
class Interrupted:
    """The session is being ended from outside."""

    message: Why


@dataclass(frozen=True)
class Unfit:
    """Nodes are unfit: reason by host."""

    nodes: Mapping[str, str]


Notice = Idle | Queued | Interrupted | Unfit
Listener = Callable[[AnyRecord | Notice], None]
