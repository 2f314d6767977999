"""A requirement passes only when the whole interval of enough sound rounds keeps its bound."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.values import samples_of
from pytest_ddpscale.plan.metric import baseline_arm
from pytest_ddpscale.plan.metric_catalogue import METRICS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.verdicts import Verdict
from pytest_ddpscale.thresholds.model import Source
from tests.builders.judged import (
    CONFIDENCE,
    DIFFERENCES,
    FACTORS,
    OTHER_CHECKSUM,
    READINGS,
    RELATIVE,
    SPREAD,
    STEPS,
    VALUED,
    WORKLOAD,
    easy_bound,
    evidence_of_plan,
    hard_bound,
    judge_changed,
    judge_values,
    least_value,
    make_case,
    make_evidence,
    make_measurements,
    measure,
    plan_of,
    sequential_geometric_mean,
    sequential_mean,
    world_size_of,
)
from tests.builders.measurements import Measurement
from tests.builders.rounds import columns_of
from tests.rows import rows

STEADY = (0.9,) * FEWEST_ROUNDS


class TestBound:
    @rows("metric", VALUED)
    def test_is_compared_with_the_interval_to_the_last_bit(self, metric: str) -> None:
        values = [least_value(metric) + value for value in SPREAD]
        interval = judge_values(metric, easy_bound(metric), values).interval
        assert interval is not None
        low, high = interval
        assert low < least_value(metric) + 0.85 < high
        at_least = {
            math.nextafter(low, 0): "passed",
            low: "passed",
            math.nextafter(low, math.inf): "inconclusive",
            high: "inconclusive",
            math.nextafter(high, math.inf): "failed",
        }
        at_most = {
            math.nextafter(high, math.inf): "passed",
            high: "passed",
            math.nextafter(high, 0): "inconclusive",
            low: "inconclusive",
            math.nextafter(low, 0): "failed",
        }
        outcomes = at_most if METRICS[metric].upper_bound else at_least
        assert {bound: judge_values(metric, bound, values).outcome for bound in outcomes} == outcomes

    @rows("metric", FACTORS)
    def test_rates_and_ratios_have_the_interval_of_their_logarithms(self, metric: str) -> None:
        values = [least_value(metric) + value for value in SPREAD]
        verdict, expected = judge_values(metric, easy_bound(metric), values), sequential_geometric_mean(values, 0.95)
        assert expected is not None
        assert verdict.value == pytest.approx(expected.value)
        assert verdict.interval == pytest.approx(expected.interval, rel=1e-6)

    @rows("metric", DIFFERENCES)
    def test_shares_and_amounts_have_the_interval_of_their_differences(self, metric: str) -> None:
        verdict, expected = judge_values(metric, easy_bound(metric), SPREAD), sequential_mean(SPREAD, 0.95)
        assert expected is not None
        assert verdict.value == pytest.approx(0.85)
        assert verdict.interval == pytest.approx(expected.interval, rel=1e-6)


class TestTooLittle:
    @rows("metric", VALUED)
    @rows(("bound_of", "rounds"), [(easy_bound, FEWEST_ROUNDS - 1), (hard_bound, 1)])
    def test_fewer_than_the_fewest_rounds_never_decide(
        self, metric: str, bound_of: Callable[[str], float], rounds: int
    ) -> None:
        value = least_value(metric) + 0.9
        verdict = judge_values(metric, bound_of(metric), [value] * rounds)
        assert (verdict.outcome, verdict.interval, verdict.rounds) == ("inconclusive", None, rounds)
        assert verdict.value == pytest.approx(value, rel=1e-6)
        assert verdict.reason.startswith(f"{rounds} rounds; expected at least {FEWEST_ROUNDS}")

    @rows("metric", VALUED)
    def test_the_fewest_rounds_do_decide(self, metric: str) -> None:
        values = [least_value(metric) + value for value in STEADY]
        outcomes = [judge_values(metric, bound(metric), values).outcome for bound in (easy_bound, hard_bound)]
        assert outcomes == ["passed", "failed"]

    @rows("metric", RELATIVE)
    def test_ratios_need_their_baseline_in_the_same_round(self, metric: str) -> None:
        baseline = baseline_arm(METRICS[metric], WORKLOAD, world_size_of(metric))
        assert baseline is not None

        def lose(one: Measurement) -> Measurement | None:
            return None if one.arm == baseline.name and one.round > 1 else one

        assert judge_changed(metric, lose).rounds == 2
        verdict = judge_changed(metric, lambda one: None if one.arm == baseline.name else one)
        assert verdict.outcome == "not_measured"
        assert verdict.reason.endswith(f"has no complete round of the arm {baseline.name} to compare with")

    @rows("metric", [*READINGS, "step_time_p95", "step_time_cv", "replica_agreement"])
    def test_what_one_rank_could_not_read_is_not_measured(self, metric: str) -> None:
        def forget(one: Measurement) -> Measurement:
            if one.rank == 0:
                return one
            unread = replace(one, utilization=None, peak_memory_bytes=None, energy_j=None)
            return replace(unread, step_s=(), parameters_checksum=None)

        verdict = judge_changed(metric, forget)
        assert (verdict.outcome, verdict.reason) == ("not_measured", f"{metric} could not be read on every rank")

    def test_utilization_of_flops_that_nobody_counted_is_not_measured(self) -> None:
        case = make_case("model_flops_utilization", 0.5)
        evidence = replace(make_evidence(case, make_measurements(case, STEADY)), flops_per_sample={})
        verdict = judge(case, evidence, CONFIDENCE)
        assert (verdict.outcome, verdict.value) == ("not_measured", None)

    @rows("missing", [0, 1])
    def test_agreement_without_the_seeded_step_of_a_rank_is_not_measured(self, missing: int) -> None:
        case = make_case("replica_agreement", 1.0)
        evidence = make_evidence(case, make_measurements(case, [1.0] * FEWEST_ROUNDS))
        known = [step for step in evidence.seeded_steps["weak/r"] if step.rank != missing]
        verdict = judge(case, replace(evidence, seeded_steps={"weak/r": known}), CONFIDENCE)
        assert (verdict.outcome, verdict.value) == ("not_measured", None)


class TestOrder:
    @settings(max_examples=20)
    @given(st.randoms(use_true_random=False), st.sampled_from([{}, {1: OTHER_CHECKSUM}]))
    def test_nor_for_a_whole_study_with_a_slow_rank(self, shuffler: random.Random, odd_seeded: dict[int, str]) -> None:
        cases = [make_case("step_time_p95", hard_bound("step_time_p95"), world_size=4)]
        cases += [make_case(metric, 1.0, world_size=4) for metric in ("weak_scaling_efficiency", "replica_agreement")]
        plan = plan_of(cases)
        (study,) = plan.studies
        measurements = measure(
            study, FEWEST_ROUNDS, lambda arm, number, rank: 70.0 + 3 * number % 8 if rank == 3 else 100.0
        )
        ordered = evidence_of_plan(plan, measurements, odd_seeded=odd_seeded)
        shuffled = replace(
            ordered,
            columns=columns_of(shuffler.sample(measurements, len(measurements))),
            seeded_steps={study.id: shuffler.sample(list(ordered.seeded_steps[study.id]), 4)},
        )
        verdicts = [[judge(case, evidence, CONFIDENCE) for case in cases] for evidence in (ordered, shuffled)]
        assert verdicts[0] == verdicts[1]
        assert {verdict.outcome for verdict in verdicts[0]} == {"failed"} | ({"passed"} if not odd_seeded else set())

    def test_other_studies_and_arms_do_not_matter(self) -> None:
        case = make_case("weak_scaling_efficiency", 0.5)
        wanted = make_measurements(case, SPREAD)
        foreign = [replace(one, study="weak/other", block_s=9.0) for one in wanted]
        foreign += [replace(one, arm="ddp@4", block_s=9.0) for one in wanted]
        assert judge(case, make_evidence(case, foreign + wanted), CONFIDENCE) == judge(
            case, make_evidence(case, wanted), CONFIDENCE
        )


class TestDrift:
    """A little each round, and hardly any noise: the mean is far better than where it ends."""

    FALLING = tuple(0.96 - 0.01 * number for number in range(9))

    def test_is_told_and_widens_the_interval_to_where_it_would_go_on_to(self) -> None:
        verdict = judge_values("weak_scaling_efficiency", 0.5, self.FALLING)
        steady = sequential_geometric_mean(self.FALLING, CONFIDENCE)
        assert steady is not None
        assert verdict.interval is not None
        assert verdict.interval[0] < steady.interval[0]
        assert verdict.interval[1] == pytest.approx(steady.interval[1])
        # From 0.95 in the first third to 0.89 in the last, and the same factor once more.
        assert verdict.interval[0] == pytest.approx(0.89 * 0.89 / 0.95, rel=1e-3)
        assert verdict.notes == (
            "not steady: −6.3 % from the first to the last third of 9 rounds; judged as if this continued",
        )

    def test_makes_inconclusive_what_its_mean_would_pass(self) -> None:
        mixed = [self.FALLING[place] for place in (4, 0, 8, 2, 6, 1, 7, 3, 5)]
        outcomes = [judge_values("weak_scaling_efficiency", 0.85, values).outcome for values in (mixed, self.FALLING)]
        assert outcomes == ["passed", "inconclusive"]

    def test_upwards_makes_inconclusive_what_its_mean_would_fail(self) -> None:
        rising = self.FALLING[::-1]
        steady = sequential_geometric_mean(rising, CONFIDENCE)
        assert steady is not None
        bound = math.nextafter(steady.interval[1], math.inf)
        verdict = judge_values("weak_scaling_efficiency", bound, rising)
        assert verdict.outcome == "inconclusive"
        assert verdict.interval is not None
        assert verdict.interval[1] == pytest.approx(0.95 * 0.95 / 0.89, rel=1e-3)


class TestSkippedSteps:
    def judge_skipping(self, skipped: Callable[[Measurement], int]) -> Verdict:
        return judge_changed("throughput_per_gpu", lambda one: replace(one, skipped_steps=skipped(one)))

    def test_are_counted_over_all_ranks_and_rounds_and_noted(self) -> None:
        verdict = self.judge_skipping(lambda one: int(one.round == 2) + one.rank)
        # Two in one round, and one in each round on rank 1.
        assert verdict.notes == (
            f"loss scaling skipped {2 + FEWEST_ROUNDS + 1} of {2 * (FEWEST_ROUNDS + 1) * STEPS} optimizer steps",
        )

    def test_of_other_arms_do_not_matter(self) -> None:
        verdict = judge_changed(
            "weak_scaling_efficiency", lambda one: replace(one, skipped_steps=1 if one.arm == "alone" else 0)
        )
        assert verdict.notes == ()


class TestValues:
    @rows("metric", [m for m in VALUED if m not in ("generation_ratio", "model_flops_utilization")])
    def test_samples_are_the_per_round_values_without_any_bound(self, metric: str) -> None:
        case = make_case(metric, easy_bound(metric))
        values = [least_value(metric) + value for value in SPREAD]
        evidence = make_evidence(case, make_measurements(case, values))
        assert samples_of(case.question, evidence).tolist() == pytest.approx(values)

    def test_a_verdict_carries_what_its_requirement_says(self) -> None:
        case = make_case(
            "peak_memory_gib", 12.6, severity="warn", provisional=True,
            source=Source(12.0, 5.0, "a paper", "as much as it held"),
        )  # fmt: skip
        verdict = judge(case, make_evidence(case, []), 0.9)
        assert (verdict.id, verdict.severity, verdict.provisional) == ("peak_memory_gib[r-2gpu]", "warn", True)
        assert (verdict.bound, verdict.confidence) == ({"at_most": 12.6}, 0.9)
        assert verdict.source == "measured 12; margin 5 %; a paper; as much as it held"

    def test_a_generation_ratio_is_relative_to_what_the_reference_published(self) -> None:
        case = replace(make_case("generation_ratio", 1.0), reference_samples_per_s=40.0)
        evidence = make_evidence(case, make_measurements(case, [2.0] * 5))
        assert judge(case, evidence, CONFIDENCE).value == pytest.approx(2.0 * 50 / 40)

    def test_flops_utilization_is_relative_to_the_peak_of_the_sku(self) -> None:
        case = replace(make_case("model_flops_utilization", 0.1), peak_tflops=4.0)
        evidence = make_evidence(case, make_measurements(case, STEADY))
        assert judge(case, evidence, CONFIDENCE).value == pytest.approx(0.9 / 4)
