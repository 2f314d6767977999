"""Telemetry of the gang's GPUs: kept by the local rank 0 of each node, cut to timed blocks, written by rank 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from pytest_ddpscale.plan.study import DeviceType
from pytest_ddpscale.results.records import RankBlock
from pytest_ddpscale.results.strict_json import Record, each
from pytest_ddpscale.results.telemetry_record import GpuReadings, TelemetryBlock, joined_telemetry
from pytest_ddpscale.telemetry.link import Sampler
from pytest_ddpscale.worker.control import Control


class NodeReadings(Record, frozen=True, kw_only=True):
    """What the GPUs of one node said in the blocks that its ranks have timed, in the order in which they said so."""

    ranks: tuple[int, ...]
    readings: tuple[GpuReadings, ...]


class TimedWindow(NamedTuple):
    """When one rank worked."""

    rank: int
    started_unix_s: float
    seconds: float


class GangTelemetry:
    """One rank's part in it. On CPUs nobody has one.

    It only ever adds: where a sampler is dead or late, the telemetry of a block says so, and training goes on.

    Args:
        write: called on rank 0 with the telemetry of each block, before the block itself is written.
    """

    def __init__(
        self,
        control: Control,
        device_type: DeviceType,
        write: Callable[[list[TelemetryBlock]], None],
        gang: int,
        sampler: Callable[[Sequence[str]], Sampler] = Sampler,
    ) -> None:
        self._control = control
        self._is_on = device_type == "cuda"
        self._write = write
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
            self._sampler = self._new_sampler(list(self._devices.values()))

    def mark(self) -> None:
        """A block begins: what is counted is read now."""
        if self._sampler is None:
            return
        if self._is_awaited:  # only now, as it starts while arms warm up
            self._sampler.wait_for_first_poll()
            self._is_awaited = False
        self._sampler.mark()

    def tell(
        self, key: str, ranks: Sequence[int], windows_of: Callable[[Sequence[str]], Sequence[TimedWindow]]
    ) -> None:
        """On local rank 0: cut the samples to what the node's ranks have said they timed, and pass it on.

        Args:
            key: of the block: under ``KEY/RANK`` each of `ranks` says its part of it.
            windows_of: when the ranks worked that said something under some keys.
        """
        mine = self._mine(ranks)
        if self._sampler is None or not mine:
            return
        timed = windows_of([f"{key}/{rank}" for rank in mine])
        windows = [(self._devices[one.rank], one.started_unix_s, one.started_unix_s + one.seconds) for one in timed]
        found = self._sampler.cut(windows) or [_unknown(start, end, self._sampler.problem) for _, start, end in windows]
        told = NodeReadings(ranks=tuple(one.rank for one in timed), readings=tuple(found))
        self._control.say(f"{key}/telemetry/{self._node}", told)

    def collect(self, key: str, ranks: Sequence[int], study: str, arm: str, number: int) -> TelemetryBlock | None:
        """On rank 0: what all nodes have told of a block; it is written, too."""
        if not self._is_on:
            return None
        per_node = self._control.layout.ranks_per_node
        keys = [f"{key}/telemetry/{node}" for node in sorted({rank // per_node for rank in ranks})]
        told = self._control.hear_all(keys, NodeReadings)
        named = [rank for one in told for rank in one.ranks]
        if not named:
            return None
        readings = [one for node in told for one in node.readings]
        block = joined_telemetry(named, readings, study, arm, number, self._gang)
        self._write([block])
        return block

    def forget(self, key: str, ranks: Sequence[int]) -> None:
        """Remove what was told, once it is written."""
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
        """Those that are on this node, in the order of their numbers."""
        per_node = self._control.layout.ranks_per_node
        return [rank for rank in range(self._node * per_node, (self._node + 1) * per_node) if rank in ranks]


def with_telemetry(parts: Sequence[RankBlock], telemetry: TelemetryBlock) -> list[RankBlock]:
    """Ranks' parts of a block with the utilization and energy of their GPU, as far as they are known."""
    count = len(telemetry.ranks)
    means = each(telemetry.utilization.mean, count) if telemetry.utilization else (None,) * count
    known = dict(zip(telemetry.ranks, zip(means, each(telemetry.energy_j, count), strict=True), strict=True))
    return [_completed(part, *known[part.rank]) if part.rank in known else part for part in parts]


def _completed(part: RankBlock, utilization: float | None, energy_j: float | None) -> RankBlock:
    return msgspec.structs.replace(part, utilization=utilization, energy_j=energy_j)


def _unknown(start_s: float, end_s: float, problem: str) -> GpuReadings:
    """What a sampler that does not answer knows of a GPU: a block that nobody watched must not look like none."""
    return GpuReadings(started_unix_s=start_s, ended_unix_s=end_s, unreadable={"device": problem})
