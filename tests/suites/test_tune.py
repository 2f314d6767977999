"""Tuning finds the settings that gain, and recommends nothing where nothing differs."""

from __future__ import annotations

import pytest

from pytest_ddpscale.cli import USER_ERROR, main
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.suites.suite_views import markdown_of
from pytest_ddpscale.suites.tune_candidates import USUAL_SETTINGS, Candidate, candidates, snippet
from pytest_ddpscale.suites.tune_report import promising, tune_report
from tests.suites.played_tune import PlayedTune
from tests.suites.run_records import SUITE_RECORD

WORKLOAD = Workload("r-fp32", "resnet18", "fp32", 16, image_size=64, memory_format="contiguous")


def test_a_gain_is_confirmed_by_further_launches_and_recommended_with_its_interval() -> None:
    measured = PlayedTune(gains={"gradient_as_bucket_view=True": 1.10, "accumulation_steps=4": 1.3}).measured()
    report = tune_report(measured)
    assert set(report.values["recommended"]) == {"gradient_as_bucket_view=True", "accumulation_steps=4"}
    found = {one["setting"]: one for one in report.values["settings"]}
    ratio = found["gradient_as_bucket_view=True"]["further_launches"]
    assert ratio["low"] < 1.10 < ratio["high"]
    assert "gradient_as_bucket_view=True" in report.values["snippet_python"]
    assert found["accumulation_steps=4"]["changes"] == "changes the global batch"
    page = markdown_of("tune", report, SUITE_RECORD)
    assert "multiply the learning rate by the factor" in page
    assert "square root" in page


def test_a_variable_of_the_environment_is_compared_gang_by_gang() -> None:
    measured = PlayedTune("--try=OMP_NUM_THREADS=2", gains={"OMP_NUM_THREADS=2": 0.8}).measured()
    launches = {study.launch for study in measured.evidence.plan.studies}
    assert launches == {2, 3, 4, 5}
    first, later = measured.evidence.plan.studies[0], measured.evidence.plan.studies[2]
    assert (first.environment, later.environment) == ((("OMP_NUM_THREADS", "2"),), ()), "the order alternates"
    report = tune_report(measured)
    assert report.values["settings"][0]["says"] == "slower"
    assert report.values["recommended"] == []
    faster = tune_report(PlayedTune("--try=NCCL_ALGO=Ring", gains={"NCCL_ALGO=Ring": 1.2}).measured())
    assert faster.values["snippet_environment"] == "export NCCL_ALGO=Ring"


def test_what_looks_faster_in_one_launch_only_is_not_recommended() -> None:
    # As where memory of one process lies badly: its rounds agree with each other, and not with the next launch.
    runs = [PlayedTune(gains={}, seed=seed, round_sd=0.002, launch_sd=0.04).measured() for seed in range(6)]
    assert any(promising(run) for run in runs), "the first launch alone would have recommended something"
    assert sum(len(tune_report(run).values["recommended"]) for run in runs) <= 1


def test_what_is_not_worth_a_change_is_said_and_not_recommended() -> None:
    report = tune_report(PlayedTune(gains={"static_graph=True": 1.004}, round_sd=0.001, launch_sd=0.0).measured())
    assert report.values["recommended"] == []
    assert report.headline == "None of 9 settings is shown to be faster"


def test_uneven_batches_are_a_cost_and_never_recommended() -> None:
    played = PlayedTune("--try=uneven_share=0.5", gains={"uneven_share=0.5": 1.5})
    assert tune_report(played.measured()).values["recommended"] == []


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        ("NCCL_ALGOO=Ring", "it does not know NCCL_ALGOO (perhaps NCCL_ALGO)"),
        ("bucket_cap=1", "'bucket_cap' is none (perhaps bucket_cap_mb)"),
        ("static_graph=yes", "static_graph as true or false"),
        ("precision=fp8", "precision as one of fp32, fp16, bf16"),
        ("accumulation_steps=0", "accumulation_steps is 0"),
        ("batch_size=none", "batch_size as a number, half or double"),
        ("bucket_cap_mb", "name=value"),
        ("precision=fp32", "a setting that the workload does not have already"),
    ],
)
def test_what_is_no_setting_is_one_sentence(tried: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--gpu-sku=cpu", f"--try={tried}"]) == USER_ERROR
    told = capsys.readouterr().err
    assert expected in told
    assert len(told.splitlines()) == 1


def test_what_the_workload_has_already_is_not_tried() -> None:
    assert candidates("precision=fp32 memory_format=contiguous compile=no batch_size=16", WORKLOAD) == []
    assert [one.name for one in candidates("batch_size=half,double,32 precision=bf16", WORKLOAD)] == [
        "batch_size=8", "batch_size=32", "precision=bf16",
    ]  # fmt: skip


@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
def test_all_that_is_tried_by_itself_can_be_planned(device_type: str) -> None:
    found = candidates(USUAL_SETTINGS[device_type], WORKLOAD)  # type: ignore[index]
    assert len({one.arm(2, 16).name + str(one.environment) for one in found}) >= len(found) - 2
    assert Candidate() not in found


def test_settings_to_paste_are_python() -> None:
    chosen = candidates("bucket_cap_mb=5 static_graph=true hook=fp16 compile=default fused_optimizer=true "
                        "memory_format=channels_last high_priority_stream=true precision=bf16 batch_size=32 "
                        "accumulation_steps=4", WORKLOAD)  # fmt: skip
    text = snippet(chosen)["python"]
    compile(text, "snippet", "exec")
    assert "DistributedDataParallel(model, bucket_cap_mb=5.0, static_graph=True, process_group=group)" in text
