"""The rank pairs of a send-recv probe, and the turns in which they run.

Within a node all pairs of ranks are measured, turn by turn, on every node at once. Between nodes that would take N - 1
turns, so nodes form a ring: each node with the next, the last with the first, and equal local ranks paired, so that all
rails of a node are busy at once. Each node is in two pairs, which distinguishes a slow node from a slow link, and the
ring takes two turns, or three for an odd number of nodes.
"""

from __future__ import annotations

from functools import lru_cache

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.pairing import NodePair, all_pairs
from pytest_ddpscale.plan.probe import SINGLE_DEVICE, Probe

RankPair = tuple[int, int]
Ranks = tuple[int, ...]


@lru_cache(maxsize=16)
def pair_turns(probe: Probe, layout: Layout) -> tuple[tuple[RankPair, ...], ...]:
    """The pairs of each turn; no rank is in two pairs of a turn.

    Raises:
        ValueError: the layout has fewer ranks than the probe needs.
    """
    groups = layout.groups(Arm("ddp", probe.world_size, 1))
    if probe.world_size <= layout.ranks_per_node:
        turns = all_pairs(probe.world_size)
        return tuple(tuple((group[i], group[j]) for group in groups for i, j in turn) for turn in turns)
    per_node = layout.ranks_per_node
    nodes = -(-probe.world_size // per_node)
    return tuple(
        tuple(
            (one * per_node + rail, other * per_node + rail)
            for one, other in turn
            for rail in range(per_node)
            if other * per_node + rail < probe.world_size
        )
        for turn in ring_turns(nodes)
    )


def expected_ranks(probe: Probe, layout: Layout) -> list[Ranks]:
    """The ranks of every place at which a gang measures a probe.

    All ranks run single-device probes, the groups of `Layout.groups` run collectives, and the pairs of `pair_turns` run
    send-recv.

    Raises:
        ValueError: the layout has fewer ranks than the probe needs.
    """
    if probe.kind in SINGLE_DEVICE:
        return [(rank,) for rank in range(layout.world_size)]
    if probe.kind == "send-recv":
        return sorted(pair for turn in pair_turns(probe, layout) for pair in turn)
    return list(layout.groups(Arm("ddp", probe.world_size, 1)))


def ring_turns(nodes: int) -> tuple[tuple[NodePair, ...], ...]:
    """Each node with the next one, and the last with the first, in turns of disjoint pairs."""
    path = [(node, node + 1) for node in range(nodes - 1)]
    turns = [path[::2], path[1::2], []]
    if nodes > 2:
        turns[2 if nodes % 2 else 1].append((0, nodes - 1))
    return tuple(tuple(turn) for turn in turns if turn)
