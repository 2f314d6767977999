"""Tuning finds the settings that gain, and recommends nothing where nothing differs."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.suites.results import Results
from pytest_ddpscale.suites.tune import USUAL_SETTINGS, Tune, TuneJudge, promising, setting_of, settings_of
from tests.approved import assert_approved
from tests.builders.records import lines_of
from tests.rows import rows
from tests.suites.conftest import NEEDS_REFUSED_MEMORY, MeasuredAndTold
from tests.suites.played_tune import PlayedTune
from tests.suites.run_records import text_of

WORKLOAD = Workload("r-fp32", ImageFamily("resnet18", image_size=64, memory_format="contiguous"), "fp32", 16)
TRIED = "--try=static_graph=true"


def told(*options: str, **gains: object) -> Results:
    return Tune().results(PlayedTune(*options, **{"gains": {}, **gains}).measured())  # type: ignore[arg-type]


def recommended(report: Results) -> list[str]:
    return [row["setting"] for row in report.tables[0].rows if row["is_recommended"]]


def test_a_gain_is_confirmed_by_further_launches_and_recommended_with_its_interval() -> None:
    report = told(gains={"gradient_as_bucket_view=True": 1.10, "accumulation_steps=4": 1.3})
    assert recommended(report) == ["accumulation_steps=4", "gradient_as_bucket_view=True"]
    low, high = report.tables[0].rows[1]["further_launches"].interval
    assert low < 1.10 < high
    assert_approved("suite-tune.txt", text_of(report))


def test_a_variable_of_the_environment_is_compared_gang_by_gang() -> None:
    measured = PlayedTune("--try=OMP_NUM_THREADS=2", gains={"OMP_NUM_THREADS=2": 0.8}).measured()
    found = [f"{study.launch} {setting_of(study)}" for study in measured.plan.studies]
    two = "OMP_NUM_THREADS=2"
    assert found == [f"2 {two}", "2 ", "3 ", f"3 {two}", f"4 {two}", "4 ", "5 ", f"5 {two}"], "the order alternates"
    [row] = Tune().results(measured).tables[0].rows
    assert (row["says"], row["is_recommended"], row["note"]) == ("slower", False, "export OMP_NUM_THREADS=2")
    faster = PlayedTune("--try=NCCL_ALGO=Ring", gains={"NCCL_ALGO=Ring": 1.2}).measured()
    on_gpus = replace(faster, evidence=replace(faster.evidence, plan=replace(faster.plan, device_type="cuda")))
    for run, note in ((faster, "without effect: gloo reads no NCCL variable"), (on_gpus, "export NCCL_ALGO=Ring")):
        [row] = Tune().results(run).tables[0].rows
        assert (row["says"], row["note"]) == ("faster", note)


@rows(("gain", "round_sd", "is_told"), [(1.2, 0.01, True), (0.8, 0.01, True), (1.0, 0.0001, True), (1.0, 0.1, False)])
def test_a_study_ends_once_its_interval_tells_unless_it_confirms(gain: float, round_sd: float, is_told: bool) -> None:
    played = PlayedTune(TRIED, gains={"static_graph=True": gain}, round_sd=round_sd, launch_sd=0.0)
    first = played.measured().plan.studies[0]
    plan = played.nodes.plan([first, replace(first, launch=2)], launches=2)
    judge = TuneJudge(plan, 0.95)
    assert len(judge.needed_arms(first.id)) == 2
    for record in lines_of(played.steps(plan)):
        judge.hear(record)
    assert [len(judge.needed_arms(one.id)) for one in plan.studies] == [0 if is_told else 2, 2]


def test_an_error_of_the_usual_settings_is_told() -> None:
    measured = PlayedTune("--try=OMP_NUM_THREADS=2", gains={}).measured()
    usual = next(one for one in measured.plan.studies if not setting_of(one))
    broken = replace(measured.evidence, errors={usual.id: "rank 0 on n1 failed"})
    assert Tune().results(replace(measured, evidence=broken)).problems == ["usual settings: rank 0 on n1 failed"]


def test_what_looks_faster_in_one_launch_only_is_not_recommended() -> None:
    # As where memory of one process lies badly: its rounds agree with each other, and not with the next launch.
    runs = [PlayedTune(gains={}, seed=seed, round_sd=0.002, launch_sd=0.04).measured() for seed in range(6)]
    assert any(promising(run) for run in runs), "the first launch alone would have recommended something"
    assert sum(len(recommended(Tune().results(run))) for run in runs) <= 1


@rows(("options", "gains", "says"), [
    ((), {"static_graph=True": 1.004}, "no difference shown"),  # not worth a change, so not measured again
    (("--try=NCCL_ALGO=Ring",), {"NCCL_ALGO=Ring": 1.004}, "faster by less than 1 %"),
    (("--try=uneven_share=0.5",), {"uneven_share=0.5": 1.5}, "faster"),  # a cost, whatever it is
])  # fmt: skip
def test_what_is_not_worth_a_change_is_said_and_not_recommended(
    options: tuple[str, ...], gains: dict[str, float], says: str
) -> None:
    report = told(*options, gains=gains, round_sd=0.0005, launch_sd=0.0)
    assert [row["says"] for row in report.tables[0].rows if row["setting"] in gains] == [says]
    assert recommended(report) == []
    assert re.fullmatch(r"Tuning: none of \d settings is shown to be faster", report.headline)


def test_what_the_workload_has_already_is_not_tried() -> None:
    assert (
        settings_of("precision=fp32 memory_format=contiguous compile=no batch_size=16 static_graph=false", WORKLOAD)
        == []
    )
    found = settings_of("batch_size=half,double,32 precision=bf16 A=1 A=1", WORKLOAD)
    assert [one.name or environment for one, environment in found] == [
        "batch_size=8", "batch_size=32", "precision=bf16", (("A", "1"),),
    ]  # fmt: skip


def test_all_that_is_tried_by_itself_can_be_planned() -> None:
    assert [len(settings_of(one, WORKLOAD)) for one in USUAL_SETTINGS.values()] == [27, 9]
    plan = PlayedTune(f"--try={USUAL_SETTINGS['cuda']}", gains={}).measured().plan
    assert len({setting_of(one) for one in plan.studies}) == 28, "with the usual ones"
    [study] = PlayedTune("--batch=10", "--try=batch_size=double", gains={}).measured().plan.studies
    assert [arm.batch_size for arm in study.arms] == [10, 20]


@pytest.mark.lab
@NEEDS_REFUSED_MEMORY
def test_a_setting_that_does_not_fit_is_an_error_and_the_others_are_told(measured_and_told: MeasuredAndTold) -> None:
    """A million images are 602 GB. A rank with three images does not keep up with one that has two each."""
    small = ("tune", "--gpu-sku=cpu", "--ddp-gpus-per-node=2", "--model=shufflenet_v2_x0_5", "--precision=fp32",
             "--image-size=224", "--batch=2", "--ddp-block=0.01s")  # fmt: skip
    run, told = measured_and_told(*small, "--try=uneven_share=0.5 batch_size=999999", exit_code=1)
    uneven, too_large = json.loads(run.suite_json.read_text())["tables"]["tune"]
    assert uneven["says"] in ("slower", "no difference shown")
    assert uneven["note"] == "not a setting: shows the cost of uneven batches"
    assert uneven["first_launch"]["interval"][0] < uneven["first_launch"]["value"]
    assert (too_large["says"], too_large["first_launch"]) == ("not measured", None)
    assert re.search(r"rank \d on .* failed in .*allocate", too_large["why_missing"])
    said, _, _ = too_large["why_missing"].partition(" Error code 12")  # a long line ends with a sentence
    assert f"- batch_size=999999: {said}" in told
    assert told.startswith("Tuning: none of 2 settings is shown to be faster; 1 part not measured in full")
