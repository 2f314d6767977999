"""Which node pairs are measured next, and which nodes and links are then suspect: tests/plan/searches.txt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations, groupby
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.pairing import (
    CONFIRMATIONS,
    NodePair,
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
from tests.rows import rows
from tests.tables import assert_approved, each_block

TABLE = Path(__file__).with_name("searches.txt")
FAULT = re.compile(r"(slow|stall)=([0-9-]+)(?:\*([0-9.]+))?(!?)")
SLOW_SHARE = 0.4


def rounds_of(results: list[PairResult]) -> list[list[NodePair]]:
    return [[one.nodes for one in some] for _, some in groupby(results, lambda result: result.round)]


def stalls(results: list[PairResult]) -> StallSuspects:
    return Standings(results, SLOW_SHARE).stalls


def state(nodes: int, results: list[PairResult]) -> str:
    found = Standings(results, SLOW_SHARE)
    suspects: dict[str, Sequence[object]] = {
        "nodes": found.suspect_nodes,
        "links": found.suspect_links,
        "stalls": found.stalls.open,
    }
    named: dict[str, Sequence[object]] = {
        "nodes": found.confirmed_nodes,
        "links": found.confirmed_links,
        "stalls": found.stalls.named,
    }
    said = ["undecided" if is_undecided(nodes, results, SLOW_SHARE) else "decided"]
    for how, some in (("suspect", suspects), ("named", named)):
        said += [f"{how} {kind} {list(one)}" for kind, one in some.items() if one]
    return ", ".join(said)


def told(case: str) -> Iterator[str]:
    """What the first rounds of a search show, each further one measures, and all show.

    ``NODES [slow=WHAT] … [stall=WHAT] …``, where ``WHAT`` is a node, or a link, ``0-1``; with ``*0.5`` of that
    bandwidth; with ``!`` in the first rounds only.
    """
    nodes, faults, results = int(case.split()[0]), FAULT.findall(case), list[PairResult]()
    first, number = len(first_rounds(nodes)), 0
    while pairs := next_round(nodes, results, SLOW_SHARE):
        if number >= first:
            yield " ".join(f"{one}-{other}" for one, other in pairs)
        for pair in pairs:
            struck = {}
            for kind, where, left, once in faults:
                if set(map(int, where.split("-"))) <= set(pair) and (number < first or not once):
                    struck[kind] = float(left or 0.3)
            results.append(PairResult(number, pair, struck.get("slow", 1.0), "stall" in struck))
        number += 1
        if number == first:
            yield state(nodes, results)
    if number > first:
        yield state(nodes, results)


@each_block(TABLE)
def test_what_is_measured_again_and_found(block: str) -> None:
    assert_approved(TABLE, block, told)


@given(st.integers(2, 300))
def test_first_rounds_pair_nodes_disjointly_no_two_twice_and_are_few(nodes: int) -> None:
    first, seen = first_rounds(nodes), set[NodePair]()
    for pairs in first:
        members = [node for pair in pairs for node in pair]
        assert len(members) == len(set(members))
        assert seen.isdisjoint(pairs)
        seen.update(pairs)
    if nodes <= 16:
        assert sorted(seen) == list(combinations(range(nodes), 2))
        assert len(first) == (nodes if nodes % 2 else nodes - 1)
    else:
        powers = range((nodes - 1).bit_length())
        apart = {tuple(sorted((node, (node + 2**power) % nodes))) for node in range(nodes) for power in powers}
        assert seen == apart, "those that collectives pair"
        assert len(first) <= 2 * len(powers) + 2
        assert most_rounds(nodes) <= 4 * len(powers) + 6


@rows("nodes", [0, 1])
def test_a_single_node_has_nobody_to_be_measured_with(nodes: int) -> None:
    assert next_round(nodes, [], SLOW_SHARE) == ()
    assert most_rounds(nodes) == 0


@given(st.data(), st.integers(3, 64), st.integers())
def test_without_a_fault_the_first_rounds_are_all_and_a_fault_takes_two_more(
    data: st.DataObject, nodes: int, seed: int
) -> None:
    bad = data.draw(st.sets(st.integers(0, nodes - 1), max_size=1))
    rounds = rounds_of(Network(nodes, bad, seed=seed).search())
    assert len(rounds) == len(first_rounds(nodes)) + CONFIRMATIONS * len(bad)


@given(st.data(), st.integers(3, 40), st.floats(0.0, 1.0), st.integers())
def test_whatever_is_measured_rounds_are_disjoint_and_end(
    data: st.DataObject, nodes: int, noise: float, seed: int
) -> None:
    bad = data.draw(st.sets(st.integers(0, nodes - 1)))
    rounds = rounds_of(Network(nodes, bad, noise=noise * 0.99, restless_share=noise, seed=seed).search())
    assert len(rounds) <= most_rounds(nodes)
    for pairs in rounds:
        members = [node for pair in pairs for node in pair]
        assert len(members) == len(set(members))


def test_a_suspect_node_meets_good_ones_that_it_has_not_met() -> None:
    bad, first = 20, len(first_rounds(40))
    met = [one.nodes for one in Network(40, {bad}, noise=0.0).search() if bad in one.nodes]
    assert len(met) == len(set(met)) > first


def test_when_most_links_are_slow_none_is_a_fault() -> None:
    """Two racks of four behind a thin spine: within each everything is fast."""
    between = {(one, other) for one in range(4) for other in range(4, 8)}
    results = Network(8, bad_links=between).search()
    assert Standings(results, SLOW_SHARE).suspect_links == []
    assert len(rounds_of(results)) == len(first_rounds(8))


def test_a_node_that_is_slow_with_most_makes_no_suspects_of_its_links() -> None:
    """It was fast once, so that it is no suspect itself; its partners are fast with everybody else."""
    slow = {(min(7, other), max(7, other)) for other in range(20) if other not in (7, 8)}
    assert Standings(Network(20, bad_links=slow, noise=0.0).search(0.7), 0.7).suspect_links == []


@given(st.data(), st.integers(4, 64), st.integers())
def test_a_node_that_always_stalls_is_found_and_nobody_else(data: st.DataObject, nodes: int, seed: int) -> None:
    bad = data.draw(st.integers(0, nodes - 1))
    results = Network(nodes, lossy_nodes={bad}, lossy_share=1.0, seed=seed).search(SLOW_SHARE)
    assert stalls(results) == StallSuspects(named=(bad,))
    assert len(rounds_of(results)) <= len(first_rounds(nodes)) + 4


@given(st.integers(3, 32), st.integers())
def test_one_link_that_loses_packets_accuses_no_node(nodes: int, seed: int) -> None:
    assert not stalls(Network(nodes, lossy_links={(0, 1)}, lossy_share=1.0, seed=seed).search(SLOW_SHARE)).named


@rows(
    ("nodes", "lossy", "restless", "seeds", "least", "most_wrong"),
    [
        (4, {1}, 0.0, 100, 97, 0),  # packets lost as in the lab
        (6, {1}, 0.0, 100, 97, 0),
        (16, {1}, 0.0, 100, 97, 0),
        (8, {5}, 0.1, 50, 47, 3),  # on a busy machine
        # A sound node by chance in at most 1 of 100 searches: three standard deviations above that.
        (6, set(), 0.02, 200, 194, 6),
        (6, set(), 0.1, 200, 194, 6),
        (6, set(), 0.3, 200, 194, 6),
        (6, set(), 0.6, 200, 194, 6),
    ],
)
def test_almost_every_search_finds_the_node_that_loses_packets(
    nodes: int, lossy: set[int], restless: float, seeds: int, least: int, most_wrong: int
) -> None:
    networks = (Network(nodes, lossy_nodes=lossy, restless_share=restless, seed=seed) for seed in range(seeds))
    found = [set(stalls(network.search(SLOW_SHARE)).named) for network in networks]
    assert found.count(lossy) >= least
    assert sum(bool(named - lossy) for named in found) <= most_wrong


def test_the_chance_is_that_of_fishers_exact_test() -> None:
    """Of a node all n results stall, of n others none: 4 n! n! / (2n)! for four nodes, 1.6 % for 5, 0.4 % for 6."""
    own = [((1, partner), True) for partner in (0, 2, 3)]
    others = [((0, 2), False), ((0, 3), False), ((2, 3), False)]
    assert find_stalling_nodes([*own, *own[:2], *others, *others[:2]]).named == ()
    assert find_stalling_nodes([*own, *own, *others, *others]).named == (1,)


@rows(
    ("nodes", "stalling", "times", "expected"),
    [
        (2, [(0, 1)], 20, ((), ())),  # neither can be told
        (5, [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4)], 20, ((0, 1), ())),  # at most half
        (6, [(0, 1), (0, 2)], 20, ((), (0,))),  # not with most of its partners
    ],
)
def test_how_many_and_with_whom_results_have_to_stall(
    nodes: int, stalling: list[NodePair], times: int, expected: tuple[tuple[int, ...], ...]
) -> None:
    results = [(pair, pair in stalling) for pair in combinations(range(nodes), 2)] * times
    assert find_stalling_nodes(results) == expected


def test_few_results_or_those_with_one_node_are_not_enough() -> None:
    others = [((one, other), False) for one, other in combinations(range(1, 5), 2)] * 100
    assert find_stalling_nodes([*others, ((0, 1), True), ((0, 2), True)]).named == ()
    assert find_stalling_nodes([*others, *[((0, 1), True)] * 9]).named == ()


@rows(
    ("measured", "expected"),
    [
        ("0-1*0.3 0-2*0.3 0-1*0.3 1-2", [0]),
        ("0-1*0.3 0-1*0.3 0-1*0.3 1-2", []),  # with one partner only
        ("0-1*0.3 0-3*0.3 0-2*0.3 3-1*0.3 1-2", []),  # not often enough with good ones
    ],
)
def test_a_node_is_named_after_enough_results_with_good_partners(measured: str, expected: list[int]) -> None:
    results = []
    for one, other, gbps in re.findall(r"(\d)-(\d)(?:\*([0-9.]+))?", measured):
        results.append(PairResult(0, (int(one), int(other)), float(gbps or 1)))
    assert Standings(results, SLOW_SHARE).confirmed_nodes == expected


@rows(
    ("usual_s", "longest_s", "is_stalled"),
    [
        (0.004, 0.204, True),
        (0.004, 0.12, False),  # a busy core
        (0.06, 0.19, False),
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
    assert np.argwhere(are_stalled(step_s)).tolist() == ([[1, 2]] if is_stalled else [])
    assert are_stalled(step_s[..., :0]).tolist() == [[False] * 3] * 2
