"""Of several nodes, who is slow is certainly to blame only if that explains what was missed: no other is drained."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import replace

import pytest

from pytest_ddpscale.judge.bounds import blank_verdict
from pytest_ddpscale.judge.combining import PlaceVerdict, with_failed_nodes
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.probes import Place
from pytest_ddpscale.run.verdicts import Verdict, VerdictOutcome
from pytest_ddpscale.thresholds.cases import Case
from tests.builders.judged import CONFIDENCE, OTHER_CHECKSUM, at_pace, make_case
from tests.builders.probes import Pair, pair_columns_of, with_columns
from tests.judge.nodes import Slowness, equal, measure_nodes, nodes_evidence, plan_of_nodes, slow_node, slow_rank
from tests.rows import rows

EXPLAINS_NOTHING = "too little to explain the failure"
EITHER = "either of the two nodes may be the odd one"
Named = list[tuple[str, str, bool]]


def judge_all(
    case: Case, slowness: Slowness, nodes: int = 4, network: float = 1.0, slow_links_at: Collection[int] = ()
) -> Verdict:
    """The verdict where all nodes train together, at a share of their pace that the network leaves.

    Args:
        case: the requirement.
        slowness: of ranks that compute by themselves.
        nodes: how many, of two ranks each.
        network: the share.
        slow_links_at: nodes whose links are ten times slower.
    """
    plan = plan_of_nodes([case], nodes, 2)
    found = [
        at_pace(one, one.throughput_samples_per_s * network) if one.arm.startswith(f"ddp@{2 * nodes}") else one
        for one in measure_nodes(plan, slowness)
    ]
    pairs = _pairs(nodes, lambda ends: bool(ends & {*slow_links_at})) if slow_links_at else []
    return judge(case, with_columns(nodes_evidence(plan, found), pair_columns_of(pairs, per_node=2)), CONFIDENCE)


def _pairs(nodes: int, is_slow: Callable[[set[int]], bool]) -> list[Pair]:
    """All node pairs, three times."""
    ends = itertools.combinations(range(nodes), 2)
    return [(number, *both, 1.0 if is_slow({*both}) else 10.0) for both in ends for number in range(3)]


def scaling(nodes: int = 4, floor_samples_per_s: float | None = None) -> Case:
    case = make_case("weak_scaling_efficiency", 0.9, world_size=2 * nodes)
    return replace(case, floor_samples_per_s=floor_samples_per_s)


def named(verdict: Verdict) -> Named:
    return [(culprit.kind, culprit.host, culprit.is_certain) for culprit in verdict.culprits]


def test_a_slow_link_is_named_by_both_its_ends() -> None:
    case = scaling()
    plan = plan_of_nodes([case], 4, 2)
    found = [
        at_pace(one, one.throughput_samples_per_s * 0.5) if one.arm == "ddp@8" else one
        for one in measure_nodes(plan, equal)
    ]
    pairs = pair_columns_of(_pairs(4, lambda ends: ends == {1, 2}), per_node=2)
    verdict = judge(case, with_columns(nodes_evidence(plan, found), pairs), CONFIDENCE)
    assert [(c.kind, c.host, c.peer_host) for c in verdict.culprits] == [("link", "n1", "n2")]


def test_a_slow_link_is_no_culprit_of_what_each_node_does_alone() -> None:
    case = make_case("weak_scaling_efficiency", 0.9, world_size=2)
    plan = plan_of_nodes([case], 4, 2)
    found = [
        at_pace(one, one.throughput_samples_per_s * 0.5) if one.arm == "ddp@2" and one.host in ("n0", "n2") else one
        for one in measure_nodes(plan, equal)
    ]
    pairs = pair_columns_of(_pairs(4, lambda ends: ends == {0, 2}), per_node=2)
    verdict = judge(case, with_columns(nodes_evidence(plan, found), pairs), CONFIDENCE)
    assert named(verdict) == [("node", "n0", True), ("node", "n2", True)]


class TestSlownessOfSeveralNodes:
    def test_that_explains_the_miss_is_to_blame(self) -> None:
        verdict = judge_all(scaling(), slow_node(1))
        assert named(verdict) == [("node", "n1", True)]
        assert verdict.reason.endswith("; DDP waits for it")

    @rows("slowness", [slow_node(1, 1.07), slow_rank(1, 1, 1.07)], ids=["node", "rank"])
    def test_that_is_too_little_for_it_is_not(self, slowness: Slowness) -> None:
        verdict = judge_all(scaling(), slowness, network=0.6)
        assert verdict.outcome == "failed"
        assert [(host, certain) for _, host, certain in named(verdict)] == [("n1", False)]
        assert EXPLAINS_NOTHING in verdict.reason
        assert "slow all ranks" not in verdict.reason
        assert verdict.culprits[0].evidence.endswith(EXPLAINS_NOTHING)

    @rows("slowness", [slow_node(1, 1.07), slow_rank(1, 1, 1.07)], ids=["node", "rank"])
    def test_below_the_floor_is_to_blame_whatever_else_is_wrong(self, slowness: Slowness) -> None:
        verdict = judge_all(scaling(floor_samples_per_s=95.0), slowness, network=0.6)
        assert [(host, certain) for _, host, certain in named(verdict)] == [("n1", True)]
        assert EXPLAINS_NOTHING not in verdict.reason

    def test_beside_a_slower_one_is_to_blame_if_it_would_be_alone(self) -> None:
        """The fastest of them would keep 0.9 by itself, and the other would not."""
        ratios = {(1, 0): 1.5, (2, 1): 1.3, (3, 0): 1.06}
        verdict = judge_all(scaling(), lambda node, local_rank: ratios.get((node, local_rank), 1.0))
        assert named(verdict) == [("gpu", "n1", True), ("gpu", "n2", True), ("gpu", "n3", False)]
        assert "rank 2 on n1 and 2 more" in verdict.reason

    @rows(("node", "is_enough"), [(1.2, True), (1.06, False)])
    def test_of_a_gpu_that_is_slower_than_its_slow_node_names_both(self, node: float, is_enough: bool) -> None:
        """The node is to blame only if it would be without that GPU."""

        def slowness(at: int, local_rank: int) -> float:
            return (1.6 if local_rank else node) if at == 1 else 1.0

        verdict = judge_all(scaling(), slowness)
        assert sorted(named(verdict)) == [("gpu", "n1", True), ("node", "n1", is_enough)]
        (gpu,) = (culprit for culprit in verdict.culprits if culprit.kind == "gpu")
        assert gpu.gpu_index == 1
        assert gpu.slowdown == pytest.approx(1.6)

    def test_is_told_of_times_as_of_rates(self) -> None:
        case = make_case("step_time_p95", 45.0, world_size=8)
        assert named(judge_all(case, slow_rank(1, 1))) == [("gpu", "n1", True)]
        assert named(judge_all(case, slow_rank(1, 1, 1.07), network=0.6)) == [("gpu", "n1", False)]

    def test_explains_no_communication(self) -> None:
        """The same ranks without communication are as slow."""
        uniformity = make_case("rank_uniformity", 9.0, world_size=8)
        case = make_case("exposed_communication", 0.1, world_size=8)
        plan = plan_of_nodes([case, uniformity], 4, 2)
        found = [
            at_pace(one, one.throughput_samples_per_s * 0.6) if one.arm == "ddp@8" else one
            for one in measure_nodes(plan, slow_rank(1, 1))
        ]
        verdict = judge(case, nodes_evidence(plan, found), CONFIDENCE)
        assert (verdict.outcome, named(verdict)) == ("failed", [("gpu", "n1", False)])

    def test_of_the_baseline_itself_explains_nothing(self) -> None:
        """Rank 0 faster would be faster alone as well."""
        verdict = judge_all(scaling(), slow_rank(0, 0, 1.2), network=0.85)
        assert (verdict.outcome, named(verdict)) == ("failed", [("gpu", "n0", False)])

    def test_of_one_of_two_nodes_may_be_the_other_ones_speed(self) -> None:
        verdict = judge_all(scaling(nodes=2), slow_node(1), nodes=2)
        assert named(verdict) == [("node", "n1", False)]
        assert EITHER in verdict.culprits[0].evidence
        assert "DDP may wait for " in verdict.reason

    def test_of_one_of_two_nodes_below_the_floor_is_its_own(self) -> None:
        verdict = judge_all(scaling(nodes=2, floor_samples_per_s=90.0), slow_node(1), nodes=2)
        assert named(verdict) == [("node", "n1", True)]
        assert EITHER not in verdict.reason


class TestHalfOfTheNodes:
    """The fast ones differ among themselves, so that the slow ones are no outliers."""

    @staticmethod
    def slow_half(node: int, local_rank: int) -> float:
        return (1.0, 1.03, 1.12, 1.15)[node]

    @rows("case", [scaling()])
    def test_that_are_slow_are_named_beside_the_others_and_nobody_is_certain(self, case: Case) -> None:
        verdict = judge_all(case, self.slow_half, network=0.8)
        assert verdict.outcome == "failed"
        assert named(verdict) == [("node", "n3", False), ("node", "n2", False)]
        assert "two groups of ranks: n0, n1 and n2, n3, 1.12× apart even without communication" in verdict.reason
        assert "either of the two groups may be the odd one" in verdict.culprits[0].evidence
        assert not any(note.startswith("no rank is slow") for note in verdict.notes)

    def test_are_to_blame_if_they_are_below_the_floor(self) -> None:
        verdict = judge_all(scaling(floor_samples_per_s=92.0), self.slow_half, network=0.8)
        assert named(verdict) == [("node", "n3", True), ("node", "n2", True)]


class TestASlowLink:
    @rows("which", [0, 1], ids=["of the slightly slow node", "of another"])
    def test_is_found_beside_slowness_that_explains_nothing(self, which: int) -> None:
        verdict = judge_all(scaling(), slow_rank(0, 0, 1.06), network=0.4, slow_links_at=[which])
        assert named(verdict) == [("gpu", "n0", False), ("node", f"n{which}", True)]

    def test_is_not_looked_for_where_a_node_certainly_computes_slowly(self) -> None:
        verdict = judge_all(scaling(), slow_node(1, 1.5), slow_links_at=[1])
        assert named(verdict) == [("node", "n1", True)]


class TestMostNodesFail:
    def judge_by_node(self, bound: float, slowness: Slowness, nodes: int = 4, ranks: int = 2) -> Verdict:
        case = make_case("throughput_per_gpu", bound, world_size=ranks)
        case = replace(case, floor_samples_per_s=bound)
        plan = plan_of_nodes([case, make_case("rank_uniformity", 9.0, world_size=2)], nodes, 2)
        return judge(case, nodes_evidence(plan, measure_nodes(plan, slowness)), CONFIDENCE)

    @rows("slowness", [equal, slow_node(1, 1.2)], ids=["alike", "one slower"])
    @rows("ranks", [1, 2])
    def test_for_a_wrong_bound_and_none_is_certain_to_be_at_fault(self, slowness: Slowness, ranks: int) -> None:
        verdict = self.judge_by_node(900.0, slowness, ranks=ranks)
        assert verdict.outcome == "failed"
        assert {(host, certain) for _, host, certain in named(verdict)} == {(f"n{i}", False) for i in range(4)}
        assert verdict.notes[-1] == ("4 of 4 nodes fail alike: is the bound right? This names no node for certain")

    @rows("slow", [1, 2])
    def test_is_not_so_up_to_half_of_them(self, slow: int) -> None:
        verdict = self.judge_by_node(90.0, lambda node, local_rank: 1.3 if node < slow else 1.0)
        assert named(verdict) == [("node", f"n{i}", True) for i in range(slow)]
        assert not any("bound right" in note for note in verdict.notes)

    def test_but_one_of_two_that_misses_an_absolute_bound_by_itself_is_at_fault(self) -> None:
        assert ("node", "n1", True) in named(self.judge_by_node(90.0, slow_node(1), nodes=2))

    @rows(("others", "certain"), [("passed", True), ("inconclusive", False)])
    def test_nor_may_the_first_of_undecided_nodes_be_worse_than_the_others(
        self, others: VerdictOutcome, certain: bool
    ) -> None:
        blank = blank_verdict(make_case("throughput_per_gpu", 90.0, world_size=2), CONFIDENCE)
        outcomes: list[VerdictOutcome] = ["failed", *[others] * 7]
        verdicts = [replace(blank, outcome=one, value=89.9) for one in outcomes]
        of_node = {Place("node", (), f"n{i}"): verdict for i, verdict in enumerate(verdicts)}
        nodes = [PlaceVerdict(place, of_node.__getitem__) for place in of_node]
        assert named(with_failed_nodes(verdicts[0], nodes, 8)) == [("node", "n0", certain)]

    def test_is_not_asked_of_results_that_differ(self) -> None:
        case = make_case("replica_agreement", 1.0, world_size=2)
        plan = plan_of_nodes([case], 3, 2)
        verdict = judge(case, nodes_evidence(plan, measure_nodes(plan), odd=[0, 2]), CONFIDENCE)
        assert named(verdict) == [("gpu", "n0", True), ("gpu", "n1", True)]


def test_two_ranks_of_a_node_that_disagree_are_not_certain_nor_is_their_node() -> None:
    case = make_case("replica_agreement", 1.0, world_size=2)
    plan = plan_of_nodes([case], 3, 2)
    found = [
        replace(one, parameters_checksum=OTHER_CHECKSUM) if (one.arm, one.rank) == ("ddp@2", 3) else one
        for one in measure_nodes(plan)
    ]
    verdict = judge(case, nodes_evidence(plan, found), CONFIDENCE)
    assert named(verdict) == [("gpu", "n1", False), ("gpu", "n1", False)]
