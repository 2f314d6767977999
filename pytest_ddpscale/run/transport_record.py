"""Transports of NCCL between ranks: records of kind ``transport`` in measurements.jsonl, one per study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from msgspec import field

from pytest_ddpscale.run.records import Ranks, Texts, gangs_by_number, refuse_twice
from pytest_ddpscale.run.strict_json import Count, Record, each, refuse_other_lengths

Channels = dict[str, Count]
# The backend that torch 2.15 calls ``nccl``. Read in its library, not measured: WorkNCCL::getFuture synchronizes the
# current stream, and DDP's hook calls it for each bucket.
WITHOUT_OVERLAP = "ProcessGroupNCCL2"
WHAT_IT_MAY_COST = (
    "it may not overlap all-reduce with the backward pass, and published figures were measured with ProcessGroupNCCL: "
    "`ddpscale tune --try TORCH_DIST_USE_NCCL2=0,1` compares both"
)


class RankTransport(Record, frozen=True, kw_only=True):
    """Connections of one rank, from its NCCL log, sent to rank 0.

    Transports have NCCL's names without the number of the adapter: ``P2P/CUMEM``, ``SHM/direct/direct``,
    ``NET/IB/GDRDMA``, ``NET/Socket``. Connections are counted once per channel, at the sender.

    Attributes:
        network: network between nodes: ``IB``, ``Socket``, a plugin's name; ``gloo`` with gloo; None if unknown.
        channels: all connections of this rank, by transport; the other two count those known to be within its node
            or between nodes.
        nvls: whether it has channels that reduce in the NVLink switch.
        process_group: class of torch's backend, ``ProcessGroupNCCL`` or ``ProcessGroupNCCL2``; empty if unknown.
        problem: why nothing is known; empty if something is.
        unreadable: lines about connections that could not be parsed.
    """

    rank: Count
    network: str | None = None
    channels: Channels = field(default_factory=dict)
    channels_within_node: Channels = field(default_factory=dict)
    channels_between_nodes: Channels = field(default_factory=dict)
    nvls: bool = False
    process_group: str = ""
    problem: str = ""
    unreadable: Texts = ()


class GangTransport(Record, frozen=True, kw_only=True, tag_field="kind", tag="transport"):
    """Connections of all ranks at the end of a study; a column for each field of `RankTransport`."""

    study: str
    gang: Count
    ranks: Ranks
    network: str | tuple[str | None, ...] | None = None
    channels: Channels | tuple[Channels, ...] = field(default_factory=dict)
    channels_within_node: Channels | tuple[Channels, ...] = field(default_factory=dict)
    channels_between_nodes: Channels | tuple[Channels, ...] = field(default_factory=dict)
    nvls: bool | tuple[bool, ...] = False
    process_group: str | Texts = ""
    problem: str | Texts = ""
    unreadable: tuple[Texts, ...] = ()

    joins: ClassVar[Mapping[str, Any]] = {"unreadable": lambda said: tuple(said) if any(said) else ()}

    def __post_init__(self) -> None:
        count = len(self.ranks)
        refuse_twice(self.ranks)
        refuse_other_lengths(self, count, *_COLUMNS)
        if self.unreadable:
            refuse_other_lengths(self, count, "unreadable")
        kinds = (self.channels, self.channels_within_node, self.channels_between_nodes)
        for whole, *parts in zip(*(each(one, count) for one in kinds), strict=True):
            _refuse_more_than_there_are(whole, *parts)


_COLUMNS = (
    "network", "channels", "channels_within_node", "channels_between_nodes", "nvls", "process_group", "problem",
)  # fmt: skip


class Transport(RankTransport, frozen=True, kw_only=True):
    """Connections of a rank, with its place."""

    host: str
    local_rank: int | None
    device: str
    gpu_index: int | None = None
    pci_bus_id: str = ""

    @property
    def channels_somewhere(self) -> dict[str, int]:
        """Connections by transport that may be within the node or between nodes."""
        left = {
            name: count - self.channels_within_node.get(name, 0) - self.channels_between_nodes.get(name, 0)
            for name, count in self.channels.items()
        }
        return {name: count for name, count in left.items() if count}


def transports_of(records: Sequence[object]) -> list[Transport]:
    """The last connections of each rank, in rank order."""
    gangs = gangs_by_number(records)
    last: dict[int, Transport] = {}
    for line in records:
        if isinstance(line, GangTransport):
            count = len(line.ranks)
            columns: dict[str, Any] = {name: each(getattr(line, name), count) for name in _COLUMNS}
            columns["unreadable"] = line.unreadable or ((),) * count
            for i, rank in enumerate(line.ranks):
                said = {name: values[i] for name, values in columns.items()}
                at = gangs[line.gang].place(rank)
                last[rank] = Transport(
                    rank=rank, host=at.host, local_rank=at.local_rank, device=at.uuid, gpu_index=at.index,
                    pci_bus_id=at.pci, **said,
                )  # fmt: skip
    return [last[rank] for rank in sorted(last)]


def _refuse_more_than_there_are(whole: Channels, within: Channels, between: Channels) -> None:
    for name in within.keys() | between.keys():
        if within.get(name, 0) + between.get(name, 0) > whole.get(name, 0):
            found = f"{name}: {within.get(name, 0)} channels within a node and {between.get(name, 0)} between nodes"
            raise ValueError(f"{found}; expected at most the {whole.get(name, 0)} that there are")
