"""Who is named for slow communication, and who is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_ddpscale.judge.slow_links import Rail, find_link_faults, rails_of
from pytest_ddpscale.plan.pairing import PairResult, first_rounds
from pytest_ddpscale.run.block import Block, step_bytes
from pytest_ddpscale.run.records import GangRecord
from pytest_ddpscale.run.verdicts import Culprit
from tests.builders.probes import pair_evidence
from tests.plan.network import Network


def host(node: int) -> str:
    return f"n{node + 1:04d}"


def measured(results: Sequence[PairResult], ranks_per_node: int = 1) -> list[Rail]:
    """The records of results, the same on every rail."""
    return [
        rail(result.round, result.nodes[0], result.nodes[1], result.gbps, local_rank, ranks_per_node)
        for result in results
        for local_rank in range(ranks_per_node)
    ]


def rail(round_: int, one: int, other: int, gbps: float, local_rank: int = 0, per_node: int = 1) -> Rail:
    ranks = one * per_node + local_rank, other * per_node + local_rank
    devices = f"GPU-{ranks[0]}", f"GPU-{ranks[1]}"
    return Rail(
        round_, ranks, (host(one), host(other)), (local_rank, local_rank), devices, gbps, gbps,
        gpu_indices=(local_rank, local_rank),
    )  # fmt: skip


def hosts(fault: Culprit) -> tuple[str, ...]:
    return (fault.host, fault.peer_host) if fault.peer_host else (fault.host,)


def named(faults: Sequence[Culprit]) -> set[tuple[str, ...]]:
    return {hosts(fault) for fault in faults}


def three_nodes(slow: Mapping[tuple[int, int], float], times: int = 3) -> list[Rail]:
    """Every pair of three nodes, measured some times; 0.61 GB/s where nothing else is said."""
    pairs = list(combinations(range(3), 2))
    return [rail(n, *pair, slow.get(pair, 0.61)) for n in range(times) for pair in pairs]


BAD_FIRST = three_nodes({(0, 1): 0.024, (0, 2): 0.024}, times=2)


@given(st.data(), st.integers(3, 64), st.integers())
def test_one_bad_node_is_named_and_nobody_else(data: st.DataObject, nodes: int, seed: int) -> None:
    bad = data.draw(st.integers(0, nodes - 1))
    (fault,) = find_link_faults(measured(Network(nodes, {bad}, seed=seed).search()), "cuda")
    assert (fault.kind, hosts(fault)) == ("node", (host(bad),))


@given(st.data(), st.integers(3, 64), st.integers())
def test_one_bad_link_is_named_and_nobody_else(data: st.DataObject, nodes: int, seed: int) -> None:
    links = sorted(pair for pairs in first_rounds(nodes) for pair in pairs)
    bad = data.draw(st.sampled_from(links))
    (fault,) = find_link_faults(measured(Network(nodes, bad_links={bad}, seed=seed).search()), "cuda")
    assert (fault.kind, hosts(fault)) == ("link", (host(bad[0]), host(bad[1])))


@given(st.data(), st.integers(3, 64), st.integers())
def test_on_a_restless_cpu_a_glaring_fault_is_named_and_nobody_else(data: st.DataObject, nodes: int, seed: int) -> None:
    bad = data.draw(st.integers(0, nodes - 1))
    results = Network(nodes, {bad}, factor=0.1, noise=0.4, seed=seed).search(slow_share=0.4)
    assert named(find_link_faults(measured(results), "cpu")) == {(host(bad),)}


@given(st.integers(2, 64), st.integers())
def test_without_a_fault_nobody_is_named(nodes: int, seed: int) -> None:
    assert find_link_faults(measured(Network(nodes, seed=seed).search()), "cuda") == []


@pytest.mark.parametrize("nodes", range(3, 9))
def test_up_to_half_of_the_nodes_may_be_bad(nodes: int) -> None:
    for count in range(1, nodes // 2 + 1):
        for bad in combinations(range(nodes), count):
            faults = find_link_faults(measured(Network(nodes, bad).search()), "cuda")
            assert named(faults) == {(host(node),) for node in bad}, bad


@given(st.data(), st.integers(3, 20), st.integers())
def test_when_more_than_half_are_bad_nobody_is_named(data: st.DataObject, nodes: int, seed: int) -> None:
    bad = data.draw(st.sets(st.integers(0, nodes - 1), min_size=nodes // 2 + 1))
    assert find_link_faults(measured(Network(nodes, bad, seed=seed).search()), "cuda") == []


@given(st.data(), st.integers(6, 30), st.integers())
def test_a_bad_node_and_a_bad_link_are_told_apart(data: st.DataObject, nodes: int, seed: int) -> None:
    bad = data.draw(st.integers(0, nodes - 1))
    link = data.draw(st.sampled_from(sorted(pair for pairs in first_rounds(nodes) for pair in pairs)))
    assume(bad not in link)
    faults = find_link_faults(measured(Network(nodes, {bad}, {link}, seed=seed).search()), "cuda")
    assert [fault.kind for fault in faults] == ["node", "link"]
    assert named(faults) == {(host(bad),), (host(link[0]), host(link[1]))}


def test_of_a_thousand_nodes_exactly_the_faulty_ones_are_named() -> None:
    network = Network(1000, {3, 500, 999}, {(1, 2), (10, 26)})
    results = network.search()
    faults = find_link_faults(measured(results), "cuda")
    links = {(host(1), host(2)), (host(10), host(26))}
    assert named(faults) == {(host(3),), (host(500),), (host(999),)} | links
    assert 1 + max(result.round for result in results) <= 26


def test_of_two_nodes_nobody_can_be_told() -> None:
    assert find_link_faults([rail(n, 0, 1, gbps) for n, gbps in enumerate([0.6, 0.02, 0.02, 0.02])], "cpu") == []


def test_nothing_measured_names_nobody() -> None:
    assert find_link_faults([], "cpu") == []


def test_the_evidence_on_a_node_is_in_numbers() -> None:
    (fault,) = find_link_faults(BAD_FIRST, "cpu")
    expected = "0.024 GB/s with n0002 and n0003, which reach 0.61 GB/s with each other (4 measurements)"
    assert fault.evidence == expected


def test_the_evidence_on_a_link_names_both_ends() -> None:
    (fault,) = find_link_faults(three_nodes({(1, 2): 0.03}), "cpu")
    expected = "0.03 GB/s between n0002 and n0003, which reach 0.61 GB/s with others (3 measurements)"
    assert (fault.kind, fault.evidence) == ("link", expected)


@pytest.mark.parametrize("count", range(4))
def test_what_was_not_measured_often_enough_accuses_nobody(count: int) -> None:
    assert find_link_faults(BAD_FIRST[:count], "cpu") == []


def test_a_slow_node_that_was_fast_once_is_not_named() -> None:
    assert find_link_faults([*BAD_FIRST, rail(9, 0, 2, 0.61)], "cpu") == []


def test_a_slow_link_that_was_fast_once_is_not_named() -> None:
    assert find_link_faults([*three_nodes({(1, 2): 0.03}), rail(9, 1, 2, 0.61)], "cpu") == []


def test_how_much_slower_counts_depends_on_the_device() -> None:
    pairs = three_nodes({(0, 1): 0.61 * 0.5, (0, 2): 0.61 * 0.5})
    assert named(find_link_faults(pairs, "cuda")) == {("n0001",)}
    assert find_link_faults(pairs, "cpu") == []


def test_a_host_that_computes_slowly_explains_what_it_takes_part_in() -> None:
    four = [rail(n, *pair, 0.02 if {0, 1} & {*pair} else 0.6) for n in range(3) for pair in combinations(range(4), 2)]
    assert named(find_link_faults(four, "cpu")) == {("n0001",), ("n0002",)}
    assert named(find_link_faults(four, "cpu", excused={"n0001"})) == {("n0002",)}
    assert find_link_faults(BAD_FIRST, "cpu", excused={"n0001"}) == []


class TestRails:
    """Four ranks: the first of n2, two of n1, one of n3."""

    WHO = GangRecord(
        gang=0, hosts=("n2", "n1", "n1", "n3"), local_ranks=(0, 0, 1, 0), devices=tuple(f"GPU-{i}" for i in range(4))
    )

    def rails(self, ranks: tuple[int, ...], groups: tuple[int, ...], **changes: Any) -> Sequence[Rail]:
        fields: dict[str, Any] = {"count": 2, "work": 2.0**20, "began_unix_s": 1.0, "seconds": 1.0}
        fields["series"] = {"step_s": step_bytes([0.5, 0.5] * len(ranks))}
        block = Block(
            study="pairs", arm="all-reduce-1mib@2", round=3, gang=0, ranks=ranks, groups=groups, **fields | changes
        )
        return rails_of(pair_evidence([self.WHO, block]))

    def test_are_the_same_whichever_end_comes_first(self) -> None:
        rail = Rail(3, (1, 0), ("n1", "n2"), (0, 0), ("GPU-1", "GPU-0"), 2 * 2**20 / 1e9, 2 * 2**20 / 1e9, 0.5)
        assert self.rails((0, 1), (0, 0)) == self.rails((1, 0), (0, 0)) == [rail]

    def test_have_the_speed_of_the_fastest_message_of_the_slower_end(self) -> None:
        steps_s = {"step_s": step_bytes([0.25, 0.75, 0.5, 0.5])}
        (rail,) = self.rails((0, 1), (5, 5), series=steps_s)
        assert rail.gbps == 2**20 / 0.5 / 1e9

    def test_stall_with_a_message_of_either_end(self) -> None:
        first, second = [0.004] * 20, [0.004] * 19 + [0.25]
        (rail,) = self.rails((0, 1), (5, 5), series={"step_s": step_bytes([*first, *second])}, count=20, seconds=0.5)
        assert [rail.gbps, rail.mean_gbps] == pytest.approx([2**20 / 0.004 / 1e9, 2**20 / 0.025 / 1e9])
        assert (rail.is_stalled, rail.longest_s) == (True, 0.25)

    def test_are_between_two_nodes(self) -> None:
        assert self.rails((1, 2, 3), (0, 0, 1)) == [], "two ranks of one host, and one whose peer is missing"


def test_a_node_whose_messages_stall_is_suspect_with_the_numbers() -> None:
    """Its fastest messages are as fast as all others, so it is not slow."""
    pairs = [rail(n, *pair, 1.0) for n in range(3) for pair in combinations(range(5), 2)]
    pairs = [
        one._replace(is_stalled=one.round < 2, longest_s=0.21, mean_gbps=0.1 + 0.1 * one.round)
        if "n0001" in one.hosts
        else one
        for one in pairs
    ]
    (fault,) = find_link_faults(pairs, "cpu")
    assert (fault.kind, fault.host, fault.gpu_index, fault.is_certain) == ("node", "n0001", None, False)
    assert fault.evidence == (
        "pairs with it are slow and erratic: 0.1 … 0.3 GB/s over 12 rounds, other pairs 1 … 1 GB/s; a message waited "
        "up to 0.21 s, as after a lost packet, in 8 of 12 pairs with it and 0 of 18 without it"
    )
    assert find_link_faults(pairs, "cpu", excused={"n0001"}) == []


def test_if_only_one_rail_is_slow_it_is_named() -> None:
    pairs = [
        rail(n, *pair, 4.0 if 1 in pair and local_rank == 2 else 40.0, local_rank, per_node=4)
        for n in range(2)
        for pair in combinations(range(3), 2)
        for local_rank in range(4)
    ]
    (fault,) = find_link_faults(pairs, "cuda")
    assert (fault.host, fault.gpu_index, fault.gpu_uuid) == ("n0002", 2, "GPU-6")
    assert fault.evidence.startswith("only local rank 2: 4 GB/s with n0001 and n0003, which reach 40 GB/s")


def test_if_all_rails_are_slow_it_is_the_node() -> None:
    pairs = measured(Network(3, {1}, noise=0.0).search(), ranks_per_node=2)
    (fault,) = find_link_faults(pairs, "cuda")
    assert (fault.gpu_index, fault.gpu_uuid) == (None, None)
    assert "only" not in fault.evidence


def test_if_each_time_another_rail_is_slow_no_rail_is_singled_out() -> None:
    pairs = [
        rail(n, *pair, 4.0 if 0 in pair and local_rank == n else 40.0, local_rank, per_node=2)
        for n in range(2)
        for pair in combinations(range(3), 2)
        for local_rank in range(2)
    ]
    (fault,) = find_link_faults(pairs, "cuda")
    assert (fault.gpu_index, "only" in fault.evidence) == (None, False)
