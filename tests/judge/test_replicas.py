"""A rank that computes otherwise than its peers is named, and nothing of its study passes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from pytest_ddpscale.judge.agreement import disagreements
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.columns import Columns
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Culprit, Verdict
from pytest_ddpscale.thresholds.cases import Case
from tests.builders.judged import (
    CHECKSUM,
    CONFIDENCE,
    OTHER_CHECKSUM,
    easy_bound,
    evidence_of_plan,
    make_case,
    measure,
    plan_of,
    seeded_steps,
)
from tests.builders.measurements import Measurement

ROUNDS = FEWEST_ROUNDS + 1
METRIC = "replica_agreement"
# Everything that the weak-scaling study of four ranks is asked, world size by metric.
ASKED = {
    METRIC: 4,
    "throughput_per_gpu": 4,
    "weak_scaling_efficiency": 4,
    "rank_uniformity": 4,
    "exposed_communication": 4,
    "ddp_overhead": 1,
    "step_time_p95": 4,
    "step_time_cv": 4,
    "device_utilization": 4,
    "model_flops_utilization": 4,
    "generation_ratio": 4,
    "peak_memory_gib": 4,
    "memory_spread": 4,
}
OTHERS = tuple(name for name in ASKED if name != METRIC)
UNLIKE_MOST = "gradients of one seeded step, each computed alone, differ from most of 4 ranks"
UNTOLD = "no result is shared by more than half of the ranks, so it is unknown which is right"


def ask(metric: str) -> Case:
    bound = 100.0 if metric == "step_time_p95" else easy_bound(metric)
    return make_case(metric, bound, world_size=ASKED[metric])


def run_of_four(
    odd_parameters: Mapping[int, Collection[int]] | None = None, odd_seeded: Collection[int] = (), odd: str = ""
) -> Evidence:
    """Four ranks, two on each host.

    Args:
        odd_parameters: the rounds in which a rank's parameters differ, by rank.
        odd_seeded: ranks whose seeded step differs.
        odd: checksum of the parameters that differ; those of each rank have their own if it is empty.
    """
    plan = plan_of([ask(metric) for metric in ASKED], rounds=ROUNDS)
    (study,) = plan.studies
    differ = odd_parameters or {}

    def changed(one: Measurement) -> Measurement:
        differs = one.arm == "ddp@4" and one.round in differ.get(one.rank, ())
        return replace(one, parameters_checksum=odd or f"{OTHER_CHECKSUM}{one.rank}") if differs else one

    measurements = [changed(one) for one in measure(study, ROUNDS, ranks_per_host=2)]
    return evidence_of_plan(plan, measurements, odd_seeded={rank: f"{rank}bad" for rank in odd_seeded})


def run_of_two(rounds: int = ROUNDS, second: str = CHECKSUM) -> Evidence:
    """Two ranks; `second` is the checksum of the second one's parameters."""
    plan = plan_of([make_case(METRIC, 1.0, world_size=2)], rounds=rounds)
    (study,) = plan.studies
    measurements = [
        replace(one, parameters_checksum=second) if one.arm == "ddp@2" and one.rank == 1 else one
        for one in measure(study, rounds)
    ]
    return evidence_of_plan(plan, measurements)


def before_round(number: int, evidence: Evidence) -> Evidence:
    """What was known when a round began."""
    arms = {key: arm.of(arm.numbers < number) for key, arm in evidence.columns.arms.items()}
    return replace(evidence, columns=Columns(arms))


def verdict_on(metric: str, evidence: Evidence) -> Verdict:
    return judge(ask(metric), evidence, CONFIDENCE)


def test_everything_passes_where_all_ranks_agree() -> None:
    for metric in ASKED:
        verdict = verdict_on(metric, run_of_four())
        assert (verdict.outcome, verdict.culprits) == ("passed", ())


class TestAgreement:
    def test_fails_for_parameters_that_differ_and_names_the_rank(self) -> None:
        verdict = verdict_on(METRIC, run_of_four({2: range(ROUNDS)}))
        assert (verdict.outcome, verdict.reason) == (
            "failed",
            "rank 2 on node1: results differ from those of other ranks",
        )
        assert verdict.culprits == (
            Culprit(
                "gpu",
                "node1",
                0,
                "GPU-2",
                f"parameters differ from most of 4 ranks in {ROUNDS} of {ROUNDS} rounds",
                computed_wrong=True,
            ),
        )
        assert verdict.value == 0.75

    def test_fails_for_a_seeded_step_that_differs_and_names_the_rank(self) -> None:
        verdict = verdict_on(METRIC, run_of_four(odd_seeded=[3]))
        assert (verdict.outcome, verdict.reason) == (
            "failed",
            "rank 3 on node1: results differ from those of other ranks",
        )
        assert verdict.culprits == (Culprit("gpu", "node1", 1, "GPU-3", UNLIKE_MOST, computed_wrong=True),)

    def test_fails_for_a_single_round_because_nothing_about_it_is_random(self) -> None:
        verdict = verdict_on(METRIC, run_of_four({1: [4]}))
        assert verdict.outcome == "failed"
        assert [culprit.evidence for culprit in verdict.culprits] == [
            f"parameters differ from most of 4 ranks in 1 of {ROUNDS} rounds"
        ]

    def test_fails_although_too_few_rounds_were_measured_for_anything_else(self) -> None:
        evidence = run_of_four({1: [0]})
        early = before_round(2, evidence)
        assert verdict_on("throughput_per_gpu", early).outcome == "inconclusive"
        assert verdict_on(METRIC, early).outcome == "failed"

    def test_names_every_rank_that_differs(self) -> None:
        evidence = run_of_four({1: [2], 3: [5]})
        assert list(disagreements(evidence.plan.studies[0], evidence)) == [1, 3]
        assert (
            verdict_on(METRIC, evidence).reason
            == "rank 1 on node0, rank 3 on node1: results differ from those of other ranks"
        )


