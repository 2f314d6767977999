"""Which nodes have messages that stall, and which are measured again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.pairing import (
    PairResult,
    StallSuspects,
    Standings,
    are_stalled,
    find_stalling_nodes,
    first_rounds,
    is_undecided,
    most_rounds,
    next_round,
)
from tests.plan.network import Network

CPU = 0.4


def stalls(results: list[PairResult]) -> StallSuspects:
    return Standings(results, CPU).stalls


def rounds_of(results: list[PairResult]) -> int:
    return 1 + max(result.round for result in results)


@pytest.mark.parametrize(
    ("usual_s", "longest_s", "is_stalled"),
    [
        (0.004, 0.204, True),
        (0.004, 0.12, False),  # a busy core
        (0.5, 0.7, False),  # a slow link
        (0.5, 1.6, True),
        (np.nan, np.nan, False),  # absent
    ],
)
def test_a_message_stalls_if_it_takes_far_longer_than_the_others(
    usual_s: float, longest_s: float, is_stalled: bool
) -> None:
    step_s = np.full((2, 3, 20), 0.004, np.float32)
    step_s[1, 2] = usual_s
    step_s[1, 2, 7] = longest_s
    found = are_stalled(step_s)
    assert found.shape == (2, 3)
    assert np.argwhere(found).tolist() == ([[1, 2]] if is_stalled else [])


def test_where_no_messages_are_kept_none_stalled() -> None:
    assert are_stalled(np.zeros((2, 3, 0), np.float32)).tolist() == [[False] * 3] * 2


@given(st.data(), st.integers(4, 64), st.integers())
def test_a_node_that_always_stalls_is_found_and_nobody_else(data: st.DataObject, nodes: int, seed: int) -> None:
    bad = data.draw(st.integers(0, nodes - 1))
    results = Network(nodes, lossy_nodes={bad}, lossy_share=1.0, seed=seed).search(CPU)
    assert stalls(results) == StallSuspects(named=(bad,))
    assert rounds_of(results) <= len(first_rounds(nodes)) + 4


@pytest.mark.parametrize("nodes", [4, 6, 16])
def test_with_packets_lost_as_in_the_lab_almost_every_search_finds_the_node(nodes: int) -> None:
    found = [stalls(Network(nodes, lossy_nodes={1}, seed=seed).search(CPU)).named for seed in range(100)]
    assert sum(named == (1,) for named in found) >= 97
    assert not [named for named in found if set(named) - {1}]


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.6])
def test_on_a_busy_machine_a_sound_node_is_hardly_ever_found(share: float) -> None:
    """By chance in at most 1 of 100 searches; this is the limit of three standard deviations above it."""
    found = [stalls(Network(6, restless_share=share, seed=seed).search(CPU)).named for seed in range(200)]
    assert sum(map(bool, found)) <= 6


def test_on_a_busy_machine_a_lossy_node_still_stands_out() -> None:
    found = [stalls(Network(8, lossy_nodes={5}, restless_share=0.1, seed=seed).search(CPU)).named for seed in range(50)]
    assert sum(named == (5,) for named in found) >= 47


def test_up_to_half_of_many_nodes_may_lose_packets() -> None:
    bad = {0, 3, 9}
    assert set(stalls(Network(16, lossy_nodes=bad, lossy_share=1.0).search(CPU)).named) == bad


@given(st.integers(3, 32), st.integers())
def test_one_link_that_loses_packets_accuses_no_node(nodes: int, seed: int) -> None:
    assert not stalls(Network(nodes, lossy_links={(0, 1)}, lossy_share=1.0, seed=seed).search(CPU)).named


def test_of_two_nodes_neither_can_be_told() -> None:
    assert find_stalling_nodes([((0, 1), True)] * 20) == StallSuspects()


def test_where_all_stall_nobody_stands_out_and_the_search_ends_decided() -> None:
    results = Network(6, restless_share=1.0).search(CPU)
    assert not stalls(results).named
    assert rounds_of(results) == most_rounds(6)
    assert not is_undecided(6, results, CPU)


def test_one_stall_is_followed_up_with_other_nodes_until_it_is_unlikely() -> None:
    results = [
        PairResult(number, pair, 1.0, pair == (0, 1)) for number, pairs in enumerate(first_rounds(4)) for pair in pairs
    ]
    assert stalls(results) == StallSuspects(open=(0, 1))
    assert next_round(4, results, CPU) == ((0, 2), (1, 3)), "not with each other"
    results += [PairResult(3, pair, 1.0) for pair in next_round(4, results, CPU)]
    assert next_round(4, results, CPU) == ()


def test_a_slow_node_is_not_found_again_by_its_long_messages() -> None:
    results = Network(6, {2}, factor=0.1, lossy_nodes={2}, lossy_share=1.0).search(CPU)
    standings = Standings(results, CPU)
    assert (standings.suspect_nodes, standings.stalls.named) == ((2,), ())


def test_links_of_a_node_that_stalls_are_not_suspect_though_some_are_slow() -> None:
    results = [
        PairResult(number, pair, 0.3 if pair == (1, 2) else 1.0, 1 in pair)
        for number, pairs in enumerate(3 * first_rounds(6))
        for pair in pairs
    ]
    standings = Standings(results, CPU)
    assert (standings.stalls.named, standings.suspect_links) == ((1,), ())


def test_sound_nodes_are_measured_as_often_as_before() -> None:
    for nodes in (3, 4, 6, 16, 40):
        assert rounds_of(Network(nodes).search(CPU)) == len(first_rounds(nodes))


def test_the_chance_is_that_of_fishers_exact_test() -> None:
    """Of a node all n results stall, of n others none: 4 n! n! / (2n)! for four nodes, 1.6 % for 5, 0.4 % for 6."""
    own = [((1, partner), True) for partner in (0, 2, 3)]
    others = [((0, 2), False), ((0, 3), False), ((2, 3), False)]
    assert find_stalling_nodes([*own, *own[:2], *others, *others[:2]]).named == ()
    assert find_stalling_nodes([*own, *own, *others, *others]).named == (1,)
