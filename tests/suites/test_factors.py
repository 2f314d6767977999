"""One factor at a time: what is planned, what cells come to, the data that they move, and a real run of it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.suites.factors_report import factors_report
from pytest_ddpscale.suites.factors_suite import Factors
from pytest_ddpscale.suites.factors_values import DataMoved, sweeps
from pytest_ddpscale.suites.suite import MeasuredSuite
from tests.approved import assert_approved
from tests.builders.judged import evidence_of_plan, make_measurement
from tests.builders.measurements import Measurement
from tests.suites.conftest import MeasuredAndTold
from tests.suites.planned import planned
from tests.suites.run_records import SUITE_RECORD, text_of

SMALL = ("suite", "factors", "--gpu-sku=cpu", "--model=squeezenet1_1", "--models=shufflenet_v2_x0_5", "--hidden=8",
         "--hidden-sizes=", "--batch=2", "--batches=", "--image-size=32", "--ddp-gpus-per-node=2",
         "--ddp-block=0.01s")  # fmt: skip
StepMs = Callable[[Study, Arm], float]


def names(plan: Plan) -> list[tuple[str, list[str]]]:
    return [(study.workload.name, [arm.name for arm in study.arms]) for study in plan.studies]


def test_each_other_workload_differs_from_the_centre_in_one_factor() -> None:
    plan = planned(Factors(), "--batches=512,1024", "--models=resnet18,vgg16", "--hidden-sizes=4096,1024")
    at_centre = ["no_sync@4", "ddp@4"]
    assert names(plan) == [
        ("vgg16-h4096-batch-1024", [f"{kind}@{k}" for k in (1, 2, 3, 4) for kind in ("no_sync", "ddp")]),
        ("vgg16-h4096-batch-512", at_centre),
        ("resnet18-linear-batch-1024", at_centre),
        ("vgg16-h1024-batch-1024", at_centre),
    ]
    assert all(study.workload.family.num_classes == 10 and study.workload.precision == "fp32" for study in plan.studies)


def test_without_that_many_gpus_the_centre_is_all_of_them() -> None:
    (centre,) = planned(Factors(), "--batches=", "--models=", "--hidden-sizes=", gpus=2).studies
    assert {arm.world_size for arm in centre.arms} == {1, 2}


def test_weights_are_a_file_of_each_model() -> None:
    plan = planned(Factors(), "--batches=", "--models=alexnet", "--hidden-sizes=", "--feature-weights=/weights")
    assert [study.workload.family.feature_weights for study in plan.studies] == [
        "/weights/vgg16.pth",
        "/weights/alexnet.pth",
    ]


def suite_of(plan: Plan, step_ms: StepMs, without: str = "", rounds: int = 0) -> MeasuredSuite:
    """All rounds of each study, but only `rounds` of the workload that ended in an error."""
    found: list[Measurement] = [
        make_measurement(
            study.id, arm, number, rank,
            1000 * arm.batch_size / (step_ms(study, arm) * (1 + 0.001 * (number % 3))), host="n1",
        )
        for study in plan.studies
        for number in range(rounds if study.workload.name == without else study.rounds)
        for arm in study.arms
        for rank in range(arm.world_size)
    ]  # fmt: skip
    errors = {study.id: "CUDA out of memory" for study in plan.studies if study.workload.name == without}
    return MeasuredSuite(evidence_of_plan(plan, found, errors=errors), SUITE_RECORD, 0.95)


def by_batch_and_ranks(study: Study, arm: Arm) -> float:
    """1 ms an image; communication is a tenth of a millisecond more for each rank that is not alone."""
    return study.workload.batch_size + (50.0 * (arm.world_size - 1) if arm.kind == "ddp" else 0.0)


PLAN = ("--batches=256,1024", "--models=alexnet", "--hidden-sizes=1024")


def test_cells_have_computation_and_what_communication_adds_to_it() -> None:
    found = {sweep.factor: sweep.cells for sweep in sweeps(suite_of(planned(Factors(), *PLAN), by_batch_and_ranks))}
    assert [cell.workload.batch_size for cell in found["batch"]] == [256, 1024]
    assert [cell.world_size for cell in found["world size"]] == [1, 2, 3, 4]
    assert [cell.workload.family.model for cell in found["model"]] == ["alexnet", "vgg16"]
    assert [cell.data.parameters for cell in found["trained parameters"]] == [26_750_986, 119_586_826]
    for cells in found.values():
        for cell in cells:
            assert cell.computation_ms is not None
            assert cell.communication_ms is not None
            assert cell.computation_ms.value == pytest.approx(cell.workload.batch_size, rel=0.002)
            more = 50 * (cell.world_size - 1)
            assert cell.communication_ms.value == pytest.approx(more, rel=0.002, abs=1e-6)
            assert cell.communication_share is not None
            share = more / (more + cell.workload.batch_size)
            assert cell.communication_share.value == pytest.approx(share, rel=0.002, abs=1e-6)


def test_the_report_has_every_factor_its_figures_and_what_is_missing() -> None:
    measured = suite_of(planned(Factors(), *PLAN), by_batch_and_ranks, without="alexnet-h4096-batch-1024")
    report = factors_report(measured)
    assert report.problems == ["alexnet-h4096-batch-1024 on 4: CUDA out of memory"]
    assert_approved("suite-factors.txt", text_of(report))


def test_an_error_after_some_rounds_is_told_and_what_was_measured_stays() -> None:
    plan = planned(Factors(), *PLAN)
    report = factors_report(suite_of(plan, by_batch_and_ranks, without="alexnet-h4096-batch-1024", rounds=2))
    rounds = plan.studies[0].rounds
    assert report.problems == [f"alexnet-h4096-batch-1024 on 4: after 2 of {rounds} rounds: CUDA out of memory"]
    cells = sum(map(len, report.values["factors"].values())) - 3  # the centre is in every factor
    assert report.headline.endswith(f"; {cells} of {cells} cells measured; 1 of {cells} cells ended early")


def test_nothing_measured_is_told_too() -> None:
    plan = planned(Factors(), "--batches=", "--models=", "--hidden-sizes=")
    report = factors_report(suite_of(plan, by_batch_and_ranks, without=plan.studies[0].workload.name))
    assert report.headline.endswith("4 ranks: not measured; 0 of 4 cells measured")
    assert (report.sections, len(report.problems)) == ([], 4)


@given(st.integers(1, 10**9), st.integers(1, 4096), st.integers(1, 512), st.integers(1, 10**6))
def test_data_moved_keeps_its_identities(parameters: int, batch: int, ranks: int, images: int) -> None:
    data = DataMoved(parameters, batch, ranks, images)
    assert data.document_bytes == pytest.approx(4 * data.document_parameters)
    assert data.steps * batch * ranks >= images
    assert data.sent_bytes_per_step < 2 * 4 * parameters
    assert (data.sent_bytes == 0) == (ranks == 1)
    more = DataMoved(parameters, batch, ranks + 1, images)
    assert more.document_parameters < data.document_parameters
    assert more.sent_bytes_per_step > data.sent_bytes_per_step


@pytest.mark.lab
def test_it_is_measured_reported_and_told_again(measured_and_told: MeasuredAndTold) -> None:
    run, _ = measured_and_told(*SMALL)
    factors = json.loads(run.suite_json.read_text())["factors"]
    assert {factor: len(cells) for factor, cells in factors.items()} == {"world size": 2, "model": 2}
    for cells in factors.values():
        for cell in cells:
            low, high = cell["computation_ms"]["interval"]
            assert 0 < low < cell["computation_ms"]["value"] < high
            assert cell["communication_ms"]["interval"][0] < cell["communication_ms"]["interval"][1]
    assert [cell["trained_parameters"] for cell in factors["model"]] == [5_130, 1024 * 8 + 8 + 8 * 8 + 8 + 90]
    page = (run.path / "report.html").read_text()
    assert page.count("<img") == 4
    assert "<h2>By world size</h2>" in page
