"""Whoever misses a probe's bound, or gives wrong data, is named: the GPU, the node, or the link."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations, product

import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.wrong_data import unasked_wrong_data
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.model import PeerLimits
from tests.builders.measurements import ProbeMeasurement
from tests.builders.probes import pair_columns_of, with_columns
from tests.judge.probed import (
    ALL_REDUCE,
    CONFIDENCE,
    MATMUL,
    SEND_RECV,
    judge_steady,
    measure_probe,
    probe_case,
    probe_evidence,
    probe_plan,
    steady,
)
from tests.rows import rows

BOUND, GOOD = 100.0, 120.0
Ranks = tuple[int, ...]
# Kind, host, GPU, the peer's host and GPU, and whether it is certainly to blame.
Named = tuple[str, str, int | None, str | None, int | None, bool]


def named(verdict: Verdict) -> list[Named]:
    return [(c.kind, c.host, c.gpu_index, c.peer_host, c.peer_gpu_index, c.is_certain) for c in verdict.culprits]


def gpu(index: int, host: str = "n0", *, certain: bool = True) -> Named:
    return "gpu", host, index, None, None, certain


def node(host: str, *, certain: bool = True) -> Named:
    return "node", host, None, None, None, certain


def link(one: int, other: int, host: str = "n0", *, certain: bool = True) -> Named:
    return "link", host, one, host, other, certain


def with_all(*gpus: int) -> list[Ranks]:
    """All pairs of eight in which these are."""
    return [pair for pair in combinations(range(8), 2) if set(gpus) & set(pair)]


@dataclass(frozen=True)
class Slow:
    """Places that miss the bound, who is named, and what the first one's evidence begins and ends with."""

    probe: Arm
    places: list[Ranks]
    expected: list[Named]
    evidence: tuple[str, str] = ("", "")
    nodes: int = 1
    ranks: int = 8
    value: float = 90.0
    note: str = ""


ACROSS = list(product(range(4), range(4, 8)))
SLOW = {
    "nobody": Slow(MATMUL, [(3,)], [], value=101.0),
    "a GPU": Slow(MATMUL, [(3,)], [gpu(3)],
        ("matmul-bf16-1gpu at 90.08 TFLOPS", "; the median of 7 others is 120.1 TFLOPS"),
    ),
    "one of two GPUs": Slow(MATMUL, [(1,)], [gpu(1)],
        ("matmul-bf16-1gpu at 90.08 TFLOPS", "; the other one is 120.1 TFLOPS"), ranks=2,
    ),
    "a node of slow GPUs": Slow(
        MATMUL, [(rank,) for rank in range(8, 16)], [node("n1")],
        ("all 8 GPUs fail matmul-bf16-1gpu, the worst at 90.0", "; the median of 16 others is 120.1 TFLOPS"), nodes=3,
    ),
    "half of the GPUs": Slow(MATMUL, [(rank,) for rank in range(4)], [gpu(rank) for rank in range(4)]),
    # A bound that most miss drains nobody.
    "most GPUs": Slow(
        MATMUL, [(rank,) for rank in range(5)], [gpu(rank, certain=False) for rank in range(5)],
        note="5 of 8 GPUs fail alike: is the bound right? This names no culprit for certain",
    ),
    "all GPUs": Slow(
        MATMUL, [(rank,) for rank in range(8)], [gpu(rank, certain=False) for rank in range(8)],
        note="8 of 8 GPUs fail alike: is the bound right? This names no culprit for certain",
    ),
    "communication of a node": Slow(
        ALL_REDUCE, [tuple(range(16, 24))], [node("n2")],
        ("all-reduce-32mib-8gpu at 90.08 GB/s", "; the median of 3 others is 120.1 GB/s"), nodes=4,
    ),
    "communication of the only node": Slow(
        ALL_REDUCE, [tuple(range(8))], [node("n0", certain=False)],
        ("all-reduce-32mib-8gpu at 90.08 GB/s", "; no other to compare with"),
    ),
    "a pair": Slow(SEND_RECV, [(2, 5)], [link(2, 5)],
        ("send-recv-256mib-8gpu at 90.08 GB/s", "; the median of 27 others is 120.1 GB/s"),
    ),
    "the only pair": Slow(Arm("send-recv-256mib", 2), [(0, 1)], [link(0, 1, certain=False)], ranks=2),
    "all pairs of a GPU": Slow(
        SEND_RECV, with_all(3), [gpu(3)],
        ("7 of its 7 pairs fail send-recv-256mib-8gpu, the worst at 90.0",
         "; the median of 21 others is 120.1 GB/s: the GPU or its own links are at fault"),
    ),
    "all pairs of two GPUs": Slow(SEND_RECV, with_all(2, 5), [gpu(2), gpu(5)], ("7 of its 7 pairs fail", "")),
    "a link beside a GPU": Slow(SEND_RECV, [*with_all(3), (0, 6)], [gpu(3), link(0, 6)]),
    "some pairs of a GPU": Slow(
        SEND_RECV, [(3, 4), (1, 3)], [gpu(3, certain=False)],
        ("2 of its 7 pairs fail", "the GPU or these links are at fault"),
    ),
    "pairs without a common GPU": Slow(
        SEND_RECV, [(0, 1), (1, 2), (4, 5)], [link(0, 1), link(1, 2), link(4, 5)]
    ),
    "two halves that cannot reach each other": Slow(
        SEND_RECV, [*ACROSS], [link(*pair, certain=False) for pair in ACROSS], note="16 of 28 pairs fail alike"
    ),
    "a GPU and a link of two nodes": Slow(
        SEND_RECV, [*with_all(3), (8, 9)], [gpu(3), link(0, 1, "n1")], nodes=2
    ),
    "all pairs of a node": Slow(
        SEND_RECV, [(a + 8, b + 8) for a, b in combinations(range(8), 2)], [node("n1")], ("all 28 pairs fail", ""),
        nodes=2,
    ),
}  # fmt: skip


