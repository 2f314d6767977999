"""Suites in rounds, played at known paces: what is planned, what is concluded, and what is told of what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpscale.errors import OptionError
from pytest_ddpscale.judge.stats import Found
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Plan, Study
from pytest_ddpscale.run.table import Columns
from pytest_ddpscale.suites.data_parallel import DataParallel
from pytest_ddpscale.suites.engine import Suite
from pytest_ddpscale.suites.factors import Factors, data_moved
from pytest_ddpscale.suites.inference import Inference, _findings
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
    "factors": (Factors(), ("--batches=256,1024", "--models=alexnet", "--hidden-sizes=1024"), by_batch_and_ranks),
    "input-pipeline": (InputPipeline(), INPUT, loaded),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    image_folder(tmp_path / "images", images=3)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of(name: str, rounds: int | None = None, **keys: object) -> Results:
    """Of a suite as it is, or of one whose last study broke after some rounds."""
    suite, options, pace = SUITES[name]
    plan = planned(suite, *options)
    ended = None if rounds is None else {plan.studies[-1].workload.name: (rounds, BROKE)}
    return suite.results(played(plan, pace, ended, waited_s=0.04, **keys))  # type: ignore[arg-type]


def values(results: Results, key: str, **named: object) -> list[object]:
    found = [row for rows in results.tables for row in rows.rows if named.items() <= row.items()]
    return [round(one.value, 4) if isinstance(one := row[key], Found) else one for row in found]


@pytest.mark.parametrize("name", SUITES)
def test_it_is_told_as_it_was_approved_also_where_a_study_breaks(name: str, folder: Path) -> None:
    whole, few, none = of(name), of(name, 2), of(name, 0)
    assert (whole.problems, len(few.problems), len(none.problems)) == ([], 1, 1)
    suite, options, _ = SUITES[name]
    nothing = suite.results(played(planned(suite, *options), SUITES[name][2], without={"all"} | ARMS))
    told = text_of(whole, few, none, nothing).replace(str(folder), "FOLDER")
    assert_approved(f"suite-{name}.txt", told)


ARMS = {"infer@1", "infer@4", OURS, APPLY, NATIVE, *(f"{kind}@{k}" for kind in ("ddp", "no_sync") for k in range(1, 5)),
        *(f"ddp@4+{name}" for name in LOADED)}  # fmt: skip


def test_a_slow_gpu_is_no_loss_from_sharing_and_total_is_ranks_times_the_slowest() -> None:
    found = of("inference")
    assert values(found, "kept_at_once", ranks=4) == pytest.approx([1.0, 0.95, 0.9, 1.1])
    for row in found.tables[0].rows:
        assert row["samples_per_s"].value == row["ranks"] * row["samples_per_s_per_gpu"].value
    assert values(found, "p50_ms", ranks=4)[1] == pytest.approx(1000 * 64 / 1900, rel=0.002)
    assert values(found, "p99_ms", ranks=4)[1] == pytest.approx(1000 * 64 / 950, rel=0.002)


def test_a_batch_that_broke_with_all_ranks_is_no_finding() -> None:
    plan = planned(Inference(), "--batches=32,64")
    whole = played(plan, shared)
    columns = {key: one for key, one in whole.evidence.columns.arms.items() if key != (plan.studies[1].id, "infer@4")}
    broken = replace(whole, evidence=replace(whole.evidence, columns=Columns(columns)))
    found = Inference().results(broken)
    assert "(4 at once, batch 32)" in found.headline
    assert "saturated" not in found.headline
    assert found.problems == [f"{plan.studies[1].workload.name} (infer@4): no complete round"]


@pytest.mark.parametrize("name", SUITES)
def test_a_rank_that_reported_nothing_is_told_though_others_did(name: str, folder: Path) -> None:
    suite, options, pace = SUITES[name]
    plan = planned(suite, *options)
    lost = suite.results(played(plan, pace, without_rank=3))
    assert lost.problems
    assert all(problem.endswith("no complete round") for problem in lost.problems)


def inferred(batch: int, low: float, high: float) -> Row:
    return {
        "batch": batch,
        "ranks": 8,
        "samples_per_s_per_gpu": Found((low + high) / 2, (low, high)),
        "kept_at_once": None,
    }


@pytest.mark.parametrize(("limits", "said"), [
    ([(50, 51), (90, 91), (99, 101), (99, 101)], "saturated from batch 128 on"),
    ([(50, 51), (90, 97), (99, 101), (99, 101)], "saturated from batch 64 on"),
    ([(50, 51), (60, 61), (80, 81), (99, 101)], "throughput still grows at batch 256, the largest measured"),
    ([(50, 51)], None),
])  # fmt: skip
def test_saturated_is_the_smallest_batch_not_shown_to_be_slower(limits: list[tuple[float, float]], said: str) -> None:
    rows = [inferred(batch, *one) for batch, one in zip((32, 64, 128, 256), limits, strict=False)]
    assert [*_findings(rows, "img/s", "GPU")][1:] == ([said] if said else [])


def test_communication_is_what_our_apply_does_not_take_and_unknown_of_torchs() -> None:
    found = of("data-parallel")
    assert values(found, "communication_share", way="our DataParallel") == pytest.approx([0.5, 0.1], abs=0.002)
    assert all("communication_share" not in row for row in found.tables[0].rows if row["way"] == "nn.DataParallel")
    assert values(found, "to_one_device", way="our DataParallel") == pytest.approx([0.8, 2.7], rel=0.002)
    noisy = {ONE: 1000, OURS: 990, APPLY: 1600, NATIVE: 990, RANKS: 1000}

    def noise(study: Study, arm: Arm, number: int, rank: int) -> float:
        return noisy[arm.name] / arm.world_size * (1 + 0.2 * ((number + len(arm.name)) % 3))

    told = DataParallel().results(played(planned(DataParallel(), "--batches=32"), noise))
    assert told.headline.count("not shown to be slower at any batch") == 2


def test_default_batches_are_the_documents_or_the_next_that_are_shared_evenly() -> None:
    def batches(gpus: int) -> list[int]:
        return [study.workload.batch_size for study in planned(DataParallel(), gpus=gpus).studies]

    assert (batches(4), batches(3)) == ([32, 64, 128, 256], [33, 66, 129, 258])


@pytest.mark.parametrize(("option", "gpus", "told"), [
    ("--batches=32,33", 2, "--batches: found 33, which 2 devices cannot share evenly; expected multiples of 2, "),
    ("--devices=4", 2, "--devices: found 4; 2 can be used on each node; expected 2 to 2"),
    ("--devices=1", 2, "--devices: found 1; 2 can be used"),
    ("--model=resnet18", 1, "--devices: found 1; 1 can be used on each node; expected 2 to 2: this suite compares"),
])  # fmt: skip
def test_what_cannot_be_shared_is_one_sentence(option: str, gpus: int, told: str) -> None:
    with pytest.raises(OptionError) as error:
        planned(DataParallel(), option, gpus=gpus)
    assert told in str(error.value)


@pytest.mark.parametrize(
    "wrong", [Arm("infer", 1, 4), Arm("vanilla_parallel", 1, 4, devices=2)], ids=lambda arm: arm.name
)
def test_an_arm_of_one_process_has_several_devices_and_no_other_has(wrong: Arm) -> None:
    devices = 1 if wrong.is_split else 2
    with pytest.raises(ValueError, match=rf"has {devices} devices; expected 1, or at least 2 for one rank of data_par"):
        Arm(wrong.kind, 1, 4, devices=devices)
    with pytest.raises(ValueError, match="of 2 ranks has 2 devices"):
        Arm("vanilla_parallel", 2, 4, devices=2)


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
    alone = ("--batches=", "--models=", "--hidden-sizes=")
    (centre,) = planned(Factors(), *alone, gpus=2).studies
    assert {arm.world_size for arm in centre.arms} == {1, 2}, "all GPUs, if there are fewer than four"
    weights = planned(Factors(), *alone[:1], "--models=alexnet", *alone[2:], "--feature-weights=/weights").studies
    assert [study.workload.family.feature_weights for study in weights] == [
        "/weights/vgg16.pth",
        "/weights/alexnet.pth",
    ]


def test_communication_is_what_it_adds_to_computation() -> None:
    found = of("factors")
    assert values(found, "value", factor="world size") == [1, 2, 3, 4]
    assert values(found, "value", factor="model") == ["alexnet", "vgg16"]
    assert values(found, "value", factor="trained parameters") == [26_750_986, 119_586_826]
    for row in found.tables[0].rows:
        more = 50 * (row["world_size"] - 1)
        assert row["computation_ms"].value == pytest.approx(row["batch"], rel=0.002)
        assert row["communication_ms"].value == pytest.approx(more, rel=0.002, abs=1e-6)
        assert row["communication_share"].value == pytest.approx(more / (more + row["batch"]), rel=0.002, abs=1e-6)


@given(st.integers(1, 10**9), st.integers(1, 4096), st.integers(1, 512), st.integers(1, 10**6))
def test_data_moved_keeps_its_identities(parameters: int, batch: int, ranks: int, images: int) -> None:
    data, more = (data_moved(parameters, batch, k, images) for k in (ranks, ranks + 1))
    assert data["document_gb_per_epoch"] * 1e9 == pytest.approx(4 * data["document_parameters_per_epoch"])
    assert data["sent_mb_per_rank_and_step"] * 1e6 < 2 * 4 * parameters
    assert (data["sent_gb_per_rank_and_epoch"] == 0) == (ranks == 1)
    if ranks > 1:
        steps = data["sent_gb_per_rank_and_epoch"] * 1e3 / data["sent_mb_per_rank_and_step"]
        assert round(steps) * batch * ranks >= images
    assert more["document_parameters_per_epoch"] < data["document_parameters_per_epoch"]
    assert more["sent_mb_per_rank_and_step"] > data["sent_mb_per_rank_and_step"]


def setting(workers: int, efficiency: Sequence[float], to_fastest: Sequence[float] | None = None) -> Row:
    def found(ends: Sequence[float] | None) -> Found | None:
        return None if ends is None else Found(ends[0], (ends[0], ends[-1]) if len(ends) > 1 else None)

    return {"data": f"workers={workers}", "waited_s_per_step": 0.1, "efficiency": found(efficiency),
            "to_fastest": found(to_fastest)}  # fmt: skip


@pytest.mark.parametrize(("efficiencies", "answer"), [
    ([(0.951, 0.99), (0.90, 0.94)], "is not"),
    ([(0.90, 0.949), (0.91, 0.94)], "is"),
    ([(0.90, 0.949), (0.91, 0.96)], "may be"),  # another setting may keep up
    ([(0.90, 0.96)], "may be"),
    ([(0.96, 1.01)], "is not"),
    ([(0.5,)], "may be"),
    ([], "may be"),
])  # fmt: skip
def test_loading_is_to_blame_only_as_far_as_the_intervals_say(efficiencies: list[Sequence[float]], answer: str) -> None:
    assert bottleneck([setting(workers, limits) for workers, limits in enumerate(efficiencies)]) == answer


@pytest.mark.parametrize(("to_fastest", "chosen"), [
    ([(0.5, 0.6), (0.96, 1.0), None], "workers=1"),
    ([(0.5, 0.6), (0.70, 1.01), None], "workers=2"),  # 24 % slower, and not shown to be, is no recommendation
    ([None, (0.99, 1.0)], "workers=0"),
])  # fmt: skip
def test_the_fewest_workers_shown_to_keep_up_are_recommended(
    to_fastest: list[Sequence[float] | None], chosen: str
) -> None:
    rows: list[Row] = [{"data": "data=synthetic", "waited_s_per_step": None}]
    rows += [setting(workers, (0.9,), one) for workers, one in enumerate(to_fastest)]
    found = recommended(rows)
    assert found is not None
    assert found["data"] == chosen
    assert recommended(rows[:1]) is None
