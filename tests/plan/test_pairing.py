"""Which node pairs are measured next."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.pairing import (
    ALL_PAIRS_UP_TO,
    CONFIRMATIONS,
    NodePair,
    PairResult,
    PairStudy,
    Standings,
    first_rounds,
    most_rounds,
    next_round,
    pair_study,
    powers_of_two_apart,
)
from pytest_ddpscale.plan.rank_pairs import all_pairs
from pytest_ddpscale.run.strict_json import read_as
from tests.builders.json_types import as_json
from tests.plan.network import Network
from tests.rows import rows

SLOW_SHARE = 0.7


def log2(nodes: int) -> int:
    return (nodes - 1).bit_length()


def rounds_of(results: list[PairResult]) -> list[list[NodePair]]:
    found: dict[int, list[NodePair]] = defaultdict(list)
    for result in results:
        found[result.round].append(result.nodes)
    return [found[number] for number in sorted(found)]


def results_of(*rounds: dict[NodePair, float]) -> list[PairResult]:
    return [PairResult(n, pair, gbps) for n, measured in enumerate(rounds) for pair, gbps in measured.items()]


@given(st.integers(2, 64))
def test_first_rounds_pair_nodes_disjointly_and_no_two_twice(nodes: int) -> None:
    seen: set[NodePair] = set()
    for pairs in first_rounds(nodes):
        members = [node for pair in pairs for node in pair]
        assert len(members) == len(set(members))
        assert all(0 <= one < other < nodes for one, other in pairs)
        assert seen.isdisjoint(pairs)
        seen.update(pairs)


@rows("nodes", range(2, ALL_PAIRS_UP_TO + 1))
def test_of_few_nodes_all_pairs_are_measured_in_the_fewest_rounds(nodes: int) -> None:
    measured = [pair for pairs in first_rounds(nodes) for pair in pairs]
    assert sorted(measured) == list(combinations(range(nodes), 2))
    assert len(first_rounds(nodes)) == (nodes if nodes % 2 else nodes - 1)


def test_of_three_nodes_each_sits_out_once() -> None:
    assert sorted(all_pairs(3)) == [((0, 1),), ((0, 2),), ((1, 2),)]


@given(st.integers(ALL_PAIRS_UP_TO + 1, 300))
def test_of_many_nodes_those_that_collectives_pair_are_measured(nodes: int) -> None:
    measured = {pair for pairs in powers_of_two_apart(nodes) for pair in pairs}
    for node in range(nodes):
        for power in range(log2(nodes)):
            other = (node + 2**power) % nodes
            assert (min(node, other), max(node, other)) in measured


@rows("nodes", [17, 33, 63, 64, 100, 255, 1000, 1024, 4096])
def test_rounds_grow_with_the_logarithm_of_the_nodes(nodes: int) -> None:
    assert len(first_rounds(nodes)) <= 2 * log2(nodes) + 2
    assert most_rounds(nodes) <= 4 * log2(nodes) + 6


@rows("nodes", [0, 1])
def test_a_single_node_has_nobody_to_be_measured_with(nodes: int) -> None:
    assert next_round(nodes, [], SLOW_SHARE) == ()
    assert most_rounds(nodes) == 0


def test_two_nodes_are_measured_once() -> None:
    assert next_round(2, [], SLOW_SHARE) == ((0, 1),)
    assert next_round(2, results_of({(0, 1): 0.02}), SLOW_SHARE) == ()


@given(st.integers(3, 64), st.integers())
def test_without_a_fault_the_first_rounds_are_all(nodes: int, seed: int) -> None:
    assert len(rounds_of(Network(nodes, seed=seed).search())) == len(first_rounds(nodes))


@given(st.data(), st.integers(3, 64), st.integers())
def test_a_fault_takes_two_more_rounds(data: st.DataObject, nodes: int, seed: int) -> None:
    bad = data.draw(st.integers(0, nodes - 1))
    rounds = rounds_of(Network(nodes, {bad}, seed=seed).search())
    assert len(rounds) == len(first_rounds(nodes)) + CONFIRMATIONS


@given(st.data(), st.integers(3, 40), st.floats(0.0, 1.0), st.integers())
def test_whatever_is_measured_rounds_are_disjoint_and_end(
    data: st.DataObject, nodes: int, noise: float, seed: int
) -> None:
    bad = data.draw(st.sets(st.integers(0, nodes - 1)))
    rounds = rounds_of(Network(nodes, bad, noise=noise * 0.99, seed=seed).search())
    assert len(rounds) <= most_rounds(nodes)
    for pairs in rounds:
        members = [node for pair in pairs for node in pair]
        assert len(members) == len(set(members))


def test_a_suspect_node_is_measured_again_with_good_ones_in_turn() -> None:
    results = results_of({(1, 2): 0.6}, {(0, 2): 0.02}, {(0, 1): 0.02})
    again = next_round(3, results, SLOW_SHARE)
    assert again == ((0, 1),)
    results += [PairResult(3, (0, 1), 0.02)]
    assert next_round(3, results, SLOW_SHARE) == ((0, 2),)
    results += [PairResult(4, (0, 2), 0.02)]
    assert next_round(3, results, SLOW_SHARE) == ()


def test_a_suspect_node_meets_good_ones_that_it_has_not_met() -> None:
    bad = 20
    results = Network(40, {bad}, noise=0.0).search()
    first = len(first_rounds(40))
    met = {node for result in results if result.round < first and bad in result.nodes for node in result.nodes}
    for result in results:
        if result.round >= first and bad in result.nodes:
            assert not set(result.nodes) & (met - {bad})


def test_one_fast_measurement_clears_a_suspect_node() -> None:
    results = results_of({(1, 2): 0.6}, {(0, 2): 0.02}, {(0, 1): 0.02}, {(0, 1): 0.6})
    assert Standings(results, SLOW_SHARE).suspect_nodes == ()
    # What is left is its other link, which now has two good ends.
    assert next_round(3, results, SLOW_SHARE) == ((0, 2),)


def test_one_fast_measurement_clears_a_suspect_link() -> None:
    results = results_of({(1, 2): 0.02}, {(0, 2): 0.6}, {(0, 1): 0.6})
    assert next_round(3, results, SLOW_SHARE) == ((1, 2),)
    results += [PairResult(3, (1, 2), 0.6)]
    assert next_round(3, results, SLOW_SHARE) == ()


def test_rounds_that_confirm_keep_the_other_nodes_as_busy_as_before() -> None:
    rounds = rounds_of(Network(6, {3}).search())
    confirming = rounds[len(first_rounds(6)) :]
    assert len(confirming) == CONFIRMATIONS
    assert all(len(pairs) >= 2 for pairs in confirming)


def test_when_most_links_are_slow_none_is_a_fault() -> None:
    """Two racks of four behind a thin spine: within each everything is fast."""
    between = {(one, other) for one in range(4) for other in range(4, 8)}
    results = Network(8, bad_links=between).search()
    assert Standings(results, SLOW_SHARE).suspect_links == ()
    assert len(rounds_of(results)) == len(first_rounds(8))


def test_a_node_that_is_slow_with_most_makes_no_suspects_of_its_links() -> None:
    """It was fast once, so that it is no suspect itself; its partners are fast with everybody else."""
    nodes = 20
    slow = {(min(7, other), max(7, other)) for other in range(nodes) if other not in (7, 8)}
    assert Standings(Network(nodes, bad_links=slow, noise=0.0).search(), SLOW_SHARE).suspect_links == ()


def test_how_ranks_are_measured_survives_json() -> None:
    study = pair_study("cuda")
    assert read_as(PairStudy, as_json(study)) == study
    assert as_json(study)["id"] == study.id == "pairs"


@rows(
    ("change", "message"),
    [
        ({"iterations": 0}, "iterations"),
        ({"iterations": True}, "iterations"),
        ({"arms": []}, "times nothing; expected one all-reduce of 2 ranks"),
        ({"arms": [as_json(Arm("all-reduce-1mib", 3))]}, "times all-reduce-1mib@3"),
        ({"arms": [as_json(Arm("send-recv-1mib", 2))]}, "times send-recv-1mib@2"),
        ({"arms": [as_json(Arm("ddp", 2))]}, "times ddp@2"),
    ],
)
def test_an_impossible_study_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        msgspec.convert(as_json(pair_study("cpu")) | change, PairStudy)
