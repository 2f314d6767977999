"""Whoever misses a probe's bound is named: the GPU, the node, or the link."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, product

import pytest

from pytest_ddpscale.plan.probe import Probe
from pytest_ddpscale.results.pair_record import PairMeasurement
from pytest_ddpscale.results.verdicts import Culprit, Verdict
from tests.rows import rows
from tests.verdict.probed import (
    ALL_REDUCE,
    MATMUL,
    SEND_RECV,
    judge_evidence,
    judge_steady,
    measure_probe,
    probe_case,
    probe_evidence,
    probe_plan,
    steady,
)

BOUND = 100.0


def slow_pairs(*pairs: tuple[int, int], value: float = 50.0) -> dict[tuple[int, ...], float]:
    return dict.fromkeys(pairs, value)


def pairs_with(*gpus: int, ranks: int = 8) -> list[tuple[int, int]]:
    return [pair for pair in combinations(range(ranks), 2) if set(gpus) & set(pair)]


def judge_pairs(bad: Mapping[tuple[int, ...], float], ranks: int = 8) -> Verdict:
    return judge_steady(Probe("send-recv-256mib", ranks), BOUND, steady(120.0, bad), ranks_per_node=ranks)


def test_a_slow_gpu_is_named_beside_the_median_of_the_others() -> None:
    verdict = judge_steady(MATMUL, 700.0, steady(790.0, {(3,): 612.0}))
    (culprit,) = verdict.culprits
    assert culprit == Culprit("gpu", "n0", 3, "GPU-3", "612.5 TFLOPS, 790.7 is the median of 7 others", is_certain=True)


def test_a_slow_cpu_rank_is_named_as_well() -> None:
    verdict = judge_steady(MATMUL, 700.0, steady(790.0, {(3,): 612.0}), device_type="cpu")
    assert [(c.kind, c.gpu_index, c.gpu_uuid) for c in verdict.culprits] == [("gpu", 3, "cpu")]
    assert verdict.reason.startswith("CPU rank 3 of n0, one of 8 GPUs")


def test_of_two_gpus_the_slow_one_is_named_beside_the_other() -> None:
    verdict = judge_steady(MATMUL, BOUND, steady(120.0, {(1,): 90.0}), ranks_per_node=2)
    (culprit,) = verdict.culprits
    assert culprit.is_certain
    assert culprit.evidence.endswith("TFLOPS, 120.1 is the other one")


def test_a_node_of_slow_gpus_is_named_as_a_whole() -> None:
    slow: dict[tuple[int, ...], float] = {(rank,): 90.0 for rank in range(8, 16)}
    verdict = judge_steady(MATMUL, BOUND, steady(120.0, slow), nodes=3)
    (culprit,) = verdict.culprits
    assert (culprit.kind, culprit.host, culprit.gpu_index, culprit.is_certain) == ("node", "n1", None, True)
    assert culprit.evidence.startswith("all 8 GPUs fail, the worst with 90.0")
    assert culprit.evidence.endswith("120.1 is the median of 16 others")


def test_a_node_with_slow_communication_is_named() -> None:
    verdict = judge_steady(ALL_REDUCE, BOUND, steady(120.0, {tuple(range(16, 24)): 60.0}), nodes=4)
    (culprit,) = verdict.culprits
    assert (culprit.kind, culprit.host, culprit.is_certain) == ("node", "n2", True)
    assert culprit.evidence == "60.05 GB/s, 120.1 is the median of 3 others"


def test_one_node_by_itself_is_not_certain_to_be_at_fault() -> None:
    verdict = judge_steady(ALL_REDUCE, BOUND, steady(60.0))
    (culprit,) = verdict.culprits
    assert (culprit.kind, culprit.is_certain) == ("node", False)
    assert culprit.evidence == "60.05 GB/s, no other to compare with"
    assert verdict.reason == "the whole interval misses the bound"
    assert not verdict.notes


@rows("bad", [5, 8])
def test_a_bound_that_most_miss_drains_nobody(bad: int) -> None:
    verdict = judge_steady(MATMUL, BOUND, steady(120.0, {(rank,): 90.0 for rank in range(bad)}))
    assert verdict.outcome == "failed"
    assert [culprit.gpu_index for culprit in verdict.culprits] == list(range(bad))
    assert not any(culprit.is_certain for culprit in verdict.culprits)
    assert f"{bad} of 8 GPUs fail alike: is the bound right? No culprit is certain" in verdict.notes


def test_half_of_them_may_be_at_fault() -> None:
    verdict = judge_steady(MATMUL, BOUND, steady(120.0, {(rank,): 90.0 for rank in range(4)}))
    assert [culprit.is_certain for culprit in verdict.culprits] == [True] * 4


def test_who_passes_is_not_named() -> None:
    assert judge_steady(MATMUL, BOUND, steady(120.0, {(3,): 101.0})).culprits == ()


def test_one_slow_pair_is_a_slow_link_with_both_ends() -> None:
    verdict = judge_pairs(slow_pairs((2, 5)))
    (culprit,) = verdict.culprits
    assert culprit == Culprit(
        "link", "n0", 2, "GPU-2", "50.04 GB/s, 120.1 is the median of 27 others", "n0", 5, "GPU-5"
    )
    assert verdict.reason.startswith("GPUs 2 and 5 of n0, one of 28 pairs")


@rows("gpus", [(3,), (2, 5)])
def test_a_gpu_that_is_slow_with_everybody_is_the_culprit_and_not_its_links(gpus: tuple[int, ...]) -> None:
    verdict = judge_pairs(slow_pairs(*pairs_with(*gpus)))
    assert [(c.kind, c.gpu_index, c.is_certain) for c in verdict.culprits] == [("gpu", gpu, True) for gpu in gpus]
    evidence = verdict.culprits[0].evidence
    assert evidence.startswith("7 of its 7 pairs fail, the worst with 50.0")
    assert evidence.endswith("is the median of 21 others: the GPU is at fault, not its links")


def test_beside_a_slow_gpu_a_slow_link_is_named_too() -> None:
    verdict = judge_pairs(slow_pairs(*pairs_with(3), (0, 6)))
    assert [(c.kind, c.gpu_index, c.peer_gpu_index) for c in verdict.culprits] == [("gpu", 3, None), ("link", 0, 6)]


def test_a_gpu_that_is_slow_with_some_may_be_at_fault_or_its_links() -> None:
    verdict = judge_pairs(slow_pairs((3, 4), (1, 3)))
    (culprit,) = verdict.culprits
    assert (culprit.kind, culprit.gpu_index, culprit.is_certain) == ("gpu", 3, False)
    assert culprit.evidence.startswith("2 of its 7 pairs fail")
    assert culprit.evidence.endswith("the GPU or these links are at fault")


def test_slow_pairs_without_a_common_gpu_are_slow_links() -> None:
    verdict = judge_pairs(slow_pairs((0, 1), (1, 2), (4, 5)))
    ends = [(c.kind, c.gpu_index, c.peer_gpu_index, c.is_certain) for c in verdict.culprits]
    assert ends == [("link", 0, 1, True), ("link", 1, 2, True), ("link", 4, 5, True)]


def test_two_halves_that_cannot_reach_each_other_name_links_and_no_gpu() -> None:
    across = list(product(range(4), range(4, 8)))
    verdict = judge_pairs(slow_pairs(*across))
    ends = [(c.kind, c.gpu_index, c.peer_gpu_index) for c in verdict.culprits]
    assert ends == [("link", *pair) for pair in across]
    assert not any(c.is_certain for c in verdict.culprits)
    assert any("16 of 28 pairs fail alike" in note for note in verdict.notes)


def test_each_of_many_slow_gpus_is_held_against_all_others_but_itself() -> None:
    values: dict[tuple[int, ...], float] = {
        (rank,): (50.0 + rank if rank % 2 == 0 else 100.0 + rank) for rank in range(16)
    }
    values[2,] = values[4,]  # alike, and not the same
    verdict = judge_steady(MATMUL, 90.0, steady(100.0, values), nodes=2)
    assert len(verdict.culprits) == 8
    for rank, culprit in zip(range(0, 16, 2), verdict.culprits, strict=True):
        median = statistics.median(value for ranks, value in values.items() if ranks != (rank,))
        told = float(culprit.evidence.split(", ")[1].removesuffix(" is the median of 15 others"))
        assert told == pytest.approx(median, rel=2e-3)


def test_the_only_pair_there_is_blames_no_end() -> None:
    (culprit,) = judge_pairs(slow_pairs((0, 1)), ranks=2).culprits
    assert (culprit.kind, culprit.is_certain) == ("link", False)


def test_each_node_has_its_own_slow_gpus_and_links() -> None:
    bad = slow_pairs(*pairs_with(3), (8, 9))
    verdict = judge_steady(SEND_RECV, BOUND, steady(120.0, bad), nodes=2)
    found = [(c.kind, c.host, c.gpu_index, c.peer_gpu_index) for c in verdict.culprits]
    assert found == [("gpu", "n0", 3, None), ("link", "n1", 0, 1)]


def test_a_node_all_of_whose_pairs_are_slow_is_named_once() -> None:
    bad = slow_pairs(*((a + 8, b + 8) for a, b in combinations(range(8), 2)))
    verdict = judge_steady(SEND_RECV, BOUND, steady(120.0, bad), nodes=2)
    (culprit,) = verdict.culprits
    assert (culprit.kind, culprit.host, culprit.is_certain) == ("node", "n1", True)
    assert culprit.evidence.startswith("all 28 pairs fail")


def test_slow_ranks_of_several_nodes_are_told_by_the_node_pairs() -> None:
    probe = Probe("all-reduce-32mib", 8)
    plan = probe_plan(probe, nodes=4, ranks_per_node=2)
    evidence = probe_evidence(plan, measure_probe(plan, probe, steady(60.0)))
    assert judge_evidence(probe_case(probe, BOUND), evidence).culprits == ()
    pairs = [
        PairMeasurement(
            "pairs", number, (2 * a, 2 * b), (f"n{a}", f"n{b}"), (0, 0), (f"GPU-{2 * a}", f"GPU-{2 * b}"), 2**25, 20,
            5.0 if 2 in (a, b) else 50.0,
        )
        for number in range(3)
        for a, b in combinations(range(4), 2)
    ]  # fmt: skip
    verdict = judge_evidence(probe_case(probe, BOUND), replace(evidence, pairs=pairs))
    assert [(c.kind, c.host) for c in verdict.culprits] == [("node", "n2")]
    assert "communication is slow at node n2" in verdict.reason


class TestBetweenNodes:
    """A ring of nodes: each is in a pair with the next one, on every rail, and the last with the first."""

    def judge(self, nodes: int, *slow: tuple[int, int], rails: range = range(4)) -> Verdict:
        """Of nodes with 4 GPUs, where these pairs of nodes are slow on these rails."""
        bad: dict[tuple[int, ...], float] = {
            (4 * one + rail, 4 * other + rail): 5.0 for one, other in slow for rail in rails
        }
        probe = Probe("send-recv-256mib", 4 * nodes)
        return judge_steady(probe, 20.0, steady(40.0, bad), nodes=nodes, ranks_per_node=4)

    def named(self, verdict: Verdict) -> list[tuple[str, str, int | None, str | None, bool]]:
        return [(c.kind, c.host, c.gpu_index, c.peer_host, c.is_certain) for c in verdict.culprits]

    @rows("nodes", [2, 3, 4, 5, 16])
    def test_a_sound_ring_passes_whatever_the_number_of_nodes(self, nodes: int) -> None:
        verdict = self.judge(nodes)
        assert (verdict.outcome, verdict.culprits) == ("passed", ())
        pairs = 4 if nodes == 2 else 4 * nodes
        assert verdict.reason.endswith(f"on each of {pairs} pairs; GPU 0 of n0 and 0 of n1 is nearest to it")

    def test_a_node_that_is_slow_with_both_neighbours_is_named(self) -> None:
        verdict = self.judge(8, (2, 3), (3, 4))
        assert self.named(verdict) == [("node", "n3", None, None, True)]
        assert verdict.culprits[0].evidence.startswith("8 of its 8 pairs fail, the worst with 5.0")
        assert verdict.culprits[0].evidence.endswith("the median of 24 others: it is slow with n2 and n4")

    def test_the_first_and_the_last_node_are_neighbours(self) -> None:
        assert self.named(self.judge(4, (0, 1), (0, 3))) == [("node", "n0", None, None, True)]

    def test_a_slow_node_of_three_fails_most_pairs_and_is_certain(self) -> None:
        verdict = self.judge(3, (0, 1), (1, 2))
        assert self.named(verdict) == [("node", "n1", None, None, True)]
        assert verdict.notes == ()

    def test_a_slow_link_of_two_nodes_is_named_once_for_all_of_its_rails(self) -> None:
        verdict = self.judge(4, (1, 2))
        assert self.named(verdict) == [("link", "n1", None, "n2", True)]
        assert verdict.culprits[0].evidence.startswith("4 of its 4 pairs fail")

    def test_one_slow_rail_of_a_node_is_the_fault_of_its_gpu(self) -> None:
        verdict = self.judge(4, (0, 1), (1, 2), rails=range(3, 4))
        assert self.named(verdict) == [("gpu", "n1", 3, None, True)]

    def test_one_slow_rail_of_a_link_is_the_fault_of_that_link(self) -> None:
        assert self.named(self.judge(4, (1, 2), rails=range(3, 4))) == [("link", "n1", 3, "n2", True)]

    def test_between_two_nodes_nobody_can_tell_whose_fault_it_is(self) -> None:
        assert self.named(self.judge(2, (0, 1))) == [("link", "n0", None, "n1", False)]

    def test_a_node_between_two_bad_ones_is_not_certain_to_be_bad(self) -> None:
        """Nor are those, as each has but one neighbour that is good for certain."""
        verdict = self.judge(10, (2, 3), (3, 4), (4, 5), (5, 6))
        assert self.named(verdict) == [("node", f"n{node}", None, None, False) for node in (3, 4, 5)]

    def test_a_bound_that_all_miss_drains_nobody(self) -> None:
        verdict = self.judge(4, (0, 1), (1, 2), (2, 3), (0, 3))
        assert {culprit.is_certain for culprit in verdict.culprits} == {False}
        assert any("16 of 16 pairs fail alike" in note for note in verdict.notes)
