"""A requirement passes only when the whole interval of enough sound rounds keeps its bound."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddpscale.plan.metric import METRICS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, Question
from pytest_ddpscale.plan.study import DeviceType, Plan
from pytest_ddpscale.results.records import Measurement, strict_json
from pytest_ddpscale.thresholds.cases import Case
from pytest_ddpscale.verdict.evaluation import (
    SINGLE_SAMPLE_NOTE,
    SINGLE_VALUE_NOTE,
    covers,
    judge,
    matching_study,
    samples_of,
)
from pytest_ddpscale.verdict.evidence import Evidence
from pytest_ddpscale.verdict.verdict import Culprit, Verdict
from tests.verdict.sample import (
    ALONE_IMG_PER_S,
    AT_LEAST,
    CONFIDENCE,
    GIB,
    RATES,
    RELATIVE,
    WORKLOAD,
    judge_values,
    make_case,
    make_evidence,
    make_measurement,
    make_measurements,
    make_study,
)

SPREAD = (0.80, 0.82, 0.84, 0.86, 0.88, 0.90)
STEADY = (0.9, 0.9, 0.9, 0.9, 0.9)
STRONG = tuple(name for name in METRICS if METRICS[name].scaling == "strong")
SCALED_WORKLOADS: dict[str, dict[str, Any]] = {
    "model": {"model": "resnet34"},
    "precision": {"precision": "bf16"},
    "image_size": {"image_size": 64},
    "memory_format": {"memory_format": "contiguous"},
    "compile": {"compile": True},
    "num_classes": {"num_classes": 10},
    "cudnn_benchmark": {"cudnn_benchmark": False},
}

Change = Callable[[Measurement], Measurement | None]


def judge_changed(metric: str, change: Change, bound: float | None = None, rounds: int = 6) -> Verdict:
    """The verdict on rounds that would easily pass, after a change to their measurements; None drops one."""
    upper = METRICS[metric].upper_bound
    case = make_case(metric, bound or (2.0 if upper else 0.5))
    changed = [change(one) for one in make_measurements(case, [0.9] * rounds)]
    return judge(case, make_evidence(case, [one for one in changed if one is not None]), CONFIDENCE)


class TestBound:
    @pytest.mark.parametrize("metric", AT_LEAST)
    def test_at_least_is_decided_by_the_interval_to_the_last_bit(self, metric: str) -> None:
        interval = judge_values(metric, 0.85, SPREAD).interval
        assert interval is not None
        low, high = interval
        assert 0.80 < low < 0.85 < high < 0.90
        outcomes = {
            math.nextafter(low, 0): "passed",
            low: "passed",
            math.nextafter(low, 1): "inconclusive",
            high: "inconclusive",
            math.nextafter(high, 1): "failed",
        }
        assert {bound: judge_values(metric, bound, SPREAD).outcome for bound in outcomes} == outcomes

    def test_at_most_is_decided_by_the_interval_to_the_last_bit(self) -> None:
        interval = judge_values("peak_memory_gib", 0.85, SPREAD).interval
        assert interval is not None
        low, high = interval
        assert 0.80 < low < 0.85 < high < 0.90
        outcomes = {
            math.nextafter(high, 1): "passed",
            high: "passed",
            math.nextafter(high, 0): "inconclusive",
            low: "inconclusive",
            math.nextafter(low, 0): "failed",
        }
        assert {bound: judge_values("peak_memory_gib", bound, SPREAD).outcome for bound in outcomes} == outcomes

    @pytest.mark.parametrize("metric", RATES)
    def test_rates_and_ratios_have_the_interval_of_their_logarithms(self, metric: str) -> None:
        verdict = judge_values(metric, 0.5, SPREAD)
        logs = [math.log(value) for value in SPREAD]
        mean = math.fsum(logs) / 6
        reach = 2.570582 * math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / 5 / 6)
        assert verdict.value == pytest.approx(math.exp(mean))
        assert verdict.interval == pytest.approx((math.exp(mean - reach), math.exp(mean + reach)), rel=1e-6)

    @pytest.mark.parametrize("metric", ["device_utilization", "peak_memory_gib"])
    def test_shares_and_amounts_have_the_interval_of_their_differences(self, metric: str) -> None:
        verdict = judge_values(metric, 0.5, SPREAD)
        reach = 2.570582 * math.sqrt(math.fsum((x - 0.85) ** 2 for x in SPREAD) / 5 / 6)
        assert verdict.value == pytest.approx(0.85)
        assert verdict.interval == pytest.approx((0.85 - reach, 0.85 + reach), rel=1e-6)

    def test_higher_confidence_may_leave_undecided_what_a_lower_one_passes(self) -> None:
        case = make_case("weak_scaling_efficiency", 0.83)
        evidence = make_evidence(case, make_measurements(case, SPREAD))
        outcomes = [judge(case, evidence, confidence).outcome for confidence in (0.5, 0.99)]
        assert outcomes == ["passed", "inconclusive"]

    def test_reasons_say_where_the_interval_lies(self) -> None:
        reasons = [judge_values("throughput_per_gpu", bound, SPREAD).reason for bound in (0.7, 0.85, 0.95)]
        assert reasons == [
            "the whole interval keeps the bound",
            "the bound lies inside the interval: more rounds are needed",
            "the whole interval misses the bound",
        ]

    @given(
        st.sampled_from(sorted(METRICS)),
        st.lists(st.floats(0.05, 1.0), min_size=1, max_size=8),
        st.floats(0.05, 1.0),
    )
    def test_a_pass_always_has_its_whole_interval_on_the_good_side(
        self, metric: str, values: list[float], bound: float
    ) -> None:
        verdict = judge_values(metric, bound, values)
        assert verdict.rounds == len(values)
        if verdict.outcome in ("passed", "failed"):
            assert len(values) >= FEWEST_ROUNDS
            assert verdict.interval is not None
            low, high = verdict.interval
            good, bad = (high <= bound, low > bound) if METRICS[metric].upper_bound else (low >= bound, high < bound)
            assert (verdict.outcome == "passed", verdict.outcome == "failed") == (good, bad)

    def test_a_machine_below_the_bound_passes_no_more_often_than_the_confidence_allows(self) -> None:
        noise = random.Random(7)
        bound, trials = 0.95, 300
        passes = sum(
            judge_values("weak_scaling_efficiency", bound, [noise.gauss(0.9499, 0.01) for _ in range(5)]).passed
            for _ in range(trials)
        )
        assert passes / trials < 0.025 + 3 * math.sqrt(0.025 * 0.975 / trials)


class TestTooLittle:
    @pytest.mark.parametrize("metric", sorted(METRICS))
    @pytest.mark.parametrize("bound", [0.01, 5.0])
    @pytest.mark.parametrize("rounds", range(1, FEWEST_ROUNDS))
    def test_fewer_than_five_rounds_never_decide(self, metric: str, bound: float, rounds: int) -> None:
        bound = min(bound, 2.0) if METRICS[metric].unit == "fraction" else bound
        verdict = judge_values(metric, bound, [0.9] * rounds)
        assert (verdict.outcome, verdict.interval, verdict.rounds) == ("inconclusive", None, rounds)
        assert verdict.value == pytest.approx(0.9, rel=1e-6)
        assert verdict.reason == f"{rounds} rounds; expected at least 5"

    @pytest.mark.parametrize("metric", sorted(METRICS))
    def test_nothing_measured_is_not_measured(self, metric: str) -> None:
        case = make_case(metric, 0.5)
        verdict = judge(case, make_evidence(case, []), CONFIDENCE)
        assert (verdict.outcome, verdict.value, verdict.rounds) == ("not_measured", None, 0)
        assert verdict.reason == f"no complete round of 2 ranks in {make_study(case).id}"

    @pytest.mark.parametrize("metric", sorted(METRICS))
    def test_a_missing_rank_drops_its_round(self, metric: str) -> None:
        def lose(one: Measurement) -> Measurement | None:
            return None if (one.rank, one.round) in {(1, 0), (1, 3)} else one

        assert judge_changed(metric, lose, rounds=7).rounds == 5
        undecided = judge_changed(metric, lose, rounds=6)
        assert (undecided.outcome, undecided.rounds) == ("inconclusive", 4)

    @pytest.mark.parametrize("metric", sorted(METRICS))
    def test_a_rank_that_is_always_missing_leaves_it_unmeasured(self, metric: str) -> None:
        verdict = judge_changed(metric, lambda one: None if one.rank == 1 else one)
        assert (verdict.outcome, verdict.value) == ("not_measured", None)

    @pytest.mark.parametrize("metric", RELATIVE)
    def test_ratios_need_the_arm_alone_in_the_same_round(self, metric: str) -> None:
        def lose(one: Measurement) -> Measurement | None:
            return None if one.arm == "alone" and one.round > 1 else one

        assert judge_changed(metric, lose).rounds == 2
        verdict = judge_changed(metric, lambda one: None if one.arm == "alone" else one)
        assert verdict.outcome == "not_measured"
        assert verdict.reason.endswith("has no complete round of the arm alone to compare with")

    @pytest.mark.parametrize("metric", ["device_utilization", "peak_memory_gib"])
    def test_what_one_rank_could_not_read_is_not_measured(self, metric: str) -> None:
        def forget(one: Measurement) -> Measurement:
            return replace(one, utilization=None, peak_memory_bytes=None) if one.rank == 1 else one

        verdict = judge_changed(metric, forget)
        assert (verdict.outcome, verdict.reason) == ("not_measured", f"{metric} could not be read on every rank")


class TestImpossible:
    @pytest.mark.parametrize("reading", [math.nan, None])
    @pytest.mark.parametrize("rank", [0, 1])
    def test_one_rank_without_a_utilization_never_passes(self, reading: float | None, rank: int) -> None:
        verdict = judge_changed(
            "device_utilization", lambda one: replace(one, utilization=reading) if one.rank == rank else one
        )
        assert verdict.outcome == "not_measured"

    @pytest.mark.parametrize("reading", [-0.1, -1e9, math.inf, -math.inf])
    def test_an_impossible_utilization_is_an_error(self, reading: float) -> None:
        verdict = judge_changed("device_utilization", lambda one: replace(one, utilization=reading))
        assert verdict.outcome == "error"
        assert verdict.reason.startswith("an impossible value was measured: [")
        assert verdict.value is None

    def test_one_impossible_round_among_good_ones_is_an_error(self) -> None:
        verdict = judge_changed(
            "device_utilization", lambda one: replace(one, utilization=-0.2) if one.round == 4 else one
        )
        assert verdict.outcome == "error"

    def test_a_device_that_idled_all_the_time_fails(self) -> None:
        verdict = judge_changed("device_utilization", lambda one: replace(one, utilization=0.0))
        assert (verdict.outcome, verdict.value, verdict.interval) == ("failed", 0.0, (0.0, 0.0))

    def test_a_value_too_small_for_a_number_is_an_error(self) -> None:
        case = replace(make_case("generation_ratio", 0.5), reference_img_per_s=1e300)
        found = [replace(one, block_s=1e300) for one in make_measurements(case, STEADY)]
        verdict = judge(case, make_evidence(case, found), CONFIDENCE)
        assert (verdict.outcome, verdict.reason) == (
            "error",
            "an impossible value was measured: [0.0, 0.0, 0.0, 0.0, 0.0]",
        )

    @pytest.mark.parametrize("reading", [0, -1])
    def test_training_in_no_memory_never_passes(self, reading: int) -> None:
        both = judge_changed("peak_memory_gib", lambda one: replace(one, peak_memory_bytes=reading))
        assert both.outcome in ("not_measured", "error")

    def test_no_memory_on_one_rank_never_passes(self) -> None:
        one_of_two = judge_changed(
            "peak_memory_gib", lambda one: replace(one, peak_memory_bytes=0) if one.rank == 1 else one
        )
        assert one_of_two.outcome == "not_measured"

    @pytest.mark.parametrize("metric", RATES)
    @pytest.mark.parametrize("batch_size", [0, -4, 8])
    def test_another_batch_than_the_arms_does_not_count(self, metric: str, batch_size: int) -> None:
        verdict = judge_changed(metric, lambda one: replace(one, batch_size=batch_size))
        assert (verdict.outcome, verdict.value) == ("not_measured", None)


class TestOrder:
    @settings(max_examples=40)
    @given(st.sampled_from(sorted(METRICS)), st.randoms(use_true_random=False))
    def test_any_permutation_of_the_measurements_gives_the_same_verdict(
        self, metric: str, shuffler: random.Random
    ) -> None:
        case = make_case(metric, 0.87)
        ordered = make_measurements(case, (*SPREAD, 0.83))
        shuffled = shuffler.sample(ordered, len(ordered))
        verdicts = [judge(case, make_evidence(case, some), CONFIDENCE) for some in (ordered, shuffled)]
        first, second = (strict_json(verdict.as_json()) for verdict in verdicts)
        assert first == second

    def test_other_studies_and_arms_do_not_matter(self) -> None:
        case = make_case("weak_scaling_efficiency", 0.5)
        wanted = make_measurements(case, SPREAD)
        foreign = [replace(one, study="weak/other", block_s=9.0) for one in wanted]
        foreign += [replace(one, arm="ddp@4", block_s=9.0) for one in wanted]
        assert judge(case, make_evidence(case, foreign + wanted), CONFIDENCE) == judge(
            case, make_evidence(case, wanted), CONFIDENCE
        )


class TestStudies:
    def judge_against(self, metric: str, **trained: Any) -> Verdict:
        """The verdict when another workload than the one required was trained."""
        case = make_case(metric, 0.5)
        study = replace(make_study(case), workload=replace(WORKLOAD, **trained))
        evidence = Evidence(Plan("a100", "cuda", (study,)), make_measurements(case, STEADY), {})
        return judge(case, evidence, CONFIDENCE)

    @pytest.mark.parametrize("field", sorted(SCALED_WORKLOADS))
    @pytest.mark.parametrize("metric", ["weak_scaling_efficiency", "strong_scaling_speedup"])
    def test_training_something_else_is_not_measured_and_said(self, metric: str, field: str) -> None:
        change = SCALED_WORKLOADS[field]
        verdict = self.judge_against(metric, **change)
        assert (verdict.outcome, verdict.value) == ("not_measured", None)
        required = getattr(WORKLOAD, field)
        assert verdict.reason == f"measured differently: {field} {change[field]}, required {required}"

    def test_weak_scaling_needs_the_same_batch(self) -> None:
        verdict = self.judge_against("weak_scaling_efficiency", batch_size=2)
        assert verdict.outcome == "not_measured"
        assert verdict.reason == "measured differently: batch_size 2, required 4"

    def test_strong_scaling_needs_the_same_global_batch(self) -> None:
        verdict = self.judge_against("strong_scaling_efficiency", global_batch_size=16)
        assert verdict.outcome == "not_measured"
        assert verdict.reason == "measured differently: global_batch_size 16, required 8"

    def test_all_differences_are_named(self) -> None:
        reason = self.judge_against("weak_scaling_efficiency", batch_size=2, image_size=64, precision="bf16").reason
        assert reason == (
            "measured differently: precision bf16, required fp32; batch_size 2, required 4; image_size 64, required 32"
        )

    def test_the_batch_that_the_scaling_does_not_keep_may_differ(self) -> None:
        assert self.judge_against("weak_scaling_efficiency", global_batch_size=64).passed
        assert self.judge_against("strong_scaling_efficiency", batch_size=64).passed

    def test_a_study_by_another_name_counts_if_it_trained_the_same(self) -> None:
        case = make_case("weak_scaling_efficiency", 0.5)
        study = replace(make_study(case), workload=replace(WORKLOAD, name="imported"))
        found = [replace(one, study=study.id) for one in make_measurements(case, STEADY)]
        assert judge(case, Evidence(Plan("a100", "cuda", (study,)), found, {}), CONFIDENCE).passed

    def test_a_workload_that_was_not_trained_is_not_measured(self) -> None:
        verdict = self.judge_against("weak_scaling_efficiency", name="other", model="vit_b_16")
        assert verdict.outcome == "not_measured"
        assert verdict.reason == "weak scaling of r was not measured in this run"

    def test_weak_scaling_says_nothing_about_strong_scaling(self) -> None:
        weak, strong = make_case("weak_scaling_efficiency", 0.5), make_case("strong_scaling_efficiency", 0.5)
        verdict = judge(strong, make_evidence(weak, make_measurements(weak, STEADY)), CONFIDENCE)
        assert (verdict.outcome, verdict.reason) == (
            "not_measured",
            "strong scaling of r was not measured in this run",
        )

    @pytest.mark.parametrize("values", [(), STEADY])
    def test_a_study_that_broke_is_an_error_whatever_it_had_measured(self, values: tuple[float, ...]) -> None:
        case = make_case("weak_scaling_efficiency", 0.5)
        errors = {"weak/r": "rank 1 on node1 failed in warm-up: OutOfMemoryError: …"}
        verdict = judge(case, make_evidence(case, make_measurements(case, values), errors=errors), CONFIDENCE)
        assert (verdict.outcome, verdict.reason) == ("error", errors["weak/r"])
        assert not verdict.passed

    def test_another_study_that_broke_does_not_matter(self) -> None:
        case = make_case("weak_scaling_efficiency", 0.5)
        evidence = make_evidence(case, make_measurements(case, STEADY), errors={"strong/r": "broke"})
        assert judge(case, evidence, CONFIDENCE).passed

    def test_of_several_studies_the_one_with_the_arms_in_question_is_meant(self) -> None:
        case = make_case("weak_scaling_efficiency", 0.5)
        whole = make_study(case)
        part = replace(whole, workload=replace(WORKLOAD, name="part"), arms=whole.arms[:1])
        for studies in ((whole, part), (part, whole)):
            plan = Plan("a100", "cuda", studies)
            assert matching_study(plan, case.question) == whole
            assert covers(plan, case.question)

    def test_a_plan_without_one_of_the_arms_does_not_cover(self) -> None:
        case = make_case("weak_scaling_efficiency", 0.5)
        study = make_study(case)
        for arm in study.arms:
            assert not covers(Plan("a100", "cuda", (replace(study, arms=(arm,)),)), case.question)
        assert not covers(Plan("a100", "cuda", ()), case.question)
        assert not covers(
            Plan("a100", "cuda", (study,)), Question(METRICS["weak_scaling_efficiency"], WORKLOAD, world_size=4)
        )


class TestHostBound:
    def judge_busy(self, metric: str, busy: float | None, device_type: DeviceType, bound: float = 0.5) -> Verdict:
        case = make_case(metric, bound)
        found = [replace(one, utilization=busy) for one in make_measurements(case, STEADY)]
        return judge(case, make_evidence(case, found, device_type), CONFIDENCE)

    @pytest.mark.parametrize("metric", STRONG)
    @pytest.mark.parametrize("bound", [0.5, 1.5])
    def test_strong_scaling_on_gpus_that_wait_for_their_host_is_inconclusive(self, metric: str, bound: float) -> None:
        verdict = self.judge_busy(metric, 0.6, "cuda", bound)
        assert verdict.outcome == "inconclusive"
        assert verdict.reason == (
            "host-bound: devices were 60% busy (below 90%), so 8 images are too few for 2 GPUs to say anything"
        )
        assert verdict.value == pytest.approx(0.9)

    @pytest.mark.parametrize("metric", STRONG)
    def test_on_cpu_there_is_no_host_to_wait_for(self, metric: str) -> None:
        assert self.judge_busy(metric, 0.6, "cpu").outcome == "passed"
        assert self.judge_busy(metric, 0.6, "cpu", 1.5).outcome == "failed"

    @pytest.mark.parametrize("busy", [0.9, 1.0])
    def test_busy_gpus_are_judged(self, busy: float) -> None:
        assert self.judge_busy("strong_scaling_speedup", busy, "cuda").outcome == "passed"

    def test_unread_utilization_does_not_make_it_host_bound(self) -> None:
        assert self.judge_busy("strong_scaling_speedup", None, "cuda", 1.5).outcome == "failed"

    def test_weak_scaling_is_judged_however_busy(self) -> None:
        assert self.judge_busy("weak_scaling_efficiency", 0.6, "cuda").outcome == "passed"


class TestImportedSamples:
    def judge_single(self, metric: str, bound: float, stdev: float | None) -> Verdict:
        """The verdict on one imported round of 100 steps, whose value is 0.9."""
        case = make_case(metric, bound)
        found = [self.as_import(one, stdev) for one in make_measurements(case, [0.9])]
        return judge(case, make_evidence(case, found), CONFIDENCE)

    def as_import(self, one: Measurement, stdev: float | None) -> Measurement:
        """100 steps at the same pace, whose standard deviation is a share of their mean."""
        stdev_s = None if stdev is None else stdev * one.block_s / one.steps
        block_s = one.block_s * 100 / one.steps
        return replace(one, steps=100, block_s=block_s, step_stdev_s=stdev_s, single_sample=True)

    def test_one_sample_has_the_interval_of_its_steps_and_says_so(self) -> None:
        verdict = self.judge_single("throughput_per_gpu", 0.89, stdev=0.05)
        # 5 % of a step over the square root of 100 steps
        reach = 1.959964 * 0.005
        assert verdict.interval == pytest.approx((0.9 * math.exp(-reach), 0.9 * math.exp(reach)))
        assert (verdict.outcome, verdict.rounds, verdict.notes) == ("passed", 1, (SINGLE_SAMPLE_NOTE,))

    @pytest.mark.parametrize("metric", RELATIVE)
    def test_the_errors_of_a_ratio_add_up(self, metric: str) -> None:
        verdict = self.judge_single(metric, 0.5, stdev=0.05)
        reach = 1.959964 * 0.005 * math.sqrt(2)
        assert verdict.interval == pytest.approx((0.9 * math.exp(-reach), 0.9 * math.exp(reach)))
        assert verdict.notes == (SINGLE_SAMPLE_NOTE,)

    def test_a_wide_sample_does_not_decide(self) -> None:
        assert self.judge_single("throughput_per_gpu", 0.89, stdev=0.5).outcome == "inconclusive"

    @pytest.mark.parametrize("metric", RATES)
    def test_without_a_standard_deviation_one_sample_never_decides(self, metric: str) -> None:
        for bound in (0.01, 2.0):
            verdict = self.judge_single(metric, bound, stdev=None)
            assert (verdict.outcome, verdict.interval) == ("inconclusive", None)

    @pytest.mark.parametrize("metric", ["device_utilization", "peak_memory_gib"])
    def test_an_imported_reading_stands_for_itself_and_says_so(self, metric: str) -> None:
        verdict = self.judge_single(metric, 0.9 if METRICS[metric].upper_bound else 0.89, stdev=0.05)
        assert verdict.notes == (SINGLE_VALUE_NOTE,)
        assert verdict.interval == pytest.approx((0.9, 0.9))

    @pytest.mark.parametrize("metric", sorted(METRICS))
    def test_several_imported_rounds_are_too_few_like_any_others(self, metric: str) -> None:
        case = make_case(metric, 0.5)
        found = [self.as_import(one, 0.05) for one in make_measurements(case, [0.9, 0.91])]
        verdict = judge(case, make_evidence(case, found), CONFIDENCE)
        assert (verdict.outcome, verdict.reason) == ("inconclusive", "2 rounds; expected at least 5")

    def test_one_round_of_our_own_is_no_imported_sample(self) -> None:
        case = make_case("throughput_per_gpu", 0.01)
        found = [replace(one, step_stdev_s=1e-6) for one in make_measurements(case, [0.9])]
        verdict = judge(case, make_evidence(case, found), CONFIDENCE)
        assert (verdict.outcome, verdict.notes) == ("inconclusive", ())


class TestBlame:
    def judge_ranks(self, utilization: Callable[[int, int], float], bound: float = 0.9) -> Verdict:
        """The verdict on the utilization of four ranks; `utilization` of round and rank."""
        case = make_case("device_utilization", bound, world_size=4)
        study = make_study(case)
        found = [
            make_measurement(study.id, study.arms[0], number, rank, utilization=utilization(number, rank), local_rank=3)
            for number in range(6)
            for rank in range(4)
        ]
        return judge(case, make_evidence(case, found), CONFIDENCE)

    def test_the_least_busy_rank_is_judged_and_named(self) -> None:
        verdict = self.judge_ranks(lambda number, rank: 0.5 if rank == 2 else 0.99)
        assert verdict.outcome == "failed"
        assert verdict.value == pytest.approx(0.5)
        assert verdict.culprits == (Culprit("gpu", "node2", 3, "GPU-2", "least busy of 4 in 6 of 6 rounds"),)

    def test_the_rank_that_was_least_busy_most_often_is_named(self) -> None:
        idle = (3, 0, 1, 1, 2, 1)
        verdict = self.judge_ranks(lambda number, rank: 0.5 if rank == idle[number] else 0.99)
        assert [culprit.evidence for culprit in verdict.culprits] == ["least busy of 4 in 3 of 6 rounds"]
        assert verdict.culprits[0].gpu_uuid == "GPU-1"

    def test_nobody_is_blamed_for_a_pass(self) -> None:
        assert self.judge_ranks(lambda number, rank: 0.95).culprits == ()

    def test_nobody_is_blamed_for_another_metric(self) -> None:
        assert judge_values("throughput_per_gpu", 2.0, STEADY).culprits == ()


class TestValues:
    def test_peak_memory_is_that_of_the_fullest_rank(self) -> None:
        case = make_case("peak_memory_gib", 2.0, world_size=4)
        study = make_study(case)
        found = [
            make_measurement(study.id, study.arms[0], number, rank, peak_memory_bytes=(rank + 1) * GIB)
            for number in range(5)
            for rank in range(4)
        ]
        verdict = judge(case, make_evidence(case, found), CONFIDENCE)
        assert (verdict.outcome, verdict.value) == ("failed", 4.0)

    def test_samples_are_the_per_round_values_without_any_bound(self) -> None:
        case = make_case("strong_scaling_speedup", 1.0)
        evidence = make_evidence(case, make_measurements(case, SPREAD))
        assert [s.value for s in samples_of(case.question, evidence)] == pytest.approx(SPREAD)
        assert samples_of(Question(METRICS["throughput_per_gpu"], WORKLOAD, 1), evidence) == []

    def test_a_verdict_carries_what_its_requirement_says(self) -> None:
        case = make_case(
            "peak_memory_gib", 12.6, severity="warn", provisional=True,
            source={"measured": 12.0, "margin_pct": 5.0, "reference": "a paper", "reasoning": "as much as it held"},
        )  # fmt: skip
        verdict = judge(case, make_evidence(case, []), 0.9)
        assert (verdict.id, verdict.severity, verdict.provisional) == ("peak_memory_gib[r-2gpu]", "warn", True)
        assert (verdict.bound, verdict.confidence) == ({"at_most": 12.6}, 0.9)
        assert verdict.source == "measured 12; margin 5 %; a paper; as much as it held"

    def test_a_generation_ratio_is_relative_to_what_the_reference_published(self) -> None:
        case: Case = replace(make_case("generation_ratio", 1.0), reference_img_per_s=40.0)
        found = [
            make_measurement("weak/r", make_study(case).arms[0], number, rank, img_per_s=ALONE_IMG_PER_S)
            for number in range(5)
            for rank in range(2)
        ]
        assert judge(case, make_evidence(case, found), CONFIDENCE).value == pytest.approx(2.5)
