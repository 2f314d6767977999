"""Layout of ranks: numbering over nodes, meaning of world sizes, and the groups that time an arm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.rank_pairs import Ranks, pair_turns
from pytest_ddpscale.plan.words import refuse_below_one

# As in a thresholds file: a number of ranks, ``node`` (all of one node), ``2 nodes``, or ``all`` (of several nodes).
WorldSize: TypeAlias = int | str


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
        return self.nodes > 1 and all(self.fits_node(arm) for arm in arms)

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
        return len(self._pairs(arm)) if arm.kind.startswith("send-recv-") else 1

    def groups(self, arm: Arm, turn: int = 0) -> tuple[Ranks, ...]:
        """The groups of ranks that work together in an arm at the same time.

        All ranks run probes of a single device, and pairs of ranks send-recv, in a turn of the round. Otherwise they
        are the crews of that turn. Raises as `crews`.
        """
        crews = self.crews(arm, turn)
        if arm.is_probe and arm.operation.is_single_device:
            return tuple((rank,) for crew in crews for rank in crew)
        return self._pairs(arm)[turn] if arm.kind.startswith("send-recv-") else crews

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
        if arm.world_size > self.world_size:
            raise ValueError(f"{arm.name} needs {arm.world_size} ranks; {self.nodes} nodes have {self.world_size}")
        if arm.is_probe and arm.operation.is_single_device:
            firsts = range(0, self.world_size, self.ranks_per_node)
            return tuple(tuple(range(first, first + self.ranks_per_node)) for first in firsts)
        if self.fits_node(arm):
            first_of_node = turn - turn % arm.world_size if self.takes_turns(arm) else 0
            firsts = range(first_of_node, self.world_size, self.ranks_per_node)
            return tuple(tuple(range(first, first + arm.world_size)) for first in firsts)
        if arm.placement == "packed":
            return (tuple(range(arm.world_size)),)
        dealt = ((i % self.nodes) * self.ranks_per_node + i // self.nodes for i in range(arm.world_size))
        return (tuple(sorted(dealt)),)

    def ranks(self, arms: Iterable[Arm], turn: int = 0) -> tuple[int, ...]:
        """All ranks with a part in any of the arms at that turn, in ascending order. Raises as `crews`."""
        return tuple(sorted({rank for arm in arms for crew in self.crews(arm, turn) for rank in crew}))

    def _pairs(self, arm: Arm) -> tuple[tuple[Ranks, ...], ...]:
        return pair_turns(arm.world_size, self.nodes, self.ranks_per_node)
