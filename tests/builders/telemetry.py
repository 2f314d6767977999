"""Telemetry window by window: one GPU in one block, which columns hold side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pytest_ddpscale.judge import checks
from pytest_ddpscale.run.place import Place
from pytest_ddpscale.run.records import GangRecord
from pytest_ddpscale.run.strict_json import Count, each
from pytest_ddpscale.run.telemetry import (
    READINGS,
    GpuReadings,
    TelemetryBlock,
    TelemetryColumns,
    joined_readings,
    telemetry_columns_of,
)
from tests.builders.records import gang_at


class Telemetry(GpuReadings, frozen=True):
    """The readings of one GPU in one timed block, and whose they are."""

    study: str
    arm: str
    round: Count
    rank: Count
    local_rank: Count
    host: str
    device: str


def telemetry_of(records: Iterable[object], gangs: Mapping[int, GangRecord]) -> list[Telemetry]:
    """Records GPU by GPU."""
    found = []
    for block in (record for record in records if isinstance(record, TelemetryBlock)):
        columns = [each(getattr(block, name), len(block.ranks)) for name in READINGS]
        for rank, *values in zip(block.ranks, *columns, strict=True):
            at = gangs[block.gang].ranks[rank].place
            readings = dict(zip(READINGS, values, strict=True))
            of = block.study, block.arm, block.round, rank
            found.append(Telemetry(*of, at.of_rank[1], at.host, at.uuid, **readings))
    return found


def columns_of_telemetry(windows: Sequence[Telemetry]) -> TelemetryColumns:
    """In their order, as if each had a gang of its own, in which only its rank matters."""
    blocks, gangs = [], {}
    for number, one in enumerate(windows):
        readings = GpuReadings(**{name: getattr(one, name) for name in READINGS})
        place = {"study": one.study, "arm": one.arm, "round": one.round, "gang": number, "ranks": (one.rank,)}
        blocks.append(joined_readings([readings], **place))
        place_of = Place(one.host, one.local_rank, one.device, one.local_rank)
        gangs[number] = gang_at([place_of] * (one.rank + 1), number)
    return telemetry_columns_of(blocks, gangs)


def flags_of(readings: GpuReadings) -> tuple[str, ...]:
    """What is conspicuous about a GPU, in order."""
    window = Telemetry("weak/r", "ddp@8", 0, 0, 0, "n", "GPU-0", **{name: getattr(readings, name) for name in READINGS})
    told = columns_of_telemetry([window])
    found = {**checks.anomalies(told), "throttled": checks.is_throttled(told).tolist()}
    return tuple(name for name, at in found.items() if any(at))
