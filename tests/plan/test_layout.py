"""Ranks are numbered node by node, and every arm has its ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.arm import Arm, ArmKind, Placement
from pytest_ddpscale.plan.layout import Layout
from tests.rows import rows

LAYOUTS = st.builds(Layout, st.integers(1, 12), st.integers(1, 12))
KINDS = st.sampled_from(["each", "no_sync", "ddp"])
PLACEMENTS = st.sampled_from(["packed", "spread"])


@st.composite
def layouts_with_sizes(draw: st.DrawFn, *, beyond_a_node: bool = False) -> tuple[Layout, int]:
    """A layout and how many of its ranks an arm has."""
    layout = draw(st.builds(Layout, st.integers(2, 12), st.integers(1, 12)) if beyond_a_node else LAYOUTS)
    return layout, draw(st.integers(layout.ranks_per_node + 1 if beyond_a_node else 1, layout.world_size))


def ddp(size: int, placement: Placement = "packed") -> Arm:
    return Arm("ddp", size, 2, placement)


@given(layouts_with_sizes(), KINDS, PLACEMENTS)
def test_groups_are_of_the_arms_size_and_share_no_rank(
    sized: tuple[Layout, int], kind: ArmKind, placement: Placement
) -> None:
    layout, size = sized
    arm = Arm(kind, size, 2, placement)
    groups = layout.groups(arm)
    ranks = [rank for group in groups for rank in group]
    assert all(len(group) == arm.world_size and list(group) == sorted(group) for group in groups)
    assert len(set(ranks)) == len(ranks)
    assert set(ranks) <= set(range(layout.world_size))
    assert groups[0][0] == 0, "rank 0 has the first word in every arm"
    assert layout.ranks([arm]) == tuple(sorted(ranks))


@given(LAYOUTS, KINDS, st.data())
def test_an_arm_that_fits_a_node_is_trained_by_every_node_on_its_own_ranks(
    layout: Layout, kind: ArmKind, data: st.DataObject
) -> None:
    arm = Arm(kind, data.draw(st.integers(1, layout.ranks_per_node)), 2)
    assert layout.fits_node(arm)
    groups = layout.groups(arm)
    assert len(groups) == layout.nodes
    for node, group in enumerate(groups):
        assert {rank // layout.ranks_per_node for rank in group} == {node}
        assert [rank % layout.ranks_per_node for rank in group] == list(range(arm.world_size))


@given(layouts_with_sizes(beyond_a_node=True))
def test_a_larger_packed_arm_fills_node_after_node(sized: tuple[Layout, int]) -> None:
    layout, size = sized
    assert layout.groups(ddp(size)) == (tuple(range(size)),)


@given(layouts_with_sizes())
def test_spread_ranks_are_dealt_to_as_many_nodes_as_there_are(sized: tuple[Layout, int]) -> None:
    layout, size = sized
    (group,) = layout.groups(ddp(size, "spread"))
    on_nodes = [sum(rank // layout.ranks_per_node == node for rank in group) for node in range(layout.nodes)]
    assert sum(count > 0 for count in on_nodes) == min(size, layout.nodes)
    assert max(on_nodes) - min(on_nodes) <= 1


def test_four_ranks_spread_over_three_nodes() -> None:
    assert Layout(3, 8).groups(ddp(4, "spread")) == ((0, 1, 8, 16),)
    assert Layout(3, 8).groups(ddp(4)) == ((0, 1, 2, 3), (8, 9, 10, 11), (16, 17, 18, 19))
    assert Layout(3, 8).groups(Arm("alone", 1, 2)) == ((0,), (8,), (16,))


def test_ranks_of_a_study_are_those_of_all_its_arms() -> None:
    assert Layout(2, 4).ranks([Arm("alone", 1, 2), ddp(5)]) == (0, 1, 2, 3, 4)
    assert Layout(2, 4).ranks([ddp(2), ddp(3, "spread")]) == (0, 1, 4, 5)


def test_one_node_is_never_judged_among_others() -> None:
    assert Layout(2, 4).judged_by_node([Arm("alone", 1, 2), ddp(4)])
    assert not Layout(2, 4).judged_by_node([Arm("alone", 1, 2), ddp(5)])
    assert not Layout(2, 4).judged_by_node([ddp(2, "spread")])
    assert not Layout(1, 4).judged_by_node([ddp(4)])


def test_an_arm_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="ddp@9 needs 9 ranks; 2 nodes have 8"):
        Layout(2, 4).groups(ddp(9))


@rows("size", [(0, 1), (1, 0), (-1, 8)])
def test_a_layout_of_nothing_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="expected a whole number from 1 up"):
        Layout(*size)


@given(LAYOUTS, st.integers(1, 100))
def test_a_number_of_ranks_is_that_number_and_a_node_is_all_of_its_ranks(layout: Layout, number: int) -> None:
    assert layout.ranks_in(number) == number
    assert layout.ranks_in("node") == layout.ranks_per_node


@rows(
    ("nodes", "two", "four", "every"),
    [(1, None, None, None), (2, 16, None, 16), (3, 16, None, 24), (4, 16, 32, 32), (16, 16, 32, 128)],
)
def test_several_nodes_are_as_many_ranks_as_they_have_if_there_are_so_many(
    nodes: int, two: int | None, four: int | None, every: int | None
) -> None:
    layout = Layout(nodes, 8)
    assert [layout.ranks_in(size) for size in ("2 nodes", "4 nodes", "all")] == [two, four, every]


def test_it_is_the_turn_of_the_same_local_rank_on_every_node() -> None:
    layout = Layout(2, 8)
    for one in (Arm("alone", 1, 4), Arm("ddp", 1, 4)):
        assert layout.groups(one, 3) == ((3,), (11,))
    assert layout.groups(ddp(8), 3) == layout.groups(ddp(8))


def test_smaller_groups_of_a_node_take_turns_as_their_ranks_do() -> None:
    pairs, layout = Arm("ddp", 2, 4), Layout(2, 8)
    assert layout.groups(pairs, 5) == ((4, 5), (12, 13))
    assert [layout.groups(Arm("no_sync", 4, 4), number)[0][0] for number in range(8)] == [0, 0, 0, 0, 4, 4, 4, 4]


@rows("arm", [Arm("each", 2, 4), Arm("ddp", 3, 4), Arm("ddp", 2, 4, "spread"), Arm("ddp", 16, 4)])
def test_what_a_node_cannot_be_dealt_to_takes_no_turns(arm: Arm) -> None:
    layout = Layout(2, 8)
    assert layout.groups(arm, 5) == layout.groups(arm)
