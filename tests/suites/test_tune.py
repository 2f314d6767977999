"""Tuning finds the settings that gain, and recommends nothing where nothing differs."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.suites.results import Results, Row
from pytest_ddpscale.suites.tune import USUAL_SETTINGS, Candidate, Tune, candidate_of, candidates, promising
from tests.approved import assert_approved
from tests.suites.conftest import NEEDS_REFUSED_MEMORY, MeasuredAndTold
from tests.suites.played_tune import PlayedTune
from tests.suites.run_records import text_of

SMALL = ("tune", "--gpu-sku=cpu", "--ddp-gpus-per-node=2", "--model=shufflenet_v2_x0_5", "--precision=fp32",
         "--image-size=224", "--batch=2", "--ddp-block=0.01s")  # fmt: skip
tune_report = Tune().results
WORKLOAD = Workload("r-fp32", ImageFamily("resnet18", image_size=64, memory_format="contiguous"), "fp32", 16)


def rows(report: Results) -> list[Row]:
    return [*report.tables[0].rows]


def test_a_gain_is_confirmed_by_further_launches_and_recommended_with_its_interval() -> None:
    measured = PlayedTune(gains={"gradient_as_bucket_view=True": 1.10, "accumulation_steps=4": 1.3}).measured()
    report = tune_report(measured)
    assert set(report.values["recommended"]) == {"gradient_as_bucket_view=True", "accumulation_steps=4"}
    found = {one["setting"]: one for one in rows(report)}
    low, high = found["gradient_as_bucket_view=True"]["further_launches"].interval
    assert low < 1.10 < high
    assert found["accumulation_steps=4"]["changes"] == "changes the global batch"
    assert_approved("suite-tune.txt", text_of(report))


def test_a_variable_of_the_environment_is_compared_gang_by_gang() -> None:
    measured = PlayedTune("--try=OMP_NUM_THREADS=2", gains={"OMP_NUM_THREADS=2": 0.8}).measured()
    launches = {study.launch for study in measured.evidence.plan.studies}
    assert launches == {2, 3, 4, 5}
    first, later = measured.evidence.plan.studies[0], measured.evidence.plan.studies[2]
    assert (first.environment, later.environment) == ((("OMP_NUM_THREADS", "2"),), ()), "the order alternates"
    report = tune_report(measured)
    assert rows(report)[0]["says"] == "slower"
    assert report.values["recommended"] == []
    assert "without effect: gloo" not in text_of(report)
    faster = tune_report(PlayedTune("--try=NCCL_ALGO=Ring", gains={"NCCL_ALGO=Ring": 1.2}).measured())
    assert faster.values["snippet_environment"] == "export NCCL_ALGO=Ring"
    assert "without effect: gloo reads no NCCL variable" in text_of(faster)


def test_an_error_of_the_usual_settings_is_told() -> None:
    measured = PlayedTune("--try=OMP_NUM_THREADS=2", gains={}).measured()
    usual = next(one for one in measured.evidence.plan.studies if candidate_of(one) == Candidate())
    broken = replace(measured.evidence, errors={usual.id: "rank 0 on n1 failed"})
    assert tune_report(replace(measured, evidence=broken)).problems == ["usual settings: rank 0 on n1 failed"]


def test_what_looks_faster_in_one_launch_only_is_not_recommended() -> None:
    # As where memory of one process lies badly: its rounds agree with each other, and not with the next launch.
    runs = [PlayedTune(gains={}, seed=seed, round_sd=0.002, launch_sd=0.04).measured() for seed in range(6)]
    assert any(promising(run) for run in runs), "the first launch alone would have recommended something"
    assert sum(len(tune_report(run).values["recommended"]) for run in runs) <= 1


def test_what_is_not_worth_a_change_is_said_and_not_recommended() -> None:
    report = tune_report(PlayedTune(gains={"static_graph=True": 1.004}, round_sd=0.001, launch_sd=0.0).measured())
    assert report.values["recommended"] == []
    assert report.headline == "Tuning: none of 9 settings is shown to be faster"


def test_uneven_batches_are_a_cost_and_never_recommended() -> None:
    played = PlayedTune("--try=uneven_share=0.5", gains={"uneven_share=0.5": 1.5})
    assert tune_report(played.measured()).values["recommended"] == []


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


def test_of_two_values_of_one_variable_the_larger_gain_is_the_one_to_paste() -> None:
    tried = "--try=bucket_cap_mb=5,50 NCCL_ALGO=Ring,Tree"
    gains = {"bucket_cap_mb=5": 1.1, "bucket_cap_mb=50": 1.3, "NCCL_ALGO=Ring": 1.3, "NCCL_ALGO=Tree": 1.1}
    values = tune_report(PlayedTune(tried, gains=gains).measured()).values
    assert len(values["recommended"]) == 4
    assert values["snippet_environment"] == "export NCCL_ALGO=Ring"


@pytest.mark.lab
@NEEDS_REFUSED_MEMORY
def test_a_setting_that_does_not_fit_is_an_error_and_the_others_are_told(measured_and_told: MeasuredAndTold) -> None:
    """A million images are 602 GB. A rank with three images does not keep up with one that has two each."""
    tried = "--try=uneven_share=0.5 batch_size=999999"
    run, told = measured_and_told(*SMALL, tried, exit_code=1)
    uneven, too_large = json.loads(run.suite_json.read_text())["tables"]["tune"]
    assert uneven["says"] in ("slower", "no difference shown")
    assert uneven["changes"] == "not a setting: shows the cost of uneven batches"
    assert uneven["first_launch"]["interval"][0] < uneven["first_launch"]["value"]
    assert (too_large["says"], too_large["first_launch"]) == ("not measured", None)
    assert re.search(r"rank \d on .* failed in .*allocate", too_large["why_missing"])
    said, _, _ = too_large["why_missing"].partition(" Error code 12")  # a long line ends with a sentence
    assert f"- batch_size=999999: {said}" in told
    assert told.startswith("Tuning: none of 2 settings is shown to be faster; 1 part not measured in full")
