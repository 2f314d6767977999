"""Inference by batch: what is planned, what GPUs lose at once, where throughput saturates, and a real run of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.suites.inference_report import inference_report
from pytest_ddpscale.suites.inference_suite import inference_arms
from pytest_ddpscale.suites.inference_values import InferredArm, InferredBatch, Saturation, inferred_batches, saturation
from pytest_ddpscale.suites.suite import MeasuredSuite
from tests.approved import assert_approved
from tests.builders.judged import WORKLOAD, Found, evidence_of_plan, make_measurement
from tests.builders.measurements import Measurement
from tests.suites.conftest import NEEDS_REFUSED_MEMORY, MeasuredAndTold
from tests.suites.run_records import SUITE_RECORD, text_of

SMALL = ("suite", "inference", "--gpu-sku=cpu", "--model=shufflenet_v2_x0_5", "--image-size=224", "--ddp-block=0.01s")
RANKS = 4
Pace = Callable[[int, int], float]  # images per second, of ranks at once and rank


def studies(*batches: int) -> tuple[Study, ...]:
    return tuple(
        Study("weak", replace(WORKLOAD, name=f"batch-{batch}", batch_size=batch), inference_arms(batch, RANKS),
              FEWEST_ROUNDS, 1.0, 1.0, turns=RANKS)
        for batch in batches
    )  # fmt: skip


def measured(study: Study, pace: Pace) -> list[Measurement]:
    """Every rank has its turn alone; rounds differ as much as intervals need."""
    return [
        make_measurement(study.id, arm, number, rank, pace(arm.world_size, rank) * (1 + 0.001 * (number % 3)))
        for number in range(study.rounds)
        for arm in study.arms
        for rank in (range(RANKS) if arm.world_size > 1 else [study.turn(0, number)])
    ]


def suite_of(paces: dict[int, Pace], errors: dict[int, str] | None = None) -> MeasuredSuite:
    failed = errors or {}
    planned = studies(*sorted({*paces, *failed}))
    by_batch = {study.workload.batch_size: study for study in planned}
    found = [one for batch, pace in paces.items() for one in measured(by_batch[batch], pace)]
    told = {by_batch[batch].id: why for batch, why in failed.items()}
    return MeasuredSuite(evidence_of_plan(Plan("a100", "cuda", planned), found, errors=told), SUITE_RECORD, 0.95)


def shared(alone: float, kept: float) -> Pace:
    return lambda at_once, rank: alone if at_once == 1 else alone * kept


def test_one_rank_at_a_time_and_all_at_once_take_turns_within_a_round() -> None:
    assert [arm.name for arm in inference_arms(32, 8)] == ["infer@1", "infer@8"]
    assert [arm.name for arm in inference_arms(32, 1)] == ["infer@1"]


def test_what_gpus_keep_at_once_is_found_though_one_of_them_is_slow() -> None:
    """That is no loss by sharing: it is as slow alone."""

    def pace(at_once: int, rank: int) -> float:
        return 1000.0 * (0.5 if rank == 3 else 1.0) * (1.0 if at_once == 1 else 0.8)

    (found,) = inferred_batches(suite_of({32: pace}))
    assert found.kept is not None
    assert found.kept.value == pytest.approx(0.8)
    together = found.arms[-1]
    assert together.samples_per_s.value == pytest.approx(400, rel=0.002), "the slowest one's pace"
    assert together.total_samples_per_s.value == pytest.approx(3 * 800 + 400, rel=0.002)
    assert together.latencies_ms[50].value == pytest.approx(1000 * 32 / 800, rel=0.002)
    assert together.latencies_ms[99].value == pytest.approx(1000 * 32 / 400, rel=0.002)


def batch_of(batch: int, low: float, high: float) -> InferredBatch:
    found = Found((low + high) / 2, (low, high))
    return InferredBatch(batch, [InferredArm(8, found, found, {}, 10)])


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ([(50, 51), (90, 91), (99, 101), (99, 101)], Saturation(128, 128, is_largest=False)),
        ([(50, 51), (90, 97), (99, 101), (99, 101)], Saturation(64, 128, is_largest=False)),
        ([(50, 51), (60, 61), (80, 81), (99, 101)], Saturation(256, 256, is_largest=True)),
        ([(50, 150), (60, 150), (70, 150), (80, 150)], Saturation(32, None, is_largest=False)),
    ],
)
def test_saturation_is_as_sure_as_the_intervals(limits: Sequence[tuple[float, float]], expected: Saturation) -> None:
    batches = [batch_of(batch, *ends) for batch, ends in zip((32, 64, 128, 256), limits, strict=True)]
    assert saturation(batches) == expected
    assert saturation(batches[:1]) is None


def test_the_report_has_all_batches_and_says_why_one_is_missing() -> None:
    paces = {32: shared(1000, 1.0), 64: shared(2000, 0.95), 128: shared(2010, 0.9)}
    report = inference_report(suite_of(paces, {256: "rank 0 on n1 failed: OutOfMemoryError: CUDA out of memory"}))
    assert len(report.problems) == 1
    assert report.values["saturating_batch"] == 64
    assert_approved("suite-inference.txt", text_of(report))


def test_an_error_after_some_rounds_is_told_and_what_was_measured_stays() -> None:
    report = inference_report(suite_of({32: shared(1000, 1.0), 64: shared(2000, 0.9)}, {64: "rank 0 on n1 failed"}))
    rounds = studies(64)[0].rounds
    assert report.problems == [f"batch 64: after {rounds} of {rounds} rounds: rank 0 on n1 failed"]
    assert report.headline.endswith("; 1 of 2 batches ended early")


def test_a_loss_at_once_that_may_be_none_is_not_claimed() -> None:
    report = inference_report(suite_of({32: lambda at_once, rank: 1000.0 + (rank if at_once == 1 else 1)}))
    assert report.headline.endswith("(4 at once, batch 32); no loss at once shown")


def test_nothing_measured_is_told_too() -> None:
    report = inference_report(suite_of({}, {32: "no room"}))
    assert report.headline == "Inference of resnet18 in fp32: none of 1 batches was measured"
    assert (report.sections, report.problems) == ([], ["batch 32: no room"])


@NEEDS_REFUSED_MEMORY
def test_a_batch_that_does_not_fit_is_an_error_and_the_others_are_told(measured_and_told: MeasuredAndTold) -> None:
    """A million images are 602 GB, which no allocator here has."""
    run, told = measured_and_told(*SMALL, "--batches=1000000,2", "--ranks=2", exit_code=1)
    fits, does_not = json.loads(run.suite_json.read_text())["batches"]
    assert (fits["batch"], fits["problem"], [arm["ranks"] for arm in fits["arms"]]) == (2, "", [1, 2])
    for arm in fits["arms"]:
        low, high = arm["samples_per_s_per_gpu"]["interval"]
        assert 0 < low < arm["samples_per_s_per_gpu"]["value"] < high
        p50, p95, p99 = (arm["latency_ms"][name]["value"] for name in ("p50", "p95", "p99"))
        assert 0 < p50 <= p95 <= p99
    assert fits["kept_at_once"]["interval"]
    assert does_not["arms"] == []
    assert re.search(r"rank \d on .* failed in warm-up .*allocate", does_not["problem"])
    assert f"Not measured\n------------\n- batch 1000000: {does_not['problem']}" in told
    assert "<img" not in (run.path / "report.html").read_text(), "one batch is no curve"
