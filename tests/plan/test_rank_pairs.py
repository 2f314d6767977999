"""Every pair of a node, and all neighbours in a ring of nodes, are measured once, no rank twice at the same time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout
from pytest_ddpscale.plan.rank_pairs import Ranks, ring_turns
from tests.rows import rows


def turns_of(arm: Arm, layout: Layout) -> list[tuple[Ranks, ...]]:
    return [layout.groups(arm, turn) for turn in range(layout.turns(arm))]


@rows("ranks", range(2, 10))
def test_on_a_node_everybody_meets_everybody_once(ranks: int) -> None:
    turns = turns_of(Arm("send-recv-1mib", ranks), Layout(2, 10))
    met = sorted(pair for turn in turns for pair in turn)
    assert met == [
        (first + i, first + j) for first in (0, 10) for i in range(ranks) for j in range(i + 1, ranks)
    ]  # on both nodes


@rows("nodes", range(2, 10))
def test_in_a_ring_each_node_meets_the_next_once_and_the_last_the_first(nodes: int) -> None:
    turns = ring_turns(nodes)
    met = sorted(pair for turn in turns for pair in turn)
    assert met == sorted({tuple(sorted((node, (node + 1) % nodes))) for node in range(nodes)})
    assert len(turns) == (1 if nodes == 2 else 2 + nodes % 2)


@given(st.integers(2, 40), st.integers(1, 8))
def test_between_nodes_all_rails_are_busy_at_once_and_no_rank_is_in_two_pairs(nodes: int, per_node: int) -> None:
    layout = Layout(nodes, per_node)
    turns = turns_of(Arm("send-recv-1mib", layout.world_size), layout)
    for turn, of_nodes in zip(turns, ring_turns(nodes), strict=True):
        ends = [rank for pair in turn for rank in pair]
        assert len(ends) == len(set(ends)) == 2 * per_node * len(of_nodes)
        assert all(one % per_node == other % per_node for one, other in turn)
        assert {(one // per_node, other // per_node) for one, other in turn} == set(of_nodes)


def test_of_a_node_that_is_not_filled_only_its_ranks_that_take_part() -> None:
    assert turns_of(Arm("send-recv-1mib", 6), Layout(2, 4)) == [((0, 4), (1, 5))]


@rows(
    ("nodes", "ranks", "arm", "groups"),
    [
        (2, 3, Arm("matmul-fp16"), ((0,), (1,), (2,), (3,), (4,), (5,))),
        (3, 4, Arm("all-reduce-1mib", 2), ((0, 1), (4, 5), (8, 9))),
        (2, 4, Arm("all-gather-1mib", 6), ((0, 1, 2, 3, 4, 5),)),
        (2, 4, Arm("send-recv-1mib", 3), ((0, 1), (0, 2), (1, 2), (4, 5), (4, 6), (5, 6))),
    ],
)
def test_each_probe_has_its_groups(nodes: int, ranks: int, arm: Arm, groups: tuple[Ranks, ...]) -> None:
    assert Layout(nodes, ranks).groups_of_round(arm) == groups


@rows("kind", ["send-recv-1mib", "all-reduce-1mib"])
def test_a_probe_that_is_larger_than_the_gang_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="needs 9 ranks"):
        Layout(2, 4).groups_of_round(Arm(kind, 9))
