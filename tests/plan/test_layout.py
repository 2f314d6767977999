"""Ranks are numbered node by node, and every arm has its ranks: tests/plan/groups.txt."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.layout import Layout, Ranks
from tests.rows import rows
from tests.tables import assert_approved, each_block

TABLE = Path(__file__).with_name("groups.txt")
LAYOUTS = st.builds(Layout, st.integers(1, 12), st.integers(1, 12))


def asked(words: str) -> tuple[Layout, Arm]:
    """``NODESxRANKS KIND@RANKS[-spread]``."""
    size, name = words.split()
    kind, _, ranks = name.removesuffix("-spread").partition("@")
    arm = Arm(kind, int(ranks or 1), 1, "spread" if name.endswith("-spread") else "packed")
    return Layout(*map(int, size.split("x"))), arm


def in_words(groups: tuple[Ranks, ...]) -> str:
    return " ".join(",".join(map(str, group)) for group in groups)


def told(case: str) -> Iterator[str]:
    """The groups of each turn of a node's ranks or of a probe's pairs; who begins together if these are others."""
    try:
        layout, arm = asked(case)
        crews = layout.crews(arm)
    except ValueError as error:
        yield f"refused: {error}"
        return
    judged = " by node" * layout.judged_by_node([arm]) + ", in turn" * layout.takes_turns(arm)
    turns = layout.turns(arm) if arm.is_probe else layout.ranks_per_node
    groups = [layout.groups(arm, turn) for turn in range(turns)]
    yield from dict.fromkeys(in_words(of_turn) + judged for of_turn in groups)
    if arm.is_probe and crews != groups[0]:
        yield f"begin together {in_words(crews)}"


@each_block(TABLE)
def test_the_groups_of_an_arm(block: str) -> None:
    assert_approved(TABLE, block, told)


@given(LAYOUTS, st.sampled_from(["each", "no_sync", "ddp"]), st.sampled_from(["packed", "spread"]), st.data())
def test_groups_are_of_the_arms_size_share_no_rank_and_lie_where_they_should(
    layout: Layout, kind: str, placement: str, data: st.DataObject
) -> None:
    arm = Arm(kind, data.draw(st.integers(1, layout.world_size)), 2, placement)  # type: ignore[arg-type]
    groups = layout.groups(arm)
    ranks = [rank for group in groups for rank in group]
    assert all(len(group) == arm.world_size and list(group) == sorted(group) for group in groups)
    assert len(set(ranks)) == len(ranks)
    assert set(ranks) <= set(range(layout.world_size))
    assert groups[0][0] == 0, "rank 0 has the first word in every arm"
    assert layout.ranks([arm]) == tuple(sorted(ranks))
    on_nodes = [[rank // layout.ranks_per_node for rank in group] for group in groups]
    if layout.fits_node(arm):
        assert [set(nodes) for nodes in on_nodes] == [{node} for node in range(layout.nodes)]
    elif placement == "spread":
        counts = [on_nodes[0].count(node) for node in range(layout.nodes)]
        assert max(counts) - min(counts) <= 1
    else:
        assert groups == (tuple(range(arm.world_size)),)


@rows("ranks", range(2, 10))
def test_on_a_node_everybody_meets_everybody_once(ranks: int) -> None:
    pairs = Layout(2, 10).groups_of_round(Arm("send-recv-1mib", ranks))
    assert pairs == tuple((first + i, first + j) for first in (0, 10) for i, j in combinations(range(ranks), 2))


@given(st.integers(2, 40), st.integers(1, 8))
def test_in_a_ring_each_node_meets_the_next_on_all_rails_at_once_and_no_rank_is_in_two_pairs(
    nodes: int, per_node: int
) -> None:
    layout = Layout(nodes, per_node)
    arm = Arm("send-recv-1mib", layout.world_size)
    assert layout.turns(arm) == (1 if nodes == 2 else 2 + nodes % 2)
    met = list[tuple[int, int]]()
    for turn in range(layout.turns(arm)):
        pairs = layout.groups(arm, turn)
        ends = [rank for pair in pairs for rank in pair]
        nodes_of = {(one // per_node, other // per_node) for one, other in pairs}
        assert len(ends) == len(set(ends)) == 2 * per_node * len(nodes_of)
        assert all(one % per_node == other % per_node for one, other in pairs)
        met += nodes_of
    assert sorted(met) == sorted({tuple(sorted((node, (node + 1) % nodes))) for node in range(nodes)})


def test_ranks_of_a_study_are_those_of_all_its_arms() -> None:
    arms = [asked(f"2x4 {arm}")[1] for arm in ("alone", "ddp@5", "ddp@2", "ddp@3-spread")]
    assert Layout(2, 4).ranks(arms[:2]) == (0, 1, 2, 3, 4)
    assert Layout(2, 4).ranks(arms[2:]) == (0, 1, 4, 5)
    assert Layout(2, 4).judged_by_node([arms[0], arms[2]])
    assert not Layout(2, 4).judged_by_node(arms[:2])


@rows("size", [(0, 1), (1, 0), (-1, 8)])
def test_a_layout_of_nothing_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="expected a whole number from 1 up"):
        Layout(*size)


@rows(
    ("nodes", "sizes"),
    [
        (1, [3, 8, None, None, None]),
        (2, [3, 8, 16, None, 16]),
        (3, [3, 8, 16, None, 24]),
        (4, [3, 8, 16, 32, 32]),
        (16, [3, 8, 16, 32, 128]),
    ],
)
def test_several_nodes_are_as_many_ranks_as_they_have_if_there_are_so_many(nodes: int, sizes: list[int | None]) -> None:
    layout = Layout(nodes, 8)
    assert [layout.ranks_in(size) for size in (3, "node", "2 nodes", "4 nodes", "all")] == sizes
