"""By which ways NCCL connected one rank with others: records of kind ``transport`` in measurements.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_ddpscale.results.records import refuse_other_types


@dataclass(frozen=True)
class Transport:
    """What one rank's NCCL says of its connections.

    A transport is called as NCCL does, less the number of the adapter: ``P2P/CUMEM``, ``SHM/direct/direct``,
    ``NET/IB/GDRDMA``, ``NET/Socket``. Connections are counted once for each channel, where the rank sends.

    Attributes:
        host: host name.
        rank: global rank in the gang.
        local_rank: rank on its host.
        device: GPU UUID, or ``cpu``.
        network: what NCCL takes between nodes: ``IB``, ``Socket``, a plugin's name; ``gloo`` where gloo communicates;
            None if it does not say.
        channels: transport → connections of this rank.
        channels_within_node: those of them whose other end is on the same node.
        channels_between_nodes: those of them whose other end is on another node; of what is left it is not known.
        nvls: whether it has channels that reduce in the NVLink switch.
        nccl_version: such as ``2.27.3+cuda12.9``; None if it does not say.
        problem: why nothing is known; empty if something is.
        unreadable: lines about connections that could not be read.
    """

    host: str
    rank: int
    local_rank: int
    device: str
    network: str | None = None
    channels: Mapping[str, int] = field(default_factory=dict)
    channels_within_node: Mapping[str, int] = field(default_factory=dict)
    channels_between_nodes: Mapping[str, int] = field(default_factory=dict)
    nvls: bool = False
    nccl_version: str | None = None
    problem: str = ""
    unreadable: tuple[str, ...] = ()

    @property
    def channels_somewhere(self) -> dict[str, int]:
        """Transport → connections of which it is not known whether they leave the node."""
        left = {
            name: count - self.channels_within_node.get(name, 0) - self.channels_between_nodes.get(name, 0)
            for name, count in self.channels.items()
        }
        return {name: count for name, count in left.items() if count}

    def as_json(self) -> dict[str, Any]:
        """The record as JSON types, with its ``kind``."""
        return {"kind": "transport", **asdict(self)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Transport:
        """Read what `as_json` wrote.

        Raises:
            TypeError: a key is missing or unknown, or its value of another type.
            ValueError: a number is impossible.
        """
        fields = {key: value for key, value in data.items() if key != "kind"}
        lines = fields.get("unreadable", ())
        if not isinstance(lines, (list, tuple)) or not all(isinstance(line, str) for line in lines):
            raise TypeError(f"unreadable is {lines!r}")
        transport = Transport(**fields | {"unreadable": tuple(lines)})
        refuse_other_types(transport)
        _refuse_impossible_numbers(transport)
        return transport


def transports_of(records: Sequence[dict[str, Any]]) -> list[Transport]:
    """The last record of each rank, in the order of ranks. Raises as `Transport.from_json`."""
    found = [Transport.from_json(record) for record in records if record.get("kind") == "transport"]
    last = {transport.rank: transport for transport in found}
    return [last[rank] for rank in sorted(last)]


def _refuse_impossible_numbers(transport: Transport) -> None:
    if min(transport.rank, transport.local_rank) < 0:
        raise ValueError(f"rank={transport.rank}, local_rank={transport.local_rank}; expected none below 0")
    parts = (transport.channels_within_node, transport.channels_between_nodes)
    counts = [count for mapping in (transport.channels, *parts) for count in mapping.values()]
    is_part = all(part.keys() <= transport.channels.keys() for part in parts)
    if min(counts, default=0) < 0 or min(transport.channels_somewhere.values(), default=0) < 0 or not is_part:
        raise ValueError(
            f"channels={transport.channels}, of which {parts}; expected counts, and no part above its whole"
        )