@rows("slow", SLOW.values(), ids=SLOW)
def test_who_is_slow_is_named_and_nobody_else(slow: Slow) -> None:
    bad = dict.fromkeys(slow.places, slow.value)
    verdict = judge_steady(slow.probe, BOUND, steady(GOOD, bad), nodes=slow.nodes, ranks_per_node=slow.ranks)
    assert verdict.outcome == ("failed" if slow.expected else "passed")
    assert named(verdict) == slow.expected
    begins, ends = slow.evidence
    for culprit in verdict.culprits[:1]:
        assert culprit.evidence.startswith(begins)
        assert culprit.evidence.endswith(ends)
    assert any(slow.note in note for note in (*verdict.notes, "")) if slow.note else not verdict.notes


def test_where_the_others_are_undecided_all_may_be_slow_alike() -> None:
    verdict = judge_steady(MATMUL, BOUND, steady(BOUND, {(3,): 97.0}))
    assert (verdict.outcome, named(verdict)) == ("failed", [gpu(3, certain=False)])


@rows(("value", "is_certain"), [(96.0, False), (90.0, True)])
def test_a_gpu_below_the_bound_is_certain_only_if_it_is_beyond_its_peers(value: float, is_certain: bool) -> None:
    plan, case = probe_plan(MATMUL), probe_case(MATMUL, BOUND)
    limited = replace(case, sku=replace(case.sku, peers=PeerLimits(computing=0.05)))
    measured = measure_probe(plan, MATMUL, steady(100.7, {(3,): value}))
    verdict = judge(limited, probe_evidence(plan, measured), CONFIDENCE)
    assert (verdict.outcome, named(verdict)) == ("failed", [gpu(3, certain=is_certain)])
    assert verdict.culprits[0].evidence.endswith("within 5 % of it, so all may be slow") != is_certain


