"""Time of an all-reduce: latency and bandwidth (α–β) over two levels of links."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

# Share of a link's data-sheet bandwidth that NCCL's all-reduce of large messages reaches: 8x A100 with NVLink3 (300
# GB/s in one direction) show 230 to 240 GB/s of bus bandwidth in nccl-tests.
LINK_EFFICIENCY = 0.8
LINK_LATENCY_S = 2e-6
# One NDR400 port for two GPUs, or one HDR200 port for each, as in a DGX A100.
NIC_GBPS = 25.0
NIC_LATENCY_S = 5e-6


@dataclass(frozen=True)
class Link:
    """One level of the network from one rank: latency of a message, and bandwidth in one direction."""

    latency_s: float
    bytes_per_s: float

    def slowed(self, share: float) -> Link:
        """The link with this share of its bandwidth, 0 … 1."""
        return Link(self.latency_s, self.bytes_per_s * share)


@dataclass(frozen=True)
class Topology:
    """Nodes of equal size, with consecutive ranks as torchrun numbers them; `between` is each GPU's link."""

    gpus_per_node: int
    inside: Link
    between: Link

    def nodes(self, world_size: int) -> int:
        """Number of nodes of the ranks 0 … world_size−1."""
        return -(-world_size // self.gpus_per_node)


class LinkShares(NamedTuple):
    """Shares of bandwidth (0 … 1) left on the slowest links that a group of ranks uses, inside and between nodes."""

    inside: float = 1.0
    between: float = 1.0


WHOLE = LinkShares()


def ring_s(size_bytes: float, ranks: int, link: Link) -> float:
    """Ring all-reduce: 2(n−1) messages of one n-th each.

    Patarasuk and Yuan (2009), "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    J. Parallel Distrib. Comput. 69(2): every rank sends 2(n−1)/n of the data, the least possible.
    """
    if ranks < 2:
        return 0.0
    return 2 * (ranks - 1) * (link.latency_s + size_bytes / ranks / link.bytes_per_s)


def tree_s(size_bytes: float, ranks: int, link: Link) -> float:
    """Double binary tree, pipelined: twice the data, but only 2 log2(n) latencies.

    Sanders, Speck and Träff (2009), "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
    Parallel Computing 35(12); NCCL uses it where a ring is too long.
    """
    if ranks < 2:
        return 0.0
    return 2 * math.ceil(math.log2(ranks)) * link.latency_s + 2 * size_bytes / link.bytes_per_s


def all_reduce_s(size_bytes: float, world_size: int, nodes: int, topology: Topology, left: LinkShares = WHOLE) -> float:
    """Reduce-scatter in each node, all-reduce of each GPU's part between nodes, all-gather in each node.

    Ranks are spread evenly over the nodes, and each has all the data. All ranks wait for the slowest links.
    """
    inside, between = topology.inside.slowed(left.inside), topology.between.slowed(left.between)
    local = -(-world_size // nodes)
    part = size_bytes / local
    return ring_s(size_bytes, local, inside) + min(ring_s(part, nodes, between), tree_s(part, nodes, between))
