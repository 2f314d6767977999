"""Layout of ranks: numbering over nodes, meaning of world sizes, and the groups that time an arm.

Of pairs of ranks within a node all are measured, turn by turn, on every node at once. Between nodes that would take
N - 1 turns, so nodes form a ring: each node with the next, the last with the first, and equal local ranks paired, so
that all rails of a node are busy at once. Each node is in two pairs, which distinguishes a slow node from a slow link,
and the ring takes two turns, or three for an odd number of nodes. Nobody is in two pairs at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.words import refuse_below_one

# As in a thresholds file: a number of ranks, ``node`` (all of one node), ``2 nodes``, or ``all`` (of several nodes).
WorldSize: TypeAlias = int | str
Ranks = tuple[int, ...]
Pair = tuple[int, int]  # smaller number first


@dataclass(frozen=True)
class Layout:
    """Ranks of a gang numbered node by node: rank = node_index · ranks_per_node + local_rank."""

    nodes: int
    ranks_per_node: int

    def __post_init__(self) -> None:
        refuse_below_one(self, "a layout", "nodes", "ranks_per_node")

    @property
    def world_size(self) -> int:
        """Ranks on all nodes."""
        return self.nodes * self.ranks_per_node

    def ranks_in(self, world_size: WorldSize) -> int | None:
        """Number of ranks of a world size here; None if it needs more nodes, or for `all` on a single node."""
        if isinstance(world_size, int):
            return world_size
        if world_size == "node":
            return self.ranks_per_node
        nodes = self.nodes if world_size == "all" else int(world_size.removesuffix(" nodes"))
        return nodes * self.ranks_per_node if 1 < nodes <= self.nodes else None

    def fits_node(self, arm: Arm) -> bool:
        """Whether the arm fits one node, so that all nodes train it at once and each is judged by itself."""
        return arm.placement == "packed" and arm.world_size <= self.ranks_per_node

    def judged_by_node(self, arms: Iterable[Arm]) -> bool:
        """Whether each of several nodes gives its own result, all of which have to meet a bound."""
        return self.nodes > 1 and all(map(self.fits_node, arms))

    def takes_turns(self, arm: Arm) -> bool:
        """Whether a node's ranks, divided into groups of the arm's size, train it one group after the other.

        Without turns the same ranks would be in every arm and others only in the largest one, where a slow rank is
        harder to find. Ranks of ``each`` are compared with each other, so they all work at the same time; probes are
        short.
        """
        may = arm.kind != "each" and not arm.is_probe and self.fits_node(arm)
        return may and self.ranks_per_node % arm.world_size == 0

    def turns(self, arm: Arm) -> int:
        """Turns within a round: for send-recv until all pairs of ranks had theirs, else 1."""
        return len(_pair_turns(self, arm.world_size)) if arm.kind.startswith("send-recv-") else 1

    def groups(self, arm: Arm, turn: int = 0) -> tuple[Ranks, ...]:
        """The groups of ranks that work together in an arm at the same time.

        All ranks run probes of a single device, and pairs of ranks send-recv, in a turn of the round. Otherwise they
        are the crews of that turn. Raises as `crews`.
        """
        crews = self.crews(arm, turn)
        if arm.is_probe and arm.operation.is_single_device:
            return tuple((rank,) for crew in crews for rank in crew)
        return _pair_turns(self, arm.world_size)[turn] if arm.kind.startswith("send-recv-") else crews

    def groups_of_round(self, arm: Arm) -> tuple[Ranks, ...]:
        """The groups of all turns within a round, in ascending order. Raises as `crews`."""
        return tuple(sorted(group for turn in range(self.turns(arm)) for group in self.groups(arm, turn)))

    def crews(self, arm: Arm, turn: int = 0) -> tuple[Ranks, ...]:
        """The groups of ranks that begin an arm at the same time.

        A packed arm that fits a node has a group on every node; a larger one fills node after node. The ranks of a
        ``spread`` arm are dealt to the nodes in turn. Rank 0 is first in the first group, except in arms whose groups
        take turns (`takes_turns`), where on each node the group that contains local rank `turn` trains. Devices of a
        node that work by themselves share power and links, so they begin together.

        Raises:
            ValueError: there are fewer ranks than the arm needs.
        """
        size = self.ranks_per_node if arm.is_probe and arm.operation.is_single_device else arm.world_size
        if size > self.world_size:
            raise ValueError(f"{arm.name} needs {size} ranks; {self.nodes} nodes have {self.world_size}")
        if self.fits_node(arm):
            first_of_node = turn - turn % size if self.takes_turns(arm) else 0
            firsts = range(first_of_node, self.world_size, self.ranks_per_node)
            return tuple(tuple(range(first, first + size)) for first in firsts)
        if arm.placement == "packed":
            return (tuple(range(size)),)
        return (tuple(sorted(i % self.nodes * self.ranks_per_node + i // self.nodes for i in range(size))),)

    def ranks(self, arms: Iterable[Arm], turn: int = 0) -> tuple[int, ...]:
        """All ranks with a part in any of the arms at that turn, in ascending order. Raises as `crews`."""
        return tuple(sorted({rank for arm in arms for crew in self.crews(arm, turn) for rank in crew}))


@lru_cache(maxsize=16)
def _pair_turns(layout: Layout, size: int) -> tuple[tuple[Pair, ...], ...]:
    """The pairs of ranks of each turn, for the first `size` ranks of each node or of all nodes."""
    rails, nodes = layout.ranks_per_node, -(-size // layout.ranks_per_node)
    if nodes == 1:
        firsts = range(0, layout.world_size, rails)
        return tuple(tuple((first + i, first + j) for first in firsts for i, j in turn) for turn in all_pairs(size))
    path, last = [(node, node + 1) for node in range(nodes - 1)], [(0, nodes - 1)] * (nodes > 2)
    ring = (path[::2], path[1::2] + last[nodes % 2 :], last[: nodes % 2])
    return tuple(
        tuple(
            (one * rails + rail, other * rails + rail)
            for one, other in turn
            for rail in range(rails)
            if other * rails + rail < size
        )
        for turn in ring
        if turn
    )


def all_pairs(count: int) -> tuple[tuple[Pair, ...], ...]:
    """Every pair once, by the circle method of round-robin tournaments: N - 1 turns for an even number N, N for an odd
    one, where one sits out."""
    circle = (count - 1) | 1
    return tuple(
        tuple(
            sorted(
                in_order((turn + i) % circle, (turn - i) % circle if i else count - 1)
                for i in range(count % 2, circle // 2 + 1)
            )
        )
        for turn in range(circle)
    )


def in_order(one: int, other: int) -> Pair:
    """A pair, smaller number first."""
    return (one, other) if one < other else (other, one)