def test_a_slow_cpu_rank_is_named_as_well() -> None:
    verdict = judge_steady(MATMUL, BOUND, steady(GOOD, {(3,): 90.0}), device_type="cpu")
    assert [(c.kind, c.gpu_index, c.gpu_uuid) for c in verdict.culprits] == [("gpu", 3, "cpu")]
    assert verdict.reason.startswith("CPU rank 3 of n0, one of 8 GPUs")


Wrong = Callable[[ProbeMeasurement], bool]
WITNESSES = [gpu(index, "n1", certain=False) for index in range(8)]
# The probe, whose results are wrong, on how many nodes in how many rounds, who is named, and the first one's evidence.
WRONG_DATA: dict[str, tuple[Arm, Wrong, int, int, list[Named], str]] = {
    "nobody": (SEND_RECV, lambda one: False, 1, 8, [], ""),
    "a GPU once": (
        MATMUL, lambda one: (one.rank, one.round) == (5, 6), 1, 8, [gpu(5)], "computed wrong data in 1 of 8 rounds"
    ),
    "all GPUs": (MATMUL, lambda one: True, 1, 8, [gpu(rank) for rank in range(8)], "computed wrong data in 8 of 8"),
    "before there are rounds enough": (MATMUL, lambda one: one.rank == 2, 1, 1, [gpu(2)], ""),
    "a collective of a node": (
        ALL_REDUCE, lambda one: one.host == "n1" and one.round == 2, 2, 8, [node("n1"), *WITNESSES],
        "moved wrong data in 1 of 8 rounds, seen by 8 of 8 ranks",
    ),
    "a single witness": (
        Arm("reduce-scatter-1mib", 8), lambda one: one.rank == 4, 1, 8, [node("n0"), gpu(4, certain=False)], ""
    ),
    "a group over several nodes": (
        Arm("all-gather-1mib", 16), lambda one: one.rank in (3, 12), 2, 8,
        [gpu(3, certain=False), gpu(4, "n1", certain=False)], "",
    ),
    "a pair": (
        SEND_RECV, lambda one: (one.rank, one.peer_rank) == (5, 2), 1, 8, [link(2, 5)],
        "moved wrong data in 8 of 8 rounds",
    ),
    "pairs that share a GPU": (
        SEND_RECV, lambda one: one.peer_rank == 2, 1, 8, [gpu(2)],
        "moved wrong data with 7 others: the GPU is at fault, not its links",
    ),
}  # fmt: skip


@rows("case", WRONG_DATA.values(), ids=WRONG_DATA)
def test_whose_data_is_wrong_fails_however_fast_it_is_and_is_named(
    case: tuple[Arm, Wrong, int, int, list[Named], str],
) -> None:
    probe, is_wrong, nodes, rounds, expected, evidence = case
    plan = probe_plan(probe, nodes)
    measured = [replace(one, is_correct=not is_wrong(one)) for one in measure_probe(plan, probe, steady(GOOD), rounds)]
    verdict = judge(probe_case(probe, BOUND), probe_evidence(plan, measured), CONFIDENCE)
    assert (verdict.outcome, named(verdict)) == ("failed" if expected else "passed", expected)
    assert verdict.culprits == () or verdict.culprits[0].evidence.startswith(evidence)


def test_a_result_that_is_not_said_to_be_right_is_no_pass() -> None:
    plan = probe_plan(MATMUL)
    evidence = probe_evidence(plan, measure_probe(plan, MATMUL, steady(GOOD)))
    unsaid = {key: replace(arm, readings={}) for key, arm in evidence.columns.arms.items()}
    assert judge(probe_case(MATMUL, GOOD / 2), evidence, CONFIDENCE).outcome == "passed"
    evidence = replace(evidence, columns=replace(evidence.columns, arms=unsaid))
    assert judge(probe_case(MATMUL, GOOD / 2), evidence, CONFIDENCE).outcome == "failed"


