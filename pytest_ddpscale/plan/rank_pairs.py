"""Pairs of nodes or ranks, and the turns in which they work, so that nobody is in two pairs at once.

Within a node all pairs of ranks are measured, turn by turn, on every node at once. Between nodes that would take N - 1
turns, so nodes form a ring: each node with the next, the last with the first, and equal local ranks paired, so that all
rails of a node are busy at once. Each node is in two pairs, which distinguishes a slow node from a slow link, and the
ring takes two turns, or three for an odd number of nodes.
"""

from __future__ import annotations

from functools import cache, lru_cache

Pair = tuple[int, int]
Ranks = tuple[int, ...]


@lru_cache(maxsize=16)
def pair_turns(world_size: int, nodes: int, ranks_per_node: int) -> tuple[tuple[Pair, ...], ...]:
    """The pairs of ranks of each turn, for the first `world_size` ranks of each node or of all nodes."""
    if world_size <= ranks_per_node:
        firsts = range(0, nodes * ranks_per_node, ranks_per_node)
        turns = all_pairs(world_size)
        return tuple(tuple((first + i, first + j) for first in firsts for i, j in turn) for turn in turns)
    return tuple(
        tuple(
            (one * ranks_per_node + rail, other * ranks_per_node + rail)
            for one, other in turn
            for rail in range(ranks_per_node)
            if other * ranks_per_node + rail < world_size
        )
        for turn in ring_turns(-(-world_size // ranks_per_node))
    )


@cache
def all_pairs(count: int) -> tuple[tuple[Pair, ...], ...]:
    """Every pair once, by the circle method of round-robin tournaments: N - 1 turns for an even number N, N for an odd
    one, where one sits out."""
    circle = count - 1 + count % 2
    turns = []
    for turn in range(circle if count > 1 else 0):
        pairs = [in_order((turn + i) % circle, (turn - i) % circle) for i in range(1, (circle + 1) // 2)]
        turns.append(tuple(sorted(pairs if count % 2 else [*pairs, (turn, count - 1)])))
    return tuple(turns)


def ring_turns(nodes: int) -> tuple[tuple[Pair, ...], ...]:
    """Each node with the next one, and the last with the first, in turns of disjoint pairs."""
    path = [(node, node + 1) for node in range(nodes - 1)]
    turns = [path[::2], path[1::2], []]
    if nodes > 2:
        turns[2 if nodes % 2 else 1].append((0, nodes - 1))
    return tuple(tuple(turn) for turn in turns if turn)


def in_order(one: int, other: int) -> Pair:
    """A pair, smaller number first."""
    return (one, other) if one < other else (other, one)


def other_end(pair: Pair, end: int) -> int:
    """The node or rank that `end` is paired with."""
    return pair[1] if pair[0] == end else pair[0]
