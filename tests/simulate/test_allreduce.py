"""The cost of an all-reduce: exact where it can be calculated by hand, monotonous elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.simulate.allreduce import Link, LinkShares, Topology, all_reduce_s, ring_s, tree_s
from tests.builders.clusters import NIC, NVLINK, TOPOLOGY

SIZES = st.floats(1.0, 1e10)
RANKS = st.integers(1, 100_000)


def test_one_rank_has_nothing_to_send() -> None:
    assert ring_s(1e9, 1, NVLINK) == tree_s(1e9, 1, NVLINK) == all_reduce_s(1e9, 1, 1, TOPOLOGY) == 0


def test_a_ring_sends_two_n_minus_one_nths() -> None:
    assert ring_s(1e9, 8, Link(0.0, 100e9)) == pytest.approx(2 * 7 / 8 * 1e9 / 100e9)
    assert ring_s(0.0, 8, Link(1e-6, 100e9)) == pytest.approx(14e-6)


def test_a_tree_pays_logarithmically_many_latencies() -> None:
    assert tree_s(0.0, 1024, Link(1e-6, 1e9)) == pytest.approx(20e-6)
    assert tree_s(1e9, 1024, Link(0.0, 1e9)) == pytest.approx(2.0)


def test_within_a_node_only_its_own_links_matter() -> None:
    slow_nic = Topology(8, NVLINK, Link(1.0, 1.0))
    assert all_reduce_s(1e9, 8, 1, slow_nic) == ring_s(1e9, 8, NVLINK)


def test_between_nodes_each_gpu_sends_its_part() -> None:
    assert all_reduce_s(8e9, 16, 2, TOPOLOGY) == pytest.approx(ring_s(8e9, 8, NVLINK) + ring_s(1e9, 2, NIC))


def test_among_very_many_nodes_a_tree_beats_the_ring() -> None:
    latency_of_a_ring_s = 2 * 12_499 * NIC.latency_s
    assert all_reduce_s(1e6, 100_000, 12_500, TOPOLOGY) < latency_of_a_ring_s / 100


@given(size=SIZES, ranks=RANKS, share=st.floats(0.01, 1.0))
def test_slow_links_and_more_data_never_help(size: float, ranks: int, share: float) -> None:
    nodes = TOPOLOGY.nodes(ranks)
    sound = all_reduce_s(size, ranks, nodes, TOPOLOGY)
    assert all_reduce_s(size, ranks, nodes, TOPOLOGY, LinkShares(share, share)) >= sound
    assert all_reduce_s(2 * size, ranks, nodes, TOPOLOGY) >= sound


@given(size=SIZES, nodes=st.integers(1, 1000))
def test_one_more_node_never_helps(size: float, nodes: int) -> None:
    more = all_reduce_s(size, 8 * (nodes + 1), nodes + 1, TOPOLOGY)
    assert more >= all_reduce_s(size, 8 * nodes, nodes, TOPOLOGY)


def test_ranks_that_are_spread_over_nodes_have_little_to_do_within_them() -> None:
    assert all_reduce_s(8e9, 4, 4, TOPOLOGY) == min(ring_s(8e9, 4, NIC), tree_s(8e9, 4, NIC))


def test_nodes_are_filled_one_after_the_other() -> None:
    assert [TOPOLOGY.nodes(size) for size in (1, 8, 9, 16, 17)] == [1, 1, 2, 2, 3]
