"""Telemetry of the gang's GPUs: kept by the local rank 0 of each node, cut to timed blocks, written by rank 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.plan.study import DeviceType
from pytest_ddpscale.telemetry.link import Sampler
from pytest_ddpscale.worker.control import Control

Record = dict[str, Any]


class GangTelemetry:
    """One rank's part in it. On CPUs nobody has one.

    It only ever adds: where a sampler is dead or late, the telemetry of a block says so, and training goes on.

    Args:
        control: how ranks tell each other things, and how they are numbered over the nodes.
        device_type: what ranks train on.
        write: called on rank 0 with the telemetry of each block, before its measurements are written.
        sampler: starts a node's sampler; another one in tests.
    """

    def __init__(
        self,
        control: Control,
        device_type: DeviceType,
        write: Callable[[list[Record]], None],
        sampler: Callable[[Sequence[str]], Sampler] = Sampler,
    ) -> None:
        self._control = control
        self._is_on = device_type == "cuda"
        self._write = write
        self._new_sampler = sampler
        self._sampler: Sampler | None = None

    def start(self, key: str) -> None:
        """Start the sampler on local rank 0, for the GPUs of its node.

        Args:
            key: under ``KEY/RANK`` every rank has said who it is, with its ``device``.
        """
        if self._is_on and self._control.local_rank == 0:
            self._sampler = self._new_sampler([said["device"] for said in self._heard(key, self._mine(None))])

    def mark(self) -> None:
        """A block begins: what is counted is read now."""
        if self._sampler is not None:
            self._sampler.mark()

    def tell(self, key: str, ranks: Sequence[int]) -> None:
        """On local rank 0: cut the samples to what the node's ranks have said they timed, and pass it on.

        Args:
            key: of the block: under ``KEY/RANK`` each of `ranks` says its record, or a list of records.
            ranks: that took part.
        """
        mine = self._mine(ranks)
        if self._sampler is None or not mine:
            return
        # Not those that say why a probe could not be timed.
        blocks = [block for said in self._heard(key, mine) for block in _listed(said) if "started_unix_s" in block]
        windows = [(block["device"], block["started_unix_s"], _end_unix_s(block)) for block in blocks]
        found = self._sampler.cut(windows) or [_unknown(window, self._sampler.problem) for window in windows]
        told = [_of_block(block, device) for block, device in zip(blocks, found, strict=True)]
        self._control.say(f"{key}/telemetry/{self._node}", told)

    def collect(self, key: str, ranks: Sequence[int]) -> list[Record]:
        """On rank 0: what all nodes have told of a block; it is written, too."""
        if not self._is_on:
            return []
        per_node = self._control.layout.ranks_per_node
        nodes = sorted({rank // per_node for rank in ranks})
        found = [one for told in self._control.hear_all([f"{key}/telemetry/{node}" for node in nodes]) for one in told]
        if found:
            self._write(found)
        return found

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

    def _mine(self, ranks: Sequence[int] | None) -> list[int]:
        """Those of `ranks` that are on this node; None for all there are."""
        per_node = self._control.layout.ranks_per_node
        own = range(self._node * per_node, (self._node + 1) * per_node)
        return [rank for rank in own if ranks is None or rank in ranks]

    def _heard(self, key: str, ranks: Sequence[int]) -> list[Any]:
        return self._control.hear_all([f"{key}/{rank}" for rank in ranks])


def with_telemetry(records: Sequence[Record], telemetry: Sequence[Record]) -> list[Record]:
    """Measurements with the utilization and energy of their GPU, as far as they are known."""
    by_rank = {one["rank"]: one for one in telemetry}
    return [_completed(record, by_rank.get(record["rank"])) for record in records]


def _completed(record: Record, telemetry: Record | None) -> Record:
    if telemetry is None or record["kind"] != "measurement":
        return record
    utilization = telemetry.get("utilization")
    busy = utilization["mean"] if utilization else None
    return {**record, "utilization": busy, "energy_j": telemetry.get("energy_j")}


def _listed(said: Record | list[Record]) -> list[Record]:
    return said if isinstance(said, list) else [said]


def _end_unix_s(block: Record) -> float:
    seconds: float = block["block_s"] if block["kind"] == "measurement" else block["seconds"]
    return float(block["started_unix_s"]) + seconds


def _unknown(window: tuple[str, float, float], problem: str) -> Record:
    """What a sampler that does not answer knows of a GPU: a block that nobody watched must not look like none."""
    device, start_s, end_s = window
    times = {"started_unix_s": start_s, "ended_unix_s": end_s, "polls": 0}
    return {"device": device, **times, "sources": {}, "unreadable": {"device": problem}}


def _of_block(block: Record, device: Record) -> Record:
    arm = block["arm"] if block["kind"] == "measurement" else Probe(block["probe"], block["world_size"]).id
    place = {key: block[key] for key in ("study", "round", "rank", "local_rank", "host")}
    return {"kind": "telemetry", "arm": arm, **place, **device}
