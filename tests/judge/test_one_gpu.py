"""What many GPUs are compared with: one without DDP, or one under it, as the source of the bound had it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpscale.judge.judge import judge
from pytest_ddpscale.plan.arm import Arm, OneGpu
from pytest_ddpscale.run.verdicts import Verdict
from tests.builders.judged import ALONE_SAMPLES_PER_S, CONFIDENCE, evidence_of_plan, make_case, measure, plan_of
from tests.rows import rows

ROUNDS = 9

WRAPPED = 0.95  # of the speed without DDP, by a fault in what wraps a model in it


def judge_wrapped(metric: str, bound: float, one_gpu: OneGpu, world_size: int = 4, slow: int | None = None) -> Verdict:
    """The verdict where DDP costs on each GPU what it should not, and one rank may be 3 % slow besides."""
    case = make_case(metric, bound, world_size=world_size, one_gpu=one_gpu)
    largest = make_case("weak_scaling_efficiency", 0.5, world_size=4)

    def samples_per_s(arm: Arm, number: int, rank: int) -> float:
        waits = slow is not None and (rank == slow or (arm.kind == "ddp" and arm.world_size > 1))
        return ALONE_SAMPLES_PER_S * (WRAPPED if arm.kind == "ddp" else 1.0) / (1.03 if waits else 1.0)

    plan = plan_of([case, largest], "cuda", ROUNDS)
    measurements = [one for study in plan.studies for one in measure(study, ROUNDS, samples_per_s)]
    return judge(case, evidence_of_plan(plan, measurements), CONFIDENCE)


@rows(("one_gpu", "outcome", "value"), [("alone", "failed", WRAPPED), ("ddp", "passed", 1.0)])
def test_what_ddp_costs_on_one_gpu_counts_only_against_one_without(one_gpu: OneGpu, outcome: str, value: float) -> None:
    verdict = judge_wrapped("weak_scaling_efficiency", 0.98, one_gpu)
    assert (verdict.outcome, verdict.one_gpu) == (outcome, one_gpu)
    assert verdict.value == pytest.approx(value)


@rows("place", range(4))
def test_a_slow_rank_costs_the_same_wherever_it_is(place: int) -> None:
    verdict = judge_wrapped("weak_scaling_efficiency", 0.98, "ddp", slow=place)
    assert verdict.outcome == "failed"
    assert verdict.value == pytest.approx(1 / 1.03, rel=1e-6)


@rows(("one_gpu", "speed"), [("alone", 1.0), ("ddp", WRAPPED)])
def test_the_throughput_of_one_gpu_is_measured_as_its_source_had_it(one_gpu: OneGpu, speed: float) -> None:
    verdict = judge_wrapped("throughput_per_gpu", ALONE_SAMPLES_PER_S / 2, one_gpu, world_size=1)
    assert verdict.value == pytest.approx(ALONE_SAMPLES_PER_S * speed)


@rows(
    ("metric", "world_size", "one_gpu", "words"),
    [
        ("weak_scaling_efficiency", 4, "ddp", "relative to ddp@1, one GPU under DDP"),
        ("weak_scaling_efficiency", 4, "alone", "relative to one GPU without DDP"),
        ("throughput_per_gpu", 1, "ddp", "ddp@1, one GPU under DDP"),
    ],
)
def test_the_verdict_says_what_its_bound_is_about(metric: str, world_size: int, one_gpu: OneGpu, words: str) -> None:
    assert judge_wrapped(metric, 0.5, one_gpu, world_size).source.endswith(f"; {words}")


def test_what_times_no_single_gpu_says_nothing_of_one() -> None:
    verdict = judge_wrapped("throughput_per_gpu", 0.5, "alone")
    assert verdict.one_gpu is None
    assert "GPU" not in verdict.source


def test_rounds_without_the_one_gpu_under_ddp_are_not_those_of_one_alone() -> None:
    case = make_case("weak_scaling_efficiency", 0.5, world_size=4)
    plan = plan_of([case], "cuda", ROUNDS)
    evidence = evidence_of_plan(plan, [one for study in plan.studies for one in measure(study, ROUNDS)])
    asked = replace(case, requirement=replace(case.requirement, one_gpu="ddp"))
    verdict = judge(asked, evidence, CONFIDENCE)
    assert verdict.outcome == "not_measured"
    assert verdict.reason.endswith("has no complete round of the arm ddp@1 to compare with")
