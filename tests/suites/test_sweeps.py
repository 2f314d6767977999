"""Suites in rounds, played at known paces: what is planned, what is concluded, and what is told of what is missing."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.judge.stats import Estimate
from pytest_ddpscale.plan.arm import Arm
from pytest_ddpscale.plan.study import Study
from pytest_ddpscale.suites.ddp_benchmark import PytorchDdp
from pytest_ddpscale.suites.engine import Suite
from pytest_ddpscale.suites.factors import Factors, data_moved
from pytest_ddpscale.suites.inference import DataParallel, Inference, findings_of
from pytest_ddpscale.suites.input_pipeline import InputPipeline, recommended
from pytest_ddpscale.suites.results import Row
from tests.approved import assert_approved
from tests.builders.image_folder import image_folder
from tests.suites.planned import A6000, TWO_NODES, Pace, planned, played, text_of, wavering

CPU = ("--gpu-sku=cpu",)
ONE, OURS, APPLY, NATIVE, RANKS = "infer@1", "vanilla_parallel@4", "parallel_apply@4", "data_parallel@4", "infer@4"
# Images per second of all devices together, by batch.
SPLIT = {32: {ONE: 1000, OURS: 800, APPLY: 1600, NATIVE: 900, RANKS: 1800},
         64: {ONE: 1000, OURS: 2700, APPLY: 3000, NATIVE: 3500, RANKS: 3500}}  # fmt: skip
INFERRED = {32: (1000.0, 1.0), 64: (2000.0, 0.95), 128: (2010.0, 0.9), 256: (2010.0, 1.1)}
LOADED = {"data=synthetic": 100, "workers=0": 50, "workers=2,prefetch=2": 80, "workers=4,prefetch=2": 80}


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


SUITES: dict[str, tuple[Suite, str, Pace]] = {
    "inference": (Inference(), "", shared),
    "data-parallel": (DataParallel(), "--batches=32,64", split),
    "factors": (Factors(), "--batches=1024,256 --models=vgg16,alexnet --hidden-sizes=4096,1024", by_batch_and_ranks),
    "factors-of-one-value": (Factors(), "--batches=8 --models=resnet18", by_batch_and_ranks),
    "input-pipeline": (InputPipeline(), "--folder=images --workers=0,2,4 --batch=4", loaded),
}


@pytest.mark.parametrize("name", SUITES)
def test_it_is_told_as_approved_also_where_studies_break(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is; the last study broke after two rounds, or before any, or all did; a rank, or all of it, is lost."""
    image_folder(tmp_path / "images", images=3)
    monkeypatch.chdir(tmp_path)
    suite, options, pace = SUITES[name]
    plan = planned(suite, *options.split())
    last = plan.studies[-1]
    ended: list[dict[str, int]] = [{}, {last.id: 2}, {last.id: 0}, dict.fromkeys(plan.study_ids, 0)]
    lost = (lambda *one: one[2] == 3, lambda study, arm, rank: (study, arm) == (last, last.arms[-1]))
    measured = [played(plan, pace, one, 0.04) for one in ended]
    measured += [played(plan, pace, {}, 0.04, one) for one in lost]
    told = text_of(*map(suite.results, measured))
    assert_approved(f"suite-{name}.txt", told.replace(str(tmp_path), "FOLDER"))


PLANS: list[tuple[Suite, str, int, tuple[str, ...]]] = [
    (DataParallel(), "--batches='256, 32,32'", 3, A6000),  # shared by all devices, rounded up
    (DataParallel(), "--batches=4", 2, CPU),
    (Factors(), "", 4, A6000), (Factors(), "--feature-weights=/weights --ddp-rounds=9 --batches=8,4,8", 2, A6000),
    (Factors(), "--batches=8 --models=resnet18", 8, A6000),  # by default no more than four
    (PytorchDdp(), "--bucket-sizes=5,25 --models=resnet50,resnet101", 6, TWO_NODES),
]  # fmt: skip


