"""A ratio to another generation: both throughputs are shown, and what cannot be compared is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from shutil import copytree
from typing import Any

import pytest

from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.verdicts import Judgement, RunOutcome, Verdict
from pytest_ddpscale.thresholds.waiver import Waiver
from tests.builders.workloads import with_settings
from tests.plugin.site import (
    MEASURED_RUN,
    REQUIREMENTS,
    SKU,
    Series,
    Site,
    assert_refused,
    edit_json,
    output_of,
    thresholds_text,
)

SKU_RATIO = "test_generation_ratio[resnet152-fp16-1gpu-vs-reference-gpu]"
RUN_RATIO = "{generation_ratio: {1: 1.9}, of: resnet152-fp16, versus: 'run:old', provisional: made up}"
OLD = 594.75  # half of what the run under test reaches


def old_cluster(**workload: object) -> tuple[Series, ...]:
    """What another machine gave on one GPU."""
    alone = MEASURED_RUN[0]
    trained = with_settings(alone.workload, **workload)
    return (replace(alone, workload=trained, arm=replace(alone.arm, batch_size=trained.batch_size), samples_per_s=OLD),)


def reference(site: Site, outcome: RunOutcome = "accepted", **workload: Any) -> RunDirectory:
    """The run that the ratio is to, judged."""
    run = site.measured("old", old_cluster(**workload))
    missed = Verdict("node_check[ecc]", "node_check", "ecc", 1, "fail", {"at_least": 1.0}, "failed", 0.5)
    waived = replace(missed, waiver=Waiver("A. Name", "a fan is ordered", date(2026, 12, 31)))
    verdicts = {"rejected": (missed,), "accepted_with_waivers": (waived,)}.get(outcome, ())
    conclude(run, outcome, *verdicts)
    return run


def conclude(run: RunDirectory, outcome: RunOutcome, *verdicts: Verdict) -> None:
    judgement = Judgement(SKU, outcome, f"it is {outcome}", verdicts, basis=run.digests())
    run.write_json(run.verdicts_json, judgement)


@pytest.fixture
def compared(site: Site) -> Site:
    """A site that asks for nearly twice what a run of its own reached."""
    site.write("thresholds.yaml", thresholds_text([*REQUIREMENTS.values(), RUN_RATIO]))
    site.measured()
    return site


def test_both_throughputs_and_their_sources_are_shown(compared: Site) -> None:
    reference(compared, batch_size=128)
    result = compared.judge("-k", "generation_ratio", "-v")
    result.assert_outcomes(passed=2)
    said = " ".join(output_of(result).split())
    assert "1190 img/s per GPU here, 500 of reference-gpu" in said
    assert re.search(r"1190 img/s per GPU here, 59\d\.\d of run-old", said)
    report = (compared.path / "measured" / "report.html").read_text(encoding="utf-8")
    assert "500 of reference-gpu (a paper, table 1)" in report
    assert re.search(r"59\d\.\d of run-old \(tested-gpu, median of 9 rounds measured ", report)
    (of_run,) = [one for one in compared.verdicts()["verdicts"] if one["id"].endswith("vs-run-old]")]
    assert of_run["compared"]["reference_samples_per_s"] == pytest.approx(OLD, rel=0.001)
    assert of_run["value"] == pytest.approx(2, rel=0.001)


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({"image_size": 192}, "differs there in image_size"),
        ({"memory_format": "contiguous"}, "differs there in memory_format"),
        ({"name": "other", "model": "resnet50"}, "it did not train resnet152-fp16, but other"),
    ],
    ids=["image size", "memory format", "model"],
)
def test_a_run_of_something_else_is_refused(compared: Site, workload: dict[str, Any], said: str) -> None:
    reference(compared, **workload)
    assert_refused(compared.judge(), "thresholds.yaml:", "generation_ratio versus run ", said)


def test_a_run_that_is_not_there_is_refused(compared: Site) -> None:
    assert_refused(compared.judge(), "generation_ratio versus run ", "/old: ")


@pytest.mark.parametrize("outcome", ["accepted_with_waivers", "partial"])
def test_a_run_that_nothing_speaks_against_is_a_reference(compared: Site, outcome: RunOutcome) -> None:
    reference(compared, outcome)
    compared.judge("-k", "generation_ratio").assert_outcomes(passed=2)


@pytest.mark.parametrize("outcome", ["rejected", "incomplete"])
def test_a_run_that_was_not_accepted_is_no_reference(compared: Site, outcome: RunOutcome) -> None:
    reference(compared, outcome)
    said = f"/old: it was {outcome}: it is {outcome}; expected an accepted run that measured the same model"
    assert_refused(compared.judge(), "thresholds.yaml:", said, "Name another run, or a SKU.")


def test_a_run_whose_throughput_was_waived_or_only_warned_is_no_reference(compared: Site) -> None:
    run = reference(compared)
    slow = Verdict("test_throughput[resnet152-fp16-1gpu]", THROUGHPUT_PER_GPU.name, "resnet152-fp16", 1, "warn",
        {"at_least": 1000.0}, "failed", OLD)  # fmt: skip
    conclude(run, "accepted", slow)
    said = "/old: it was accepted, but it missed test_throughput[resnet152-fp16-1gpu], waived or only warning; expected"
    assert_refused(compared.judge(), "thresholds.yaml:", said)


def test_verdicts_in_another_directory_count_if_that_is_named(compared: Site) -> None:
    run = reference(compared, "rejected")
    again = RunDirectory.create(run.path / "judged-1")
    basis = {"measurements_path": str(run.measurements_jsonl), **run.digests()}
    again.write_json(again.verdicts_json, Judgement(SKU, "accepted", "all is well now", (), basis=basis))
    ratio = RUN_RATIO.replace("run:old", "run:old/judged-1")
    compared.write("thresholds.yaml", thresholds_text([*REQUIREMENTS.values(), ratio]))
    compared.judge("-k", "generation_ratio").assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("status", "said", "todo"),
    [
        ("interrupted", "it was interrupted", "Finish it with `pytest --ddp-resume="),
        ("running", "it has not ended, or was killed", "Finish it with `pytest --ddp-resume="),
        ("finished", "it was never judged", "Judge it with `pytest --ddp-judge="),
    ],
)
def test_a_run_that_was_cut_or_never_judged_is_no_reference(compared: Site, status: str, said: str, todo: str) -> None:
    run = compared.measured("old", old_cluster())
    edit_json(run.run_json, status=status)
    assert_refused(compared.judge(), f"/old: {said}; expected an accepted run", todo)


def test_a_simulated_run_is_a_reference_in_a_rehearsal_only(compared: Site) -> None:
    run = compared.measured("old", old_cluster())
    edit_json(run.run_json, simulated=True)
    assert_refused(compared.judge(), "it was simulated, not measured")
    edit_json(compared.path / "measured" / "run.json", simulated=True)
    compared.judge("-k", "generation_ratio").assert_outcomes(passed=2, failed=1)
    assert compared.outcome() == "incomplete", "a simulated run accepts nothing"


def test_a_copy_of_a_run_is_no_reference_for_it(compared: Site) -> None:
    copytree(compared.path / "measured", compared.path / "old")
    run = RunDirectory(compared.path / "old")
    conclude(run, "accepted")
    assert_refused(compared.judge(), "thresholds.yaml:", "it has the same measurements as measured")
