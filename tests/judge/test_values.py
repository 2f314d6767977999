"""A requirement is judged by a study that trained exactly what it asks for, and by no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.judge.values import covers, matching_study
from pytest_ddpscale.plan.metric_catalogue import METRICS, TRAINING_METRICS
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS, Question
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.run.evidence import Evidence
from pytest_ddpscale.run.verdicts import Verdict
from tests.builders.judged import (
    CONFIDENCE,
    WORKLOAD,
    easy_bound,
    make_case,
    make_evidence,
    make_measurements,
    make_study,
    world_size_of,
)
from tests.builders.rounds import columns_of
from tests.builders.workloads import with_settings
from tests.rows import rows

STEADY = (0.9,) * FEWEST_ROUNDS
SCALED_WORKLOADS: dict[str, dict[str, Any]] = {
    "model": {"model": "resnet34"},
    "precision": {"precision": "bf16"},
    "image_size": {"image_size": 64},
    "memory_format": {"memory_format": "contiguous"},
    "compile": {"compile": True},
    "num_classes": {"num_classes": 10},
    "cudnn_benchmark": {"cudnn_benchmark": False},
}


def judge_against(metric: str, **trained: Any) -> Verdict:
    """The verdict when another workload than the one required was trained."""
    case = make_case(metric, 0.5)
    study = replace(make_study(case), workload=with_settings(WORKLOAD, **trained))
    evidence = Evidence(Plan("a100", "cuda", (study,)), columns_of(make_measurements(case, STEADY)), {})
    return judge(case, evidence, CONFIDENCE)


class TestWhatWasTrained:
    @rows("field", sorted(SCALED_WORKLOADS))
    @rows("metric", ["weak_scaling_efficiency", "strong_scaling_speedup"])
    def test_if_something_else_is_not_measured_and_said(self, metric: str, field: str) -> None:
        change = SCALED_WORKLOADS[field]
        verdict = judge_against(metric, **change)
        assert (verdict.outcome, verdict.value) == ("not_measured", None)
        required = WORKLOAD.settings[field]
        assert verdict.reason == f"measured differently: {field} {change[field]}, required {required}"

    @rows(
        ("metric", "measured", "required"),
        [
            ("weak_scaling_efficiency", {"batch_size": 2}, "batch_size 2, required 4"),
            ("strong_scaling_efficiency", {"global_batch_size": 16}, "global_batch_size 16, required 8"),
            (
                "weak_scaling_efficiency",
                {"batch_size": 2, "image_size": 64, "precision": "bf16"},
                "precision bf16, required fp32; batch_size 2, required 4; image_size 64, required 32",
            ),
        ],
    )
    def test_is_named_with_all_differences(self, metric: str, measured: dict[str, Any], required: str) -> None:
        verdict = judge_against(metric, **measured)
        assert (verdict.outcome, verdict.reason) == ("not_measured", f"measured differently: {required}")

    def test_may_differ_in_the_batch_that_the_scaling_does_not_keep(self) -> None:
        assert judge_against("weak_scaling_efficiency", global_batch_size=64).passed
        assert judge_against("strong_scaling_efficiency", batch_size=64).passed

    def test_counts_by_another_name(self) -> None:
        case = make_case("weak_scaling_efficiency", 0.5)
        study = replace(make_study(case), workload=replace(WORKLOAD, name="imported"))
        found = [replace(one, study=study.id) for one in make_measurements(case, STEADY)]
        assert judge(case, Evidence(Plan("a100", "cuda", (study,)), columns_of(found), {}), CONFIDENCE).passed

    def test_if_nothing_like_it_is_not_measured(self) -> None:
        verdict = judge_against("weak_scaling_efficiency", name="other", model="vit_b_16")
        assert verdict.outcome == "not_measured"
        assert verdict.reason == "weak scaling of r was not measured in this run"

    def test_under_weak_scaling_says_nothing_about_strong_scaling(self) -> None:
        weak, strong = make_case("weak_scaling_efficiency", 0.5), make_case("strong_scaling_efficiency", 0.5)
        verdict = judge(strong, make_evidence(weak, make_measurements(weak, STEADY)), CONFIDENCE)
        assert (verdict.outcome, verdict.reason) == ("not_measured", "strong scaling of r was not measured in this run")


class TestStudiesThatBroke:
    def test_do_not_matter_to_others(self) -> None:
        case = make_case("weak_scaling_efficiency", 0.5)
        evidence = make_evidence(case, make_measurements(case, STEADY), errors={"strong/r": "broke"})
        assert judge(case, evidence, CONFIDENCE).passed


class TestMatchingStudy:
    def test_of_several_is_the_one_with_the_arms_in_question(self) -> None:
        case = make_case("weak_scaling_efficiency", 0.5)
        whole = make_study(case)
        part = replace(whole, workload=replace(WORKLOAD, name="part"), arms=whole.arms[:1])
        for studies in ((whole, part), (part, whole)):
            plan = Plan("a100", "cuda", studies)
            assert matching_study(plan, case.question) == whole
            assert covers(plan, case.question)


class TestCovers:
    @rows("metric", sorted(TRAINING_METRICS))
    def test_needs_every_arm(self, metric: str) -> None:
        case = make_case(metric, easy_bound(metric))
        study = make_study(case)
        assert covers(Plan("a100", "cuda", (study,)), case.question)
        for arm in study.arms:
            rest = tuple(other for other in study.arms if other != arm)
            assert not covers(Plan("a100", "cuda", (replace(study, arms=rest),)), case.question)


@rows(
    ("metric", "names"),
    [
        ("throughput_per_gpu", ["ddp@2"]),
        ("weak_scaling_efficiency", ["alone", "ddp@2"]),
        ("exposed_communication", ["no_sync@2", "ddp@2"]),
        ("ddp_overhead", ["alone", "ddp@1"]),
        ("rank_uniformity", ["ddp@2"]),
    ],
)
def test_arms_of_a_question_come_with_its_baseline_first(metric: str, names: list[str]) -> None:
    question = Question(METRICS[metric], WORKLOAD, world_size_of(metric))
    assert [arm.name for arm in question.arms] == names