def test_what_is_planned_is_as_approved() -> None:
    """Of the factors each other workload differs from the first in one: the experiment of `PUBLISHED`."""
    lines = list[str]()
    for suite, options, gpus, sku in PLANS:
        lines.append(f"{suite.name} {options} on {gpus} GPUs of {sku[1:2]}:")
        for study in planned(suite, *shlex.split(options), gpus=gpus, sku=sku).studies:
            of, family = study.workload, study.workload.family
            what = f"{of.precision}, {family.feature_weights}, {family.classifier_parameters} trained"
            lines.append(f"  {of.name}, {study.rounds} rounds, {what}: {' '.join(arm.name for arm in study.arms)}")
    assert_approved("suite-plans.txt", "\n".join([*lines, ""]))


# Banerjee and Shah, "Benchmarking Distributed Training and Inference on NVIDIA's A6000 GPUs": trained parameters. Its
# times are figures without numbers. docs/evidence/documents.md lists where it contradicts itself.
PUBLISHED = {119_586_826, 55_599_114, 26_750_986, 5_130, 54_575_114, 21_020_682}


def test_trained_parameters_and_data_moved_are_those_of_the_published_experiment() -> None:
    assert {study.workload.family.classifier_parameters for study in planned(Factors()).studies} == PUBLISHED
    assert data_moved(max(PUBLISHED), 1024, 4) == pytest.approx(4 * 60_000 / (1024 * 4) * max(PUBLISHED) / 1e9)


def test_an_arm_of_one_process_has_several_devices_and_no_other_has() -> None:
    for kind, ranks, devices in (("infer", 1, 2), ("vanilla_parallel", 1, 1), ("vanilla_parallel", 2, 2)):
        with pytest.raises(ValueError, match=rf"{ranks} ranks has {devices} devices; expected 1, or at least 2 for"):
            Arm(kind, ranks, 4, devices=devices)


Ends = list[Any]
# Of the throughput of batches.
LIMITS: list[Ends] = [
    [(50, 51), (90, 91), (99, 101), (99, 101)], [(50, 51), (90, 97), (99, 101), (99, 101)],
    [(50, 51), (60, 61), (80, 81), (99, 101)], [(50, 51)],
]  # fmt: skip
FASTEST = (1.0, 1.0)
# Of efficiencies by workers, and of their throughput over the fastest's.
LOADING: list[tuple[Ends, Ends]] = [
    ([(0.951, 0.99), (0.90, 0.94)], [FASTEST, FASTEST]), ([(0.90, 0.949), (0.91, 0.94)], [(0.5, 0.6), FASTEST]),
    ([(0.90, 0.949), (0.91, 0.96)], [(0.96, 1.0), FASTEST]),  # another setting may keep up
    ([(0.5, 0.6), (0.97, 0.99)], [(0.70, 1.01), FASTEST]),  # 24 % slower, and not shown to be
    ([(0.90, 0.96)], [FASTEST]), ([()], [()]),
]  # fmt: skip


def test_conclusions_go_as_far_as_intervals_do() -> None:
    """Saturated is the smallest batch not shown to be slower; the fewest workers that keep up are to be set."""
    lines = list[str]()
    for ends in LIMITS:
        paces: list[Row] = [
            {"batch": at, "ranks": 8, "samples_per_s_per_gpu": Estimate(sum(one), (one[0], one[-1]))}
            for at, one in enumerate(ends)
        ]
        lines.append(f"{ends}: {[*findings_of(paces, 'img/s')][1:]}")
    for case in LOADING:
        settings: list[Row] = [{"data": "synthetic"}] + [
            {"data": workers, "efficiency": Estimate(0.5, one or None), "to_fastest": Estimate(1.0, other or None)}
            for workers, (one, other) in enumerate(zip(*case, strict=True))
        ]
        chosen = recommended(settings)
        lines.append(f"{case}: workers {chosen and chosen['data']}")
    assert_approved("suite-conclusions.txt", "\n".join([*lines, ""]))
