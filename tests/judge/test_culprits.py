"""Whoever is slow without communication is named for what that slows, with what was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from pytest_ddpscale.judge.bounds import blank_verdict
from pytest_ddpscale.judge.culprits import RankComparison, rank_notes
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.words import DeviceType
from pytest_ddpscale.run.verdicts import Culprit, Verdict
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.thresholds.model import PeerLimits
from tests.builders.judged import (
    ALONE_SAMPLES_PER_S,
    CONFIDENCE,
    evidence_of_plan,
    judge_values,
    make_case,
    make_evidence,
    make_measurement,
    make_study,
    measure,
    plan_of,
)
from tests.judge.nodes import measure_nodes, plan_of_nodes
from tests.rows import rows

ROUNDS = FEWEST_ROUNDS + 1
NOBODY_SLOW = "no rank is more than 0.0 % slower than its peers without communication"
LOOK_AT_3 = (
    "look at rank 3 on node1, 1.04× (1.04 … 1.04×) the median of 3 peers: slower without communication, not clearly "
    "enough to be named by that"
)
# How many times slower a rank computes in a round; of round and rank.
Slowness = Callable[[int, int], float]


def judge_slowed(
    slowness: Slowness,
    case: Case | None = None,
    others: Sequence[Case] = (),
    ranks_per_host: int = 2,
    device_type: DeviceType = "cuda",
) -> Verdict:
    """The verdict on a case when ranks are slow by themselves, for which all of them wait under DDP."""
    case = case or make_case("weak_scaling_efficiency", 0.9, world_size=4)
    plan = plan_of([case, *others], device_type, ROUNDS)

    def samples_per_s(arm: Arm, number: int, rank: int) -> float:
        together = range(arm.world_size) if arm.kind == "ddp" else [rank]
        return ALONE_SAMPLES_PER_S / max(slowness(number, r) for r in together)

    measurements = [one for study in plan.studies for one in measure(study, ROUNDS, samples_per_s, ranks_per_host)]
    return judge(case, evidence_of_plan(plan, measurements), CONFIDENCE)


def slow(ratio: float, *ranks: int) -> Slowness:
    """These ranks are so many times slower, always."""
    return lambda number, rank: ratio if rank in ranks else 1.0


class TestOneSlowRank:
    def test_is_named_for_a_scaling_that_it_spoils(self) -> None:
        verdict = judge_slowed(slow(1.3, 3))
        assert verdict.outcome == "failed"
        assert verdict.culprits == (
            Culprit(
                "gpu", "node1", 1, "GPU-3", f"1.30× the median of 3 peers in {ROUNDS} of {ROUNDS} rounds",
                slowdown=pytest.approx(1.3), peers=3, slow_rounds=ROUNDS, rounds=ROUNDS,  # type: ignore[arg-type]
                local_rank=1,
            ),
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("metric", "bound"),
        [
            ("throughput_per_gpu", 90.0),
            ("exposed_communication", 0.1),
            ("step_time_p95", 45.0),
            ("computation_time", 45.0),
            ("generation_ratio", 1.9),
            ("model_flops_utilization", 0.9),
            ("strong_scaling_speedup", 3.6),
            ("strong_scaling_efficiency", 0.9),
        ],
    )
    def test_is_named_for_everything_that_it_slows(self, metric: str, bound: float) -> None:
        # no_sync is measured with the slow rank too, so what is exposed is exposed beside it.
        uniformity = make_case("rank_uniformity", 1.1, world_size=4)
        slowness = slow(1.3, 3)
        if metric == "exposed_communication":
            verdict = self.judge_exposed(slowness)
        else:
            verdict = judge_slowed(slowness, make_case(metric, bound, world_size=4), [uniformity])
        assert verdict.outcome == "failed"
        assert [culprit.gpu_uuid for culprit in verdict.culprits] == ["GPU-3"]

    def judge_exposed(self, slowness: Slowness) -> Verdict:
        case = make_case("exposed_communication", 0.1, world_size=4)
        plan = plan_of([case], rounds=ROUNDS)
        (study,) = plan.studies

        def samples_per_s(arm: Arm, number: int, rank: int) -> float:
            return ALONE_SAMPLES_PER_S / 2 if arm.kind == "ddp" else ALONE_SAMPLES_PER_S / slowness(number, rank)

        return judge(case, evidence_of_plan(plan, measure(study, ROUNDS, samples_per_s, 2)), CONFIDENCE)

    @pytest.mark.parametrize("metric", ["peak_memory_gib", "memory_spread", "step_time_cv"])
    def test_is_not_named_for_what_it_does_not_slow(self, metric: str) -> None:
        """Nor does it pass: what failed failed for another reason."""
        case = make_case(metric, 0.01, world_size=4)
        plan = plan_of([case], rounds=ROUNDS)
        (study,) = plan.studies
        measurements = [
            replace(
                one,
                peak_memory_bytes=one.peak_memory_bytes and one.peak_memory_bytes * (1 + one.rank),
                step_s=tuple(step_s * (0.5 + i % 2) for i, step_s in enumerate(one.step_s)),
            )
            for one in measure(study, ROUNDS, lambda arm, number, rank: 50.0 if rank == 3 else 100.0)
        ]
        verdict = judge(case, evidence_of_plan(plan, measurements), CONFIDENCE)
        assert (verdict.outcome, verdict.culprits) == ("failed", ())

    @pytest.mark.parametrize(("metric", "bound"), [("inference_throughput", 90.0), ("inference_latency_p99", 45.0)])
    def test_is_named_for_forward_passes_by_themselves(self, metric: str, bound: float) -> None:
        verdict = judge_slowed(slow(1.3, 2), make_case(metric, bound, world_size=4))
        assert verdict.outcome == "failed"
        assert verdict.reason == "the whole interval misses the bound; slow: rank 2 on node1"
        assert [culprit.gpu_uuid for culprit in verdict.culprits] == ["GPU-2"]

    def test_is_not_named_for_forward_passes_that_all_ranks_lack(self) -> None:
        """Nor does anybody search for slow links: forward passes do not communicate."""
        verdict = judge_slowed(slow(1.3, 0, 1, 2, 3), make_case("inference_throughput", 90.0, world_size=4))
        assert (verdict.outcome, verdict.culprits, verdict.notes) == ("failed", (), ())

    def test_may_be_undecided_and_is_named_all_the_same(self) -> None:
        verdict = judge_slowed(lambda number, rank: 1.1 + 0.02 * (number % 3) if rank == 1 else 1.0)
        assert verdict.outcome == "inconclusive"
        assert [culprit.gpu_uuid for culprit in verdict.culprits] == ["GPU-1"]

    def test_is_not_named_for_a_pass(self) -> None:
        verdict = judge_slowed(slow(1.3, 3), make_case("weak_scaling_efficiency", 0.5, world_size=4))
        assert (verdict.outcome, verdict.culprits, verdict.notes) == ("passed", (), ())

    def test_beyond_the_world_in_question_is_not_to_blame(self) -> None:
        larger = make_case("weak_scaling_efficiency", 0.9, world_size=4)
        smaller = make_case("throughput_per_gpu", 200.0, world_size=2)
        assert judge_slowed(slow(1.3, 3), smaller, [larger]).culprits == ()
        assert len(judge_slowed(slow(1.3, 1), smaller, [larger]).culprits) == 1

    def test_is_named_for_what_one_rank_misses_if_it_had_its_turns(self) -> None:
        alone = make_case("throughput_per_gpu", 2 * ALONE_SAMPLES_PER_S, world_size=1)
        verdict = judge_slowed(slow(1.3, 3), alone, [make_case("weak_scaling_efficiency", 0.9, world_size=4)])
        assert verdict.outcome == "failed"
        assert [culprit.gpu_uuid for culprit in verdict.culprits] == ["GPU-3"]

    def test_is_found_in_the_weak_study_for_a_strong_scaling_that_fails(self) -> None:
        strong = make_case("strong_scaling_efficiency", 0.9, world_size=4)
        weak = make_case("weak_scaling_efficiency", 0.9, world_size=4)
        alone, beside = judge_slowed(slow(1.3, 3), strong), judge_slowed(slow(1.3, 3), strong, [weak])
        assert (alone.outcome, alone.culprits) == ("inconclusive", ())
        assert beside.outcome == "failed"
        assert [culprit.evidence for culprit in beside.culprits] == [
            f"1.30× the median of 3 peers in {ROUNDS} of {ROUNDS} rounds"
        ]
        assert "rank 3 on node1" in beside.reason

    @pytest.mark.parametrize(("limit", "named"), [(0.05, 1), (0.10, 0), (None, 1)])
    def test_has_to_be_beyond_the_limit_of_its_peers(self, limit: float | None, named: int) -> None:
        case = make_case("weak_scaling_efficiency", 1.1, world_size=4)
        assert len(judge_slowed(slow(1.08, 3), replace(case, peers=PeerLimits(limit))).culprits) == named


class TestSeveralSlowRanks:
    def test_are_named_slowest_first_and_counted(self) -> None:
        verdict = judge_slowed(
            lambda number, rank: {1: 1.2, 6: 1.5}.get(rank, 1.0),
            make_case("weak_scaling_efficiency", 0.9, world_size=8),
        )
        assert [culprit.gpu_uuid for culprit in verdict.culprits] == ["GPU-6", "GPU-1"]
        assert "rank 6 on node3 and 1 more are slow even without communication (1.50× the median" in verdict.reason

    def test_of_one_host_that_are_all_there_is_of_it_are_a_node(self) -> None:
        verdict = judge_slowed(slow(1.3, 2, 3))
        assert verdict.culprits == (
            Culprit(
                "node", "node1", None, None,
                "all 2 ranks slow, 1.30× the median of their peers (node0); "
                "either of the two groups may be the odd one",
                is_certain=False, slowdown=pytest.approx(1.3),  # type: ignore[arg-type]
            ),
        )  # fmt: skip
        assert "two groups of ranks: node0 and node1, 1.30× apart even without communication" in verdict.reason


class TestNobodySlow:
    def test_leaves_communication_or_all_ranks_alike(self) -> None:
        case = make_case("weak_scaling_efficiency", 1.1, world_size=4)
        verdict = judge_slowed(slow(1.0), case, device_type="cpu")
        assert (verdict.outcome, verdict.culprits) == ("failed", ())
        assert verdict.notes == (NOBODY_SLOW,)
        assert verdict.reason == "the whole interval misses the bound"

    def test_is_not_said_of_ranks_that_were_hardly_compared(self) -> None:
        case = make_case("weak_scaling_efficiency", 1.1, world_size=2)
        plan = plan_of_nodes([case], nodes=2, ranks_per_node=2)
        missing = [one for one in measure_nodes(plan) if one.arm == "each@2" and one.host == "n0" and one.round > 2]
        kept = [one for one in measure_nodes(plan) if one not in missing]
        notes = judge(case, evidence_of_plan(plan, kept), CONFIDENCE).notes
        assert "too few rounds without communication to tell whether these are slow: ranks 0, 1" in notes
        assert not any("no rank" in note for note in notes)

    def test_is_not_said_where_most_are(self) -> None:
        verdict = judge_slowed(slow(1.3, 1, 2, 3), make_case("weak_scaling_efficiency", 1.1, world_size=4))
        assert verdict.culprits == ()
        assert verdict.notes == (NOBODY_SLOW,), "three of four are the norm"

    def test_enough_to_be_named_is_noted(self) -> None:
        case = make_case("weak_scaling_efficiency", 1.1, world_size=4)
        verdict = judge_slowed(slow(1.04, 3), case)
        assert (verdict.outcome, verdict.culprits) == ("failed", ())
        assert verdict.notes == (LOOK_AT_3,)

    def test_enough_to_be_looked_at_is_excluded_up_to_what_was_measured(self) -> None:
        case = make_case("weak_scaling_efficiency", 1.1, world_size=4)
        verdict = judge_slowed(slow(1.02, 3), case)
        assert verdict.notes == ("no rank is more than 2.0 % slower than its peers without communication",)

    def test_but_a_hiccup_accuses_nobody(self) -> None:
        case = make_case("weak_scaling_efficiency", 1.1, world_size=4)
        verdict = judge_slowed(lambda number, rank: 3.0 if (number, rank) == (2, 3) else 1.0, case)
        assert (verdict.culprits, verdict.notes[-1]) == ((), NOBODY_SLOW)

    def test_often_enough_accuses_nobody(self) -> None:
        """Each rank hiccups once or twice: no one of them is over the line in half of the rounds."""
        case = make_case("weak_scaling_efficiency", 1.1, world_size=4)
        verdict = judge_slowed(lambda number, rank: 1.1 if number % 4 == rank else 1.0, case)
        assert (verdict.outcome, verdict.culprits) == ("failed", ())

    def test_is_not_said_where_nobody_looked(self) -> None:
        verdict = judge_values("weak_scaling_efficiency", 1.0, [0.9] * ROUNDS)
        assert (verdict.outcome, verdict.notes) == ("failed", ())


class TestWorldOfTwo:
    """Either of two may be the odd one: what one of them should reach alone is the third opinion."""

    def judge_pair(self, floor_samples_per_s: float | None) -> Verdict:
        case = replace(make_case("weak_scaling_efficiency", 0.9), floor_samples_per_s=floor_samples_per_s)
        return judge_slowed(slow(1.25, 1), case)

    @pytest.mark.parametrize(
        ("floor_samples_per_s", "compared", "is_certain"),
        [
            (90.0, "its 80 img/s are below the floor of 90 img/s for one alone", True),
            (75.0, "its 80 img/s are above the floor of 75 img/s for one alone", False),
            (None, "no floor for one rank alone to compare with", False),
        ],
    )
    def test_says_what_the_slower_one_was_compared_with(
        self, floor_samples_per_s: float | None, compared: str, is_certain: bool
    ) -> None:
        verdict = self.judge_pair(floor_samples_per_s)
        assert verdict.outcome == "failed"
        evidence = f"1.25× the time of its only peer in {ROUNDS} of {ROUNDS} rounds; {compared}"
        slow = Culprit(
            "gpu", "node0", 1, "GPU-1", evidence, is_certain=is_certain,
            slowdown=pytest.approx(1.25), peers=1, slow_rounds=ROUNDS, rounds=ROUNDS,  # type: ignore[arg-type]
            local_rank=1,
        )  # fmt: skip
        assert verdict.culprits == (slow,)
        assert compared in verdict.reason

    def test_compares_the_slower_one_whichever_it_is(self) -> None:
        case = replace(make_case("weak_scaling_efficiency", 0.9), floor_samples_per_s=90.0)
        (culprit,) = judge_slowed(slow(1.25, 0), case).culprits
        assert (culprit.gpu_uuid, "80 img/s are below" in culprit.evidence) == ("GPU-0", True)

    def test_of_more_than_two_needs_no_third_opinion(self) -> None:
        case = replace(make_case("weak_scaling_efficiency", 0.9, world_size=4), floor_samples_per_s=90.0)
        (culprit,) = judge_slowed(slow(1.25, 1), case).culprits
        assert "floor" not in culprit.evidence


def test_ranks_are_compared_in_the_largest_arm() -> None:
    plan = plan_of([make_case("rank_uniformity", 1.1, world_size=size) for size in (2, 4)], rounds=ROUNDS)
    (study,) = plan.studies
    found = RankComparison(study, evidence_of_plan(plan, measure(study, ROUNDS)), 0.05).rounds
    assert found.present.sum(axis=1).tolist() == [4] * ROUNDS


def test_limit_decides_anew_who_is_slow() -> None:
    plan = plan_of([make_case("rank_uniformity", 1.1, world_size=4)], rounds=ROUNDS)
    (study,) = plan.studies
    evidence = evidence_of_plan(plan, measure(study, ROUNDS, lambda _, __, rank: 80 if rank == 2 else 100))
    found = [[one.rank for one in RankComparison(study, evidence, limit).stragglers] for limit in (0.5, 0.05, 0.5)]
    assert found == [[], [2], []]


class TestLeastBusy:
    def judge_ranks(self, utilization: Callable[[int, int], float], bound: float = 0.9) -> Verdict:
        """The verdict on the utilization of four ranks; `utilization` of round and rank."""
        case = make_case("device_utilization", bound, world_size=4)
        study = make_study(case)
        found = [
            make_measurement(study.id, study.arms[0], number, rank, utilization=utilization(number, rank), local_rank=3)
            for number in range(ROUNDS)
            for rank in range(4)
        ]
        return judge(case, make_evidence(case, found), CONFIDENCE)

    def test_rank_is_judged_and_named(self) -> None:
        verdict = self.judge_ranks(lambda number, rank: 0.5 if rank == 2 else 0.99)
        assert verdict.outcome == "failed"
        assert verdict.value == pytest.approx(0.5)
        assert verdict.culprits == (
            Culprit("gpu", "node2", 3, "GPU-2", "50 % busy; the median of 3 peers is 99 %", local_rank=3),
        )

    @rows(
        ("utilization", "named"),
        [
            (lambda number, rank: 0.5 if rank in (1, 2) else 0.99, ["GPU-1", "GPU-2"]),
            (lambda number, rank: 0.0 if rank == 3 else 0.99, ["GPU-3"]),
            (lambda number, rank: 0.0, []),
            (lambda number, rank: 0.85 - 0.001 * rank, []),
            (lambda number, rank: 0.6 if rank == 2 else 0.85, []),  # its peers miss the bound, too
            (lambda number, rank: 0.89 if rank == 2 else 0.91, []),
            (lambda number, rank: 0.5 if rank == number % 4 else 0.99, []),
        ],
    )
    def test_rank_is_named_if_it_alone_misses_the_bound(
        self, utilization: Callable[[int, int], float], named: list[str]
    ) -> None:
        verdict = self.judge_ranks(utilization)
        assert (verdict.outcome, [one.gpu_uuid for one in verdict.culprits]) == ("failed", named)

    def test_rank_is_not_blamed_for_a_pass(self) -> None:
        assert self.judge_ranks(lambda number, rank: 0.95).culprits == ()

    def test_rank_is_not_blamed_while_it_is_undecided(self) -> None:
        verdict = self.judge_ranks(lambda number, rank: 0.8 + 0.02 * (number % 3), bound=0.82)
        assert (verdict.outcome, verdict.culprits) == ("inconclusive", ())

    def test_rank_is_not_blamed_for_another_metric(self) -> None:
        assert judge_values("throughput_per_gpu", 2.0, [0.9] * 6).culprits == ()


def notes(slowness: Callable[[int, int], float], rounds: int = 12, verdicts: Iterable[Verdict] = ()) -> list[str]:
    """Of four ranks; `slowness` of round and rank."""
    plan = plan_of([make_case("rank_uniformity", 1.1, world_size=4)], "cuda", rounds)

    def samples_per_s(arm: Arm, number: int, rank: int) -> float:
        return ALONE_SAMPLES_PER_S / slowness(number, rank)

    found = [one for study in plan.studies for one in measure(study, rounds, samples_per_s, 2)]
    return rank_notes(evidence_of_plan(plan, found), 0.05, verdicts)


def test_a_rank_that_is_four_per_cent_slow_is_to_be_looked_at() -> None:
    assert notes(lambda number, rank: 1.04 if rank == 3 else 1.0) == [LOOK_AT_3]


def test_a_rank_that_a_verdict_names_is_not_also_said_to_be_too_little_slow() -> None:
    for local_rank, left in ((1, []), (None, []), (0, [LOOK_AT_3])):
        culprit = Culprit(
            "node" if local_rank is None else "gpu", "node1", 7, None, "1.05× by its own pace", local_rank=local_rank
        )
        named = blank_verdict(make_case("rank_uniformity", 1.1, world_size=4), CONFIDENCE)
        verdict = replace(named, outcome="failed", value=1.2, culprits=(culprit,))
        assert notes(lambda number, rank: 1.04 if rank == 3 else 1.0, verdicts=[verdict]) == left


def test_a_rank_that_became_slow_is_told() -> None:
    assert notes(lambda number, rank: 1.2 if rank == 3 and number >= 6 else 1.0) == [
        "slow at times: rank 3 on node1, 1.20× the median of 3 peers in the last 6 of 12 rounds"
    ]


def test_nothing_is_said_of_ranks_that_are_alike_or_named_anyway() -> None:
    assert notes(lambda number, rank: 1.0) == []
    assert notes(lambda number, rank: 1.2 if rank == 3 else 1.0) == []
