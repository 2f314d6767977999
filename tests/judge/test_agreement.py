"""Ranks that computed something else are counted and named, and nothing of their study passes."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.judge.agreement import agreeing_share, disagreeing_ranks, disagreements, rows_that_differ
from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.rounds import NO_ROUNDS, ArmRounds
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.columns import Columns
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Culprit, Verdict
from pytest_ddpscale.thresholds.cases import Case
from tests.builders.judged import (
    CONFIDENCE,
    OTHER_CHECKSUM,
    easy_bound,
    evidence_of_plan,
    make_case,
    measure,
    plan_of,
)
from tests.builders.measurements import Measurement
from tests.builders.rounds import rounds_of
from tests.rows import rows


def ranks_of(number: int, checksums: Sequence[str | None]) -> list[Measurement]:
    return [
        Measurement(
            "weak/r", "ddp@k", number, rank, rank % 4, f"node{rank // 4}", f"GPU-{rank}", 8, 1, 1.0, 1.7e9,
            parameters_checksum=checksum,
        )
        for rank, checksum in enumerate(checksums)
    ]  # fmt: skip


def measured(*checksums: Sequence[str | None]) -> ArmRounds:
    return rounds_of([one for number, row in enumerate(checksums) for one in ranks_of(number, row)])


def share_of(parameters: Sequence[str | None], steps: Sequence[str]) -> float:
    (share,) = agreeing_share(measured(parameters), seeded(steps))
    return float(share)


def seeded(checksums: Sequence[str]) -> dict[int, str]:
    return dict(enumerate(checksums))


def test_ranks_without_a_complete_round_differ_in_none() -> None:
    none = measured("aaaa").of(np.zeros(0, np.int64))
    assert none.measured.digest.shape == (0, 4)
    assert len(rows_that_differ(none, seeded("ssss"))) == 0
    assert len(agreeing_share(none, seeded("ssss"))) == 0
    assert disagreeing_ranks(none, seeded("ssss")) == {}


@rows(
    ("parameters", "steps", "share"),
    [
        ("aaaa", "ssss", 1.0),
        ("aaba", "ssss", 0.75),
        ("aaaa", "ssts", 0.75),
        ("aaba", "ssts", 0.75),
        ("aaba", "tsss", 0.5),
        ("aabb", "ssss", 0.5),
        ("abcd", "ssss", 0.25),
        ("ab", "ss", 0.5),
        ("aa", "st", 0.5),
        ("ab", "st", 0.5),
        ("aab", "sss", 2 / 3),
    ],
)
def test_the_share_is_of_the_ranks_that_agree_in_both(parameters: str, steps: str, share: float) -> None:
    assert share_of(parameters, steps) == pytest.approx(share)


@given(st.text("abc", min_size=2, max_size=8), st.text("st", min_size=8, max_size=8), st.randoms())
def test_the_share_does_not_depend_on_who_is_which_rank(parameters: str, steps: str, shuffler: random.Random) -> None:
    pairs = list(zip(parameters, steps, strict=False))
    shuffled = shuffler.sample(pairs, len(pairs))
    shares = [share_of([p for p, _ in order], [s for _, s in order]) for order in (pairs, shuffled)]
    assert shares[0] == shares[1]
    assert (shares[0] == 1.0) == (len(set(pairs)) == 1)
    assert 1 / len(pairs) <= shares[0] <= 1


@rows(
    ("parameters", "steps"),
    [((None, None), "ss"), (("a", None), "ss"), (("a", ""), "ss"), (("a", "a"), "s"), (("a", "a"), "")],
)
def test_what_is_not_known_does_not_agree(parameters: Sequence[str | None], steps: str) -> None:
    assert math.isnan(share_of(parameters, steps))
    assert disagreeing_ranks(measured(parameters), seeded(steps)) == {}


def test_ranks_that_agree_are_not_named() -> None:
    assert disagreeing_ranks(measured("aaaa", "bbbb"), seeded("ssss")) == {}
    assert disagreeing_ranks(NO_ROUNDS, seeded("ssss")) == {}


def test_a_rank_with_other_parameters_is_named_with_the_rounds() -> None:
    odd = disagreeing_ranks(measured("aaaaaaaa", "aaaaabaa", "aaaaaaaa", "cccccdcc"), seeded("ssssssss"))
    ((rank, found),) = odd.items()
    assert (rank, found.host, found.gpu_index, found.gpu_uuid) == (5, "node1", 1, "GPU-5")
    assert found.is_certain
    assert found.evidence == "parameters differ from most of 8 ranks in 2 of 4 rounds"


def test_a_rank_that_computes_otherwise_by_itself_is_named_although_ddp_averages_it_away() -> None:
    ((rank, found),) = disagreeing_ranks(measured("aaaa", "aaaa"), seeded("sssx")).items()
    assert rank == 3
    assert found.evidence == "gradients of one seeded step, each computed alone, differ from most of 4 ranks"


def test_both_are_said_of_one_rank_and_several_ranks_come_in_order() -> None:
    found = disagreeing_ranks(measured("abaaa", "aaaac"), seeded("sxsss"))
    assert list(found) == [1, 4]
    assert found[1].evidence == (
        "parameters differ from most of 5 ranks in 1 of 2 rounds; "
        "gradients of one seeded step, each computed alone, differ from most of 5 ranks"
    )


@rows(("parameters", "steps"), [("ab", "ss"), ("aabb", "ssss"), ("aa", "st"), ("abcd", "ssss")])
def test_where_nobody_is_the_majority_all_are_named_and_it_is_said(parameters: str, steps: str) -> None:
    found = disagreeing_ranks(measured(parameters), seeded(steps))
    assert list(found) == list(range(len(parameters)))
    for one in found.values():
        assert not one.is_certain
        assert f"differ between the {len(parameters)} ranks" in one.evidence
        assert one.evidence.endswith("so it is unknown which is right")


def test_a_rank_that_differs_is_not_in_doubt_because_two_others_are() -> None:
    """An open question about parameters takes nothing from a clear answer about the seeded step."""
    found = disagreeing_ranks(measured("aaaa"), seeded("ssst"))
    assert [(rank, one.is_certain) for rank, one in found.items()] == [(3, True)]


def test_a_round_that_lacks_a_checksum_is_left_out() -> None:
    ((rank, found),) = disagreeing_ranks(measured("abaa", (None, "a", "a", "a"), "aaaa"), seeded("ssss")).items()
    assert (rank, found.evidence) == (1, "parameters differ from most of 4 ranks in 1 of 2 rounds")


def test_only_those_who_are_still_there_are_named() -> None:
    """Of several nodes one may be lost: what is left of the others is compared as before."""
    rounds = rounds_of([*ranks_of(0, "aaab"), *ranks_of(1, "aba")])
    ((rank, found),) = disagreeing_ranks(rounds, seeded("ssss")).items()
    assert (rank, found.evidence) == (1, "parameters differ from most of 3 ranks in 1 of 2 rounds")


class TestGroupsThatTakeTurns:
    turns = ("aa", ""), ("", "bb")  # who has which parameters, of ranks 0 and 1, and of 2 and 3

    def rounds(self, *turns: tuple[str, str]) -> ArmRounds:
        found = []
        for number, (first, second) in enumerate(turns):
            found += ranks_of(number, first) or [replace(one, rank=one.rank + 2) for one in ranks_of(number, second)]
        return rounds_of(found)

    def test_each_group_agrees_in_itself(self) -> None:
        rounds = self.rounds(*self.turns)
        assert not rows_that_differ(rounds, seeded("ssss")).any()
        assert agreeing_share(rounds, seeded("ssss")).tolist() == [1.0, 1.0]
        assert disagreeing_ranks(rounds, seeded("ssss")) == {}

    def test_a_disagreement_counts_whoever_had_the_last_turn(self) -> None:
        rounds = self.rounds(("", "bc"), *self.turns[:1])
        assert rows_that_differ(rounds, seeded("ssss")).tolist() == [True, False]
        assert list(disagreeing_ranks(rounds, seeded("ssss"))) == [2, 3]


ROUNDS = FEWEST_ROUNDS + 1
METRIC = "replica_agreement"
# Everything that the weak-scaling study of four ranks is asked, world size by metric.
ASKED = {
    METRIC: 4,
    "throughput_per_gpu": 4,
    "weak_scaling_efficiency": 4,
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
                local_rank=0,
            ),
        )
        assert verdict.value == 0.75

    def test_fails_for_a_seeded_step_that_differs_and_names_the_rank(self) -> None:
        verdict = verdict_on(METRIC, run_of_four(odd_seeded=[3]))
        assert (verdict.outcome, verdict.reason) == (
            "failed",
            "rank 3 on node1: results differ from those of other ranks",
        )
        assert verdict.culprits == (
            Culprit("gpu", "node1", 1, "GPU-3", UNLIKE_MOST, computed_wrong=True, local_rank=1),
        )

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

    @pytest.mark.parametrize("metric", [METRIC, "throughput_per_gpu"])
    def test_are_not_certain_to_be_wrong_as_halves_of_four_either(self, metric: str) -> None:
        verdict = verdict_on(metric, run_of_four({rank: range(ROUNDS) for rank in (2, 3)}, odd="a1f"))
        assert [culprit.is_certain for culprit in verdict.culprits] == [False] * 4

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


class TestRepetitions:
    """Equal parameters do not show that each rank computes right, because DDP averages what they compute."""

    def judge_unrepeated(self, *, in_all: bool) -> Verdict:
        cases = [make_case("replica_agreement", 1.0), make_case("weak_scaling_efficiency", 0.5)]
        strong = make_case("strong_scaling_speedup", 0.5)
        plan = plan_of([*cases, strong])
        evidence = evidence_of_plan(plan, [one for study in plan.studies for one in measure(study, FEWEST_ROUNDS)])
        weak = next(study.id for study in plan.studies if study.scaling == "weak")
        unrepeated = {
            study: [replace(step, repeats=False, checksum="a+b") for step in steps]
            if in_all or study == weak
            else steps
            for study, steps in evidence.seeded_steps.items()
        }
        return judge(cases[0], replace(evidence, seeded_steps=unrepeated), CONFIDENCE)

    def test_that_failed_on_most_ranks_leave_agreement_undecided(self) -> None:
        verdict = self.judge_unrepeated(in_all=True)
        assert verdict.outcome == "inconclusive"
        assert verdict.reason.startswith("2 of 2 ranks got another result when they repeated the seeded step of weak/r")

    def test_that_succeeded_in_another_study_are_enough(self) -> None:
        verdict = self.judge_unrepeated(in_all=False)
        assert verdict.passed
        assert any("what each rank computes was compared in other studies" in note for note in verdict.notes)
