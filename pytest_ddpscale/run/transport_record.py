"""Transports of NCCL between ranks: records of kind ``transport`` in measurements.jsonl, one per study."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from pytest_ddpscale.run.records import Texts
from pytest_ddpscale.run.strict_json import Count, Record

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

    @property
    def channels_somewhere(self) -> set[str]:
        """Transports of connections that may be within the node or between nodes."""
        within, between = self.channels_within_node, self.channels_between_nodes
        return {name for name, count in self.channels.items() if count > within.get(name, 0) + between.get(name, 0)}


class GangTransport(Record, frozen=True, kw_only=True, tag_field="kind", tag="transport"):
    """Connections of ranks at the end of a study."""

    study: str
    gang: Count
    ranks: Annotated[tuple[RankTransport, ...], Meta(min_length=1)]
