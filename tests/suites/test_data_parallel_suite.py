"""One process on several GPUs: its arms, what it is worth beside one GPU and beside ranks, and a real run of it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.suites.data_parallel_report import data_parallel_report
from pytest_ddpscale.suites.data_parallel_suite import DataParallelSuite, data_parallel_arms
from pytest_ddpscale.suites.data_parallel_values import split_batches
from pytest_ddpscale.suites.suite import MeasuredSuite
from tests.approved import assert_approved
from tests.builders.judged import evidence_of_plan, make_measurement
from tests.suites.conftest import MeasuredAndTold
from tests.suites.planned import planned
from tests.suites.run_records import SUITE_RECORD, text_of

SMALL = ("suite", "data-parallel", "--gpu-sku=cpu", "--model=shufflenet_v2_x0_5", "--image-size=32", "--batches=4",
         "--ddp-gpus-per-node=2", "--ddp-block=0.01s")  # fmt: skip
# Images per second of all devices together.
ONE, OURS, APPLY, NATIVE, RANKS = "infer@1", "vanilla_parallel@4", "parallel_apply@4", "data_parallel@4", "infer@4"
Paces = Mapping[str, float]
SMALL_BATCH: Paces = {ONE: 1000, OURS: 800, APPLY: 1600, NATIVE: 900, RANKS: 1800}
LARGE_BATCH: Paces = {ONE: 1000, OURS: 2700, APPLY: 3000, NATIVE: 3500, RANKS: 3500}


def test_all_arms_infer_the_same_images_and_native_needs_gpus() -> None:
    arms = data_parallel_arms(32, 4, "cuda")
    assert [arm.name for arm in arms] == [ONE, OURS, APPLY, NATIVE, RANKS]
    assert {arm.batch_size * arm.world_size for arm in arms} == {32}
    assert "data_parallel" not in {arm.kind for arm in data_parallel_arms(32, 4, "cpu")}


@pytest.mark.parametrize(
    "wrong", [Arm("infer", 1, 4), Arm("vanilla_parallel", 1, 4, devices=2)], ids=lambda arm: arm.name
)
def test_an_arm_of_one_process_has_several_devices_and_no_other_has(wrong: Arm) -> None:
    devices = 1 if wrong.is_split else 2
    with pytest.raises(
        ValueError, match=rf"has {devices} devices; expected 1, or at least 2 for one rank of data_parallel, "
    ):
        Arm(wrong.kind, 1, 4, devices=devices)
    with pytest.raises(ValueError, match="of 2 ranks has 2 devices"):
        Arm("vanilla_parallel", 2, 4, devices=2)


def test_default_batches_are_the_documents_or_the_next_that_are_shared_evenly() -> None:
    def batches(gpus: int) -> list[int]:
        return [study.workload.batch_size for study in planned(DataParallelSuite(), gpus=gpus).studies]

    assert batches(4) == [32, 64, 128, 256]
    assert batches(3) == [33, 66, 129, 258]


@pytest.mark.parametrize(("option", "gpus", "told"), [
    ("--batches=32,33", 2, "--batches: found 33, which 2 devices cannot share evenly; expected multiples of 2, "),
    ("--devices=4", 2, "--devices: found 4; 2 can be used on each node; expected 2 to 2"),
    ("--devices=1", 2, "--devices: found 1; 2 can be used"),
    ("--model=resnet18", 1, "--devices: found 1; 1 can be used on each node; expected 2 to 2: this suite compares"),
])  # fmt: skip
def test_what_cannot_be_shared_is_one_sentence(option: str, gpus: int, told: str) -> None:
    with pytest.raises(OptionError) as error:
        planned(DataParallelSuite(), option, gpus=gpus)
    assert told in str(error.value)


def suite_of(
    *paces: Paces, noise: float = 0.001, without: str = "", ended: Mapping[int, str] | None = None, rounds: int = 0
) -> MeasuredSuite:
    """Rounds of each batch, or of those that `ended` in an error only `rounds`."""
    plan = planned(DataParallelSuite(), "--batches=" + ",".join(str(32 * 2**i) for i in range(len(paces))))
    found = [
        make_measurement(
            study.id, arm, number, rank,
            pace[arm.name] / arm.world_size * (1 + noise * ((number + len(arm.name)) % 3)), host="n1", local_rank=rank,
        )
        for study, pace in zip(plan.studies, paces, strict=True)
        for number in range(rounds if study.workload.batch_size in (ended or {}) else study.rounds)
        for arm in study.arms
        for rank in range(arm.world_size)
        if arm.name != without
    ]  # fmt: skip
    by_batch = {study.workload.batch_size: study.id for study in plan.studies}
    errors = {by_batch[batch]: why for batch, why in (ended or {}).items()}
    return MeasuredSuite(evidence_of_plan(plan, found, errors=errors), SUITE_RECORD, 0.95)


def test_throughput_is_of_all_devices_and_communication_what_apply_does_not_take() -> None:
    (found,) = split_batches(suite_of(LARGE_BATCH))
    assert found.one is not None
    assert found.ranks is not None
    assert found.one.value == pytest.approx(1000, rel=0.002)
    assert found.ranks.value == pytest.approx(3500, rel=0.002)
    ours, native = found.ways
    assert ours.samples_per_s.value == pytest.approx(2700, rel=0.002)
    assert ours.communication is not None
    assert ours.communication.value == pytest.approx(0.1, abs=0.002), "1 - 2700 / 3000"
    assert ours.to_one is not None
    assert ours.to_ranks is not None
    assert ours.to_one.value == pytest.approx(2.7, rel=0.002)
    assert ours.to_ranks.value == pytest.approx(2.7 / 3.5, rel=0.002)
    assert (native.kind, native.communication) == ("data_parallel", None), "it is faster than our parallel_apply"


def test_it_is_said_at_which_batches_it_is_not_worth_it_and_what_noise_leaves_open() -> None:
    report = data_parallel_report(suite_of(SMALL_BATCH, LARGE_BATCH))
    assert_approved("suite-data-parallel.txt", text_of(report))
    noisy = data_parallel_report(suite_of({**SMALL_BATCH, OURS: 990, NATIVE: 990, RANKS: 1000}, noise=0.2))
    assert noisy.headline.count("not shown to be slower at any batch") == 2


def test_an_arm_without_rounds_is_a_problem_and_the_others_are_told() -> None:
    report = data_parallel_report(suite_of(LARGE_BATCH, without=NATIVE))
    assert report.problems == ["batch 32: no complete round"]
    assert "nn.DataParallel" not in report.headline
    nothing = data_parallel_report(MeasuredSuite(evidence_of_plan(Plan("a100", "cuda", ()), []), SUITE_RECORD, 0.95))
    assert nothing.headline == "Inference by one process on several devices: none of 0 batches was measured"


def test_an_error_after_some_rounds_is_told_and_what_was_measured_stays() -> None:
    report = data_parallel_report(suite_of(LARGE_BATCH, LARGE_BATCH, ended={64: "rank 0 on n1 failed"}, rounds=3))
    planned_rounds = planned(DataParallelSuite(), "--batches=32").studies[0].rounds
    assert report.problems == [f"batch 64: after 3 of {planned_rounds} rounds: rank 0 on n1 failed"]
    assert report.headline.endswith("; 1 of 2 batches ended early")
    few = data_parallel_report(suite_of(LARGE_BATCH, ended={32: "rank 0 on n1 failed"}, rounds=2))
    assert "our DataParallel measured in too few rounds to compare; nn.DataParallel measured in too" in few.headline
    assert report.values["batches"][1]["ranks_samples_per_s"]["value"] == pytest.approx(3500, rel=0.002)


@pytest.mark.lab
def test_it_is_measured_reported_and_told_again(measured_and_told: MeasuredAndTold) -> None:
    run, told = measured_and_told(*SMALL)
    assert "nn.DataParallel: not measured. It needs at least two GPUs" in told
    said = json.loads(run.suite_json.read_text())
    assert list(said["not_measured"]) == ["nn.DataParallel"]
    assert [(one["batch"], one["devices"], one["problem"]) for one in said["batches"]] == [(4, 2, "")]
    for one in said["batches"]:
        (ours,) = one["one_process"].values()
        for value in (
            one["one_device_samples_per_s"],
            one["ranks_samples_per_s"],
            ours["samples_per_s"],
            ours["to_ranks"],
        ):
            assert 0 < value["interval"][0] < value["value"] < value["interval"][1]
        assert ours["communication_share"]["value"] < 1
    assert "<img" in (run.path / "report.html").read_text()
