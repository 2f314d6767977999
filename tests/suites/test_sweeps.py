"""Suites in rounds, played at known paces: what is planned, what is concluded, and what is told of what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.run.table import Columns
from pytest_ddpscale.suites.engine import Suite
from pytest_ddpscale.suites.factors import Factors
from pytest_ddpscale.suites.inference import DataParallel, Inference, findings_of
from pytest_ddpscale.suites.input_pipeline import InputPipeline, bottleneck, recommended
from pytest_ddpscale.suites.results import Results, Row
from tests.approved import assert_approved
from tests.builders.image_folder import image_folder
from tests.suites.planned import Pace, planned, played, wavering
from tests.suites.run_records import text_of

ONE, OURS, APPLY, NATIVE, RANKS = "infer@1", "vanilla_parallel@4", "parallel_apply@4", "data_parallel@4", "infer@4"
# Images per second of all devices together, by batch.
SPLIT = {32: {ONE: 1000, OURS: 800, APPLY: 1600, NATIVE: 900, RANKS: 1800},
         64: {ONE: 1000, OURS: 2700, APPLY: 3000, NATIVE: 3500, RANKS: 3500}}  # fmt: skip
INFERRED = {32: (1000.0, 1.0), 64: (2000.0, 0.95), 128: (2010.0, 0.9), 256: (2010.0, 1.1)}
LOADED = {"data=synthetic": 100, "workers=0": 50, "workers=2,prefetch=2": 80, "workers=4,prefetch=2": 80}
BROKE = "rank 0 on n1 failed: OutOfMemoryError: CUDA out of memory\nits stack"


def shared(study: Study, arm: Arm, number: int, rank: int) -> float:
    """One of four GPUs is slow, alone and with the others."""
    alone, kept = INFERRED[arm.batch_size]
    return alone * (0.5 if rank == 3 else 1.0) * (kept if arm.world_size > 1 else 1.0) * wavering(number)


def split(study: Study, arm: Arm, number: int, rank: int) -> float:
    return SPLIT[study.workload.batch_size][arm.name] / arm.world_size * wavering(number + len(arm.name))


def by_batch_and_ranks(study: Study, arm: Arm, number: int, rank: int) -> float:
    """1 ms an image; communication is 50 ms more for each rank that is not alone."""
    more = 50.0 * (arm.world_size - 1) if arm.kind == "ddp" else 0.0
    return 1000 * arm.batch_size / ((study.workload.batch_size + more) * wavering(number))


def loaded(study: Study, arm: Arm, number: int, rank: int) -> float:
    return LOADED[arm.variant.name] * (1 + 0.001 * ((number * 7 + len(arm.name) * 3) % 5 - 2))


INPUT = ("--folder=images", "--workers=0,2,4", "--batch=4")
SUITES: dict[str, tuple[Suite, Sequence[str], Pace]] = {
    "inference": (Inference(), (), shared),
    "data-parallel": (DataParallel(), ("--batches=32,64",), split),
    "factors": (
        Factors(),
        ("--batches=1024,256", "--models=vgg16,alexnet", "--hidden-sizes=4096,1024"),
        by_batch_and_ranks,
    ),
    "input-pipeline": (InputPipeline(), INPUT, loaded),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    image_folder(tmp_path / "images", images=3)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of(name: str, rounds: int | None = None, only_last: bool = True, **keys: object) -> Results:
    """Of a suite as it is, or of one of which the last study, or each, broke after some rounds."""
    suite, options, pace = SUITES[name]
    plan = planned(suite, *options)
    broken = plan.studies[-1:] if only_last else plan.studies
    ended = None if rounds is None else {one.workload.name: (rounds, BROKE) for one in broken}
    return suite.results(played(plan, pace, ended, waited_s=0.04, **keys))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SUITES)
def test_it_is_told_as_it_was_approved_also_where_studies_break(name: str, folder: Path) -> None:
    whole, few, none, nothing = of(name), of(name, 2), of(name, 0), of(name, 0, only_last=False)
    assert (whole.problems, len(few.problems), len(none.problems)) == ([], 1, 1)
    assert_approved(f"suite-{name}.txt", text_of(whole, few, none, nothing).replace(str(folder), "FOLDER"))


@pytest.mark.parametrize("name", SUITES)
def test_a_rank_that_reported_nothing_is_told_though_others_did(name: str, folder: Path) -> None:
    problems = of(name, without_rank=3).problems
    assert problems
    assert all(problem.endswith("no complete round") for problem in problems)


def test_a_batch_that_broke_with_all_ranks_is_no_finding() -> None:
    plan = planned(Inference(), "--batches=32,64")
    whole = played(plan, shared)
    columns = {key: one for key, one in whole.evidence.columns.arms.items() if key != (plan.studies[1].id, "infer@4")}
    told = Inference().results(replace(whole, evidence=replace(whole.evidence, columns=Columns(columns))))
    assert "(4 at once, batch 32)" in told.headline
    assert "saturated" not in told.headline
    assert told.problems == [f"{plan.studies[1].workload.name}: no complete round"]
    for row in told.tables[0].rows:
        assert row["samples_per_s"] == row["ranks"] * row["samples_per_s_per_gpu"].value


@pytest.mark.parametrize(("limits", "said"), [
    ([(50, 51), (90, 91), (99, 101), (99, 101)], ["saturated from batch 128 on"]),
    ([(50, 51), (90, 97), (99, 101), (99, 101)], ["saturated from batch 64 on"]),
    ([(50, 51), (60, 61), (80, 81), (99, 101)], ["throughput still grows at the largest batch"]),
    ([(50, 51)], []),
])  # fmt: skip
def test_saturated_is_the_smallest_batch_not_shown_to_be_slower(
    limits: list[tuple[float, float]], said: list[str]
) -> None:
    rows = [
        {"batch": batch, "ranks": 8, "samples_per_s_per_gpu": Found(sum(one) / 2, one)}
        for batch, one in zip((32, 64, 128, 256), limits, strict=False)
    ]
    assert [*findings_of(rows, "img/s")][1:] == said


def test_batches_are_shared_evenly_by_at_least_two_devices() -> None:
    assert [one.workload.batch_size for one in planned(DataParallel(), gpus=3).studies] == [33, 66, 129, 258]
    with pytest.raises(OptionError, match="--ddp-gpus-per-node: found one device; expected at least 2"):
        planned(DataParallel(), gpus=1)
    (on_cpu,) = planned(DataParallel(), "--batches=4", sku=("--gpu-sku=cpu",), gpus=2).studies
    assert [arm.name for arm in on_cpu.arms] == ["infer@1", "vanilla_parallel@2", "parallel_apply@2", "infer@2"]


@pytest.mark.parametrize(
    ("kind", "ranks", "devices"), [("infer", 1, 2), ("vanilla_parallel", 1, 1), ("vanilla_parallel", 2, 2)]
)
def test_an_arm_of_one_process_has_several_devices_and_no_other_has(kind: str, ranks: int, devices: int) -> None:
    with pytest.raises(ValueError, match=rf"of {ranks} ranks has {devices} devices; expected 1, or at least 2 for one"):
        Arm(kind, ranks, 4, devices=devices)


def test_each_other_workload_differs_from_the_centre_in_one_factor() -> None:
    options = ("--batches=1024,512", "--models=vgg16,resnet18", "--hidden-sizes=4096,1024")
    studies = planned(Factors(), *options, "--feature-weights=/weights", "--ddp-rounds=9").studies
    at_centre = ["no_sync@4", "ddp@4"]
    assert {one.workload.name: [arm.name for arm in one.arms] for one in studies} == {
        "vgg16-h4096-batch-1024": [f"{kind}@{k}" for k in (1, 2, 3, 4) for kind in ("no_sync", "ddp")],
        "vgg16-h4096-batch-512": at_centre, "resnet18-h0-batch-1024": at_centre,
        "vgg16-h1024-batch-1024": at_centre,
    }  # fmt: skip
    assert {(one.workload.precision, one.rounds) for one in studies} == {("fp32", 9)}
    assert {one.workload.family.feature_weights for one in studies} == {"/weights/vgg16.pth", "/weights/resnet18.pth"}
    for gpus, sizes in ((2, {1, 2}), (8, {1, 2, 3, 4})):
        plan = planned(Factors(), "--batches=8", "--models=resnet18", gpus=gpus)
        assert [{arm.world_size for arm in study.arms} for study in plan.studies] == [sizes]
    (table,) = Factors().results(played(plan, by_batch_and_ranks)).tables
    assert {row["factor"] for row in table.rows} == {"world size"}, "a factor of one value is none"


def found_of(ends: Sequence[float]) -> Found:
    return Found(ends[0], (ends[0], ends[1]) if len(ends) > 1 else None)


FASTEST, WORSE = (1.0, 1.0), (0.5, 0.6)


@pytest.mark.parametrize(("efficiencies", "to_fastest", "answer", "chosen"), [
    ([(0.951, 0.99), (0.90, 0.94)], [FASTEST, FASTEST], "is not", "workers=0"),
    ([(0.90, 0.949), (0.91, 0.94)], [WORSE, FASTEST], "is", "workers=1"),
    ([(0.90, 0.949), (0.91, 0.96)], [(0.96, 1.0), FASTEST], "may be", "workers=0"),  # another setting may keep up
    ([(0.5, 0.6), (0.97, 0.99)], [(0.70, 1.01), FASTEST], "is not", "workers=1"),  # 24 % slower, and not shown to be
    ([(0.90, 0.96)], [FASTEST], "may be", "workers=0"),
    ([(0.5,)], [(1.0,)], "may be", None),
])  # fmt: skip
def test_as_far_as_intervals_say_loading_is_to_blame_and_the_fewest_workers_keep_up(
    efficiencies: list[Sequence[float]], to_fastest: list[Sequence[float]], answer: str, chosen: str | None
) -> None:
    rows: list[Row] = [{"data": "data=synthetic"}]
    for workers, of_one in enumerate(zip(efficiencies, to_fastest, strict=True)):
        efficiency, beside = map(found_of, of_one)
        rows.append({"data": f"workers={workers}", "efficiency": efficiency, "to_fastest": beside})
    assert bottleneck(rows) == answer
    assert (recommended(rows) or {"data": None})["data"] == chosen
