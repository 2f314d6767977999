"""What a block of a probe has to be: ranks in planned groups, each group once in a round, and whether data was right.

Else the speed of one group would count for another one: each place is judged by the rounds in which its ranks worked
together, and of several measurements of a pair in one round the fastest counts.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.run.block import Block
from pytest_ddpscale.run.column_record import IntArray


def wrong_in_probe(block: Block, probe: Arm, layout: Layout, *, between_nodes: bool) -> str:
    """What is wrong with a block of a probe; empty if nothing is.

    Args:
        block: of any number of ranks, which a simulated run may lack.
        probe: that was planned.
        layout: of the gang.
        between_nodes: whether this is a round of pairs of nodes, which are chosen while measuring.
    """
    if not between_nodes and "is_correct" not in block.readings:  # else wrong data would count as right
        return f"has no reading is_correct of {block.arm}"
    if block.turn and probe.operation.kind != "send-recv":
        return f"is turn {block.turn} of {block.arm}, whose groups take no turns"
    if probe.operation.is_single_device:  # judged device by device
        return ""
    groups, ranks = block.each("groups"), block.each("ranks")
    order = np.lexsort((ranks, groups))
    firsts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    sizes = np.diff(firsts, append=len(order))
    in_pairs = between_nodes or probe.operation.kind == "send-recv"
    most = 2 if in_pairs else probe.world_size
    if (sizes > most).any() or (in_pairs and (sizes < most).any()):
        size = int(sizes[sizes != most][0]) if in_pairs else int(sizes.max())
        return f"has a group of {size} ranks of {block.arm}, which works in groups of {most}"
    if in_pairs:
        pairs = ranks[order].reshape(-1, 2)
        wrong = (
            _between_rails(pairs, layout) if between_nodes else ~np.isin(_codes(pairs), _planned_pairs(probe, layout))
        )
        return f"has ranks {pairs[wrong][0].tolist()} as a pair of {block.arm}" if wrong.any() else ""
    places = _place_of_rank(probe, layout)[ranks[order]]
    apart = np.flatnonzero((np.diff(groups[order]) == 0) & (np.diff(places) != 0))
    if not len(apart):
        return ""
    return f"has ranks {ranks[order][apart[0] : apart[0] + 2].tolist()} in one group of {block.arm}"


def pairs_in(block: Block) -> IntArray:
    """A number for each pair of ranks of a block of ``send-recv``, (pairs,)."""
    ranks = block.each("ranks")
    return _codes(ranks[np.lexsort((ranks, block.each("groups")))].reshape(-1, 2))


def _codes(pairs: IntArray) -> IntArray:
    return np.asarray(pairs[:, 0] * 2**31 + pairs[:, 1])


def _between_rails(pairs: IntArray, layout: Layout) -> IntArray:
    nodes, local_ranks = np.divmod(pairs, layout.ranks_per_node)
    apart = (nodes[:, 0] == nodes[:, 1]) | (local_ranks[:, 0] != local_ranks[:, 1])
    return np.asarray(apart & (layout.nodes > 1))  # within a single node pairs accuse nobody


@lru_cache(maxsize=16)
def _planned_pairs(probe: Arm, layout: Layout) -> IntArray:
    return _codes(np.sort(np.array(layout.groups_of_round(probe), np.int64), axis=1))


@lru_cache(maxsize=64)
def _place_of_rank(probe: Arm, layout: Layout) -> IntArray:
    """Index of the place of each rank of the gang, -1 without one, (ranks,)."""
    found = np.full(layout.world_size, -1)
    for number, ranks in enumerate(layout.groups_of_round(probe)):
        found[list(ranks)] = number
    return found