def test_wrong_data_counts_although_no_requirement_asks_for_the_probe() -> None:
    plan = probe_plan(MATMUL)
    measured = [replace(one, is_correct=one.rank != 3) for one in measure_probe(plan, MATMUL, steady(GOOD), 8)]
    evidence = probe_evidence(plan, measured)
    assert unasked_wrong_data(evidence, {MATMUL.name}) == [], "its verdict says so"
    (said,) = unasked_wrong_data(evidence, {SEND_RECV.name})
    assert said.startswith(f"wrong data in the probe {MATMUL.name}, as seen by ")
    assert said.endswith("3 of n0 (8 of 8 rounds)")


def test_wrong_data_counts_although_the_study_broke_and_who_is_slow_besides_is_named_once() -> None:
    plan = probe_plan(MATMUL)
    slow = measure_probe(plan, MATMUL, steady(GOOD, {(3,): 80.0, (6,): 90.0}))
    measured = [replace(one, is_correct=one.rank != 3) for one in slow]
    verdict = judge(probe_case(MATMUL, BOUND), probe_evidence(plan, measured), CONFIDENCE)
    assert [(c.gpu_index, "wrong data" in c.evidence) for c in verdict.culprits] == [(3, True), (6, False)]
    assert verdict.reason.endswith("the whole interval misses the bound (failed too: GPU 6 of n0)")
    broken = judge(
        probe_case(MATMUL, BOUND), probe_evidence(plan, measured, errors={"probes": "rank 2 was lost"}), CONFIDENCE
    )
    assert broken.outcome == "failed"
    assert broken.reason.endswith("; also: rank 2 was lost")
    assert [culprit.gpu_index for culprit in broken.culprits] == [3]


def test_each_of_many_slow_gpus_is_held_against_all_others_but_itself() -> None:
    values: dict[tuple[int, ...], float] = {
        (rank,): (50.0 + rank if rank % 2 == 0 else 100.0 + rank) for rank in range(16)
    }
    values[2,] = values[4,]  # alike, and not the same
    verdict = judge_steady(MATMUL, 90.0, steady(100.0, values), nodes=2)
    assert len(verdict.culprits) == 8
    for rank, culprit in zip(range(0, 16, 2), verdict.culprits, strict=True):
        median = statistics.median(value for ranks, value in values.items() if ranks != (rank,))
        told = float(culprit.evidence.removesuffix(" TFLOPS").rpartition("; the median of 15 others is ")[2])
        assert told == pytest.approx(median, rel=2e-3)


def test_slow_ranks_of_several_nodes_are_told_by_the_node_pairs() -> None:
    probe = Arm("all-reduce-32mib", 8)
    plan = probe_plan(probe, nodes=4, ranks_per_node=2)
    evidence = probe_evidence(plan, measure_probe(plan, probe, steady(60.0)))
    assert judge(probe_case(probe, BOUND), evidence, CONFIDENCE).culprits == ()
    ends = combinations(range(4), 2)
    pairs = [(number, a, b, 5.0 if 2 in (a, b) else 50.0) for a, b in ends for number in range(3)]
    verdict = judge(probe_case(probe, BOUND), with_columns(evidence, pair_columns_of(pairs, per_node=2)), CONFIDENCE)
    assert [(c.kind, c.host) for c in verdict.culprits] == [("node", "n2")]
    assert "communication is slow at node n2" in verdict.reason


class TestBetweenNodes:
    """A ring of nodes: each is in a pair with the next one, on every rail, and the last with the first."""

    def judge(self, nodes: int, *slow: tuple[int, int], rails: range = range(4)) -> Verdict:
        """Of nodes with 4 GPUs, where these pairs of nodes are slow on these rails."""
        bad: dict[tuple[int, ...], float] = {
            (4 * one + rail, 4 * other + rail): 5.0 for one, other in slow for rail in rails
        }
        probe = Arm("send-recv-256mib", 4 * nodes)
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
        assert verdict.culprits[0].evidence.startswith("8 of its 8 pairs fail send-recv-256mib-32gpu, the worst at 5.0")
        assert verdict.culprits[0].evidence.endswith("GB/s: it is slow with n2 and n4")

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
