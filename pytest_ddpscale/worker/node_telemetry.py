"""Telemetry of the gang's GPUs: collected by local rank 0 of each node, cut to timed blocks, written by rank 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.block import RankBlock
from pytest_ddpscale.run.rank_folder import RecordSink
from pytest_ddpscale.run.strict_json import Record, each
from pytest_ddpscale.run.telemetry import GpuReadings, TelemetryBlock, joined_readings
from pytest_ddpscale.telemetry.windows import Sampler
from pytest_ddpscale.worker.control import Control


class NodeReadings(Record, frozen=True, kw_only=True):
    """Readings of one node's GPUs in the blocks of its ranks, in the order of `ranks`."""

    ranks: tuple[int, ...]
    readings: tuple[GpuReadings, ...]


class TimedWindow(NamedTuple):
    """The time window of one rank's block."""

    rank: int
    started_unix_s: float
    seconds: float


class GangTelemetry:
    """One rank's part in the telemetry; does nothing on CPUs.

    A dead or late sampler never stops training; the telemetry of a block says so instead.

    Args:
        sink: where rank 0 writes the telemetry of each block before the block itself; its folder has the node's lines.
    """

    def __init__(
        self, control: Control, device_type: DeviceType, sink: RecordSink, gang: int,
        sampler: Callable[[Iterable[str], Path], Sampler] = Sampler,
    ) -> None:  # fmt: skip
        self._control = control
        self._is_on = device_type == "cuda"
        self._sink = sink
        self._gang = gang
        self._new_sampler = sampler
        self._sampler: Sampler | None = None
        self._devices: dict[int, str] = {}
        self._is_awaited = True

    def start(self, devices: Callable[[Sequence[int]], Sequence[str]]) -> None:
        """Start the sampler on local rank 0, for the GPUs of its node."""
        if self._is_on and self._control.local_rank == 0:
            mine = self._mine(range(self._control.world_size))
            self._devices = dict(zip(mine, devices(mine), strict=True))
            self._sampler = self._new_sampler(self._devices.values(), self._sink.folder / "gpus.jsonl")

    def wait_for_first_poll(self) -> None:
        """Before each block; only the first may wait, because the sampler starts while arms warm up."""
        if self._sampler is not None and self._is_awaited:
            self._sampler.wait_for_first_poll()
            self._is_awaited = False

    def tell(
        self, key: str, ranks: Sequence[int], windows_of: Callable[[Sequence[str]], Sequence[TimedWindow]]
    ) -> None:
        """On local rank 0: cut what was sampled to the windows of the node's ranks, and publish the readings.

        Args:
            key: of the block; each of `ranks` publishes its part under ``KEY/RANK``.
            windows_of: returns the time windows of the ranks that published under some keys.
        """
        mine = self._mine(ranks)
        if self._sampler is None or not mine:
            return
        timed = windows_of([f"{key}/{rank}" for rank in mine])
        windows = [(self._devices[one.rank], one.started_unix_s, one.started_unix_s + one.seconds) for one in timed]
        told = NodeReadings(ranks=tuple(one.rank for one in timed), readings=self._sampler.cut(windows))
        self._control.say(f"{key}/telemetry/{self._node}", told)

    def collect(self, key: str, ranks: Sequence[int], study: str, arm: str, number: int) -> TelemetryBlock | None:
        """On rank 0: collect and write the readings of all nodes for a block."""
        if not self._is_on:
            return None
        per_node = self._control.layout.ranks_per_node
        keys = [f"{key}/telemetry/{node}" for node in sorted({rank // per_node for rank in ranks})]
        told = self._control.hear_all(keys, NodeReadings)
        named = [rank for one in told for rank in one.ranks]
        if not named:
            return None
        readings = [one for node in told for one in node.readings]
        common = {"study": study, "arm": arm, "round": number, "gang": self._gang}
        block = joined_readings(readings, **common, ranks=tuple(named))
        self._sink.append_record(block)
        return block

    def forget(self, key: str, ranks: Sequence[int]) -> None:
        """Remove the published readings, once they are written."""
        if self._sampler is not None and self._mine(ranks):
            self._control.forget(f"{key}/telemetry/{self._node}")

    def close(self) -> None:
        """End the sampler."""
        if self._sampler is not None:
            self._sampler.close()

    @property
    def _node(self) -> int:
        return self._control.rank // self._control.layout.ranks_per_node

    def _mine(self, ranks: Sequence[int]) -> list[int]:
        """The ranks on this node, in order."""
        per_node = self._control.layout.ranks_per_node
        return [rank for rank in range(self._node * per_node, (self._node + 1) * per_node) if rank in ranks]


def with_telemetry(parts: Sequence[RankBlock], telemetry: TelemetryBlock) -> list[RankBlock]:
    """Ranks' parts of a block, completed with the utilization and energy of their GPU if known."""
    count = len(telemetry.ranks)
    columns = each(telemetry.utilization, count), each(telemetry.energy_j, count)
    known = zip(telemetry.ranks, *columns, strict=True)
    told = {rank: {"utilization": mean, "energy_j": energy_j} for rank, mean, energy_j in known}
    return [msgspec.structs.replace(part, readings=part.readings | told.get(part.rank, {})) for part in parts]