class TestTwoRanksThatDiffer:
    """Either may be the one that is wrong."""

    @pytest.mark.parametrize("rounds", [1, 6])
    def test_are_both_named_for_their_parameters(self, rounds: int) -> None:
        evidence = run_of_two(rounds, OTHER_CHECKSUM)
        verdict = judge(make_case(METRIC, 1.0), evidence, CONFIDENCE)
        assert verdict.outcome == "failed"
        said = f"parameters differ between the 2 ranks in {rounds} of {rounds} rounds; {UNTOLD}"
        assert [(c.gpu_uuid, c.evidence) for c in verdict.culprits] == [("GPU-0", said), ("GPU-1", said)]
        assert not any(culprit.is_certain for culprit in verdict.culprits)

    @pytest.mark.parametrize("metric", [METRIC, "throughput_per_gpu"])
    def test_are_not_certain_to_be_wrong_as_halves_of_four_either(self, metric: str) -> None:
        verdict = verdict_on(metric, run_of_four({rank: range(ROUNDS) for rank in (2, 3)}, odd="a1f"))
        assert [culprit.is_certain for culprit in verdict.culprits] == [False] * 4

    def test_are_both_named_for_their_seeded_step(self) -> None:
        evidence = run_of_two()
        (study,) = evidence.plan.studies
        evidence = replace(evidence, seeded_steps={study.id: seeded_steps(study, {1: OTHER_CHECKSUM})})
        verdict = judge(make_case(METRIC, 1.0), evidence, CONFIDENCE)
        said = f"gradients of one seeded step, each computed alone, differ between the 2 ranks; {UNTOLD}"
        assert [(c.gpu_uuid, c.evidence) for c in verdict.culprits] == [("GPU-0", said), ("GPU-1", said)]

    def test_are_told_apart_where_more_ranks_were_measured(self) -> None:
        plan = plan_of([make_case("weak_scaling_efficiency", 0.5, world_size=size) for size in (2, 4)], rounds=ROUNDS)
        (study,) = plan.studies
        evidence = evidence_of_plan(plan, measure(study, ROUNDS), odd_seeded={1: OTHER_CHECKSUM})
        assert [arm.name for arm in study.arms if arm.kind == "ddp"] == ["ddp@2", "ddp@4"]
        assert [(rank, odd.is_certain) for rank, odd in disagreements(study, evidence).items()] == [(1, True)]

    def test_stay_ambiguous_where_more_ranks_do_agree(self) -> None:
        """Something goes wrong between just these two, of which the others know nothing."""
        plan = plan_of([make_case("weak_scaling_efficiency", 0.5, world_size=size) for size in (2, 4)], rounds=ROUNDS)
        (study,) = plan.studies
        measurements = [
            replace(one, parameters_checksum=OTHER_CHECKSUM) if one.arm == "ddp@2" and one.rank == 1 else one
            for one in measure(study, ROUNDS)
        ]
        found = disagreements(study, evidence_of_plan(plan, measurements))
        assert [(rank, odd.is_certain) for rank, odd in found.items()] == [(0, False), (1, False)]


class TestOtherRequirements:
    def test_that_would_pass_become_errors_that_name_the_rank(self) -> None:
        for metric in OTHERS:
            verdict = verdict_on(metric, run_of_four({2: [3]}))
            assert verdict.outcome == "error"
            assert verdict.reason == (
                "rank 2 on node1: results differ from those of other ranks (see replica_agreement); "
                "speed does not count"
            )
            assert [culprit.gpu_uuid for culprit in verdict.culprits] == ["GPU-2"]
            assert verdict.value is not None

    def test_that_fail_stay_failures(self) -> None:
        case = make_case("throughput_per_gpu", 1000.0, world_size=4)
        agreeing, differing = (judge(case, run, CONFIDENCE) for run in (run_of_four(), run_of_four({2: [3]})))
        assert agreeing.outcome == "failed"
        assert differing == replace(agreeing, flags=("wrong-data",))

    def test_that_are_undecided_stay_undecided(self) -> None:
        evidence = run_of_four({2: [1]})
        early = before_round(3, evidence)
        verdict = verdict_on("throughput_per_gpu", early)
        assert (verdict.outcome, verdict.reason) == ("inconclusive", f"3 rounds; expected at least {FEWEST_ROUNDS}")

    def test_of_other_studies_do_not_matter(self) -> None:
        weak, strong = make_case("weak_scaling_efficiency", 0.5), make_case("strong_scaling_efficiency", 0.4)
        plan = plan_of([weak, strong], rounds=ROUNDS)
        measurements = [
            replace(one, parameters_checksum=OTHER_CHECKSUM)
            if (one.study, one.arm, one.rank) == ("weak/r", "ddp@2", 1)
            else one
            for study in plan.studies
            for one in measure(study, ROUNDS)
        ]
        evidence = evidence_of_plan(plan, measurements)
        assert [judge(case, evidence, CONFIDENCE).outcome for case in (weak, strong)] == ["error", "passed"]
