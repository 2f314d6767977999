"""Tuning finds the settings that gain, and recommends nothing where nothing differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddpscale.families.image import ImageFamily
from pytest_ddpscale.plan.arm import USUAL
from pytest_ddpscale.plan.workload import Workload
from pytest_ddpscale.suites import tune
from pytest_ddpscale.suites.tune import USUAL_SETTINGS, Tune, promising, setting_of, settings_of
from tests.approved import assert_approved
from tests.suites.planned import text_of
from tests.suites.played_tune import PlayedTune

VARIABLES = tune.nccl_variables
WORKLOAD = Workload("r-fp32", ImageFamily("resnet18", image_size=64, memory_format="contiguous"), "fp32", 16)
QUIET = {"round_sd": 0.0005, "launch_sd": 0.0}
# What is typed, what gains how much, and how much rounds and launches differ.
PLAYED: list[tuple[str, dict[str, float], dict[str, Any]]] = [
    ("", {"gradient_as_bucket_view=True": 1.10, "accumulation_steps=4": 1.3}, {}),
    ("--try=OMP_NUM_THREADS=2", {"OMP_NUM_THREADS=2": 0.8}, {}),
    ("--try=NCCL_ALGO=Ring", {"NCCL_ALGO=Ring": 1.2}, {}),
    ("", {"static_graph=True": 1.004}, QUIET),  # not worth a change, so not measured again
    ("--try=NCCL_ALGO=Ring", {"NCCL_ALGO=Ring": 1.004}, QUIET),
    ("--try=uneven_share=0.5", {"uneven_share=0.5": 1.5}, QUIET),  # a cost, whatever it is
]  # fmt: skip


def test_a_gain_is_recommended_once_further_launches_confirm_it_and_it_is_worth_a_change() -> None:
    """Variables are compared gang by gang, whose order alternates; gloo reads none of NCCL."""
    runs = [PlayedTune(*options.split(), gains=gains, **noise).measured() for options, gains, noise in PLAYED]
    low, high = Tune().results(runs[0]).tables[0].rows[1]["further_launches"].interval
    assert low < 1.10 < high
    of_threads, of_nccl = (run.evidence for run in runs[1:3])
    (usual, *_) = (study.id for study in of_threads.plan.studies if not setting_of(study))
    runs += [
        replace(runs[2], evidence=replace(of_nccl, plan=replace(of_nccl.plan, device_type="cuda"))),
        replace(runs[1], evidence=replace(of_threads, errors={usual: "rank 0 on n1 failed"})),
    ]
    order = (f"launch {study.launch}: {setting_of(study)}" for study in of_threads.plan.studies)
    assert_approved("suite-tune.txt", text_of(*map(Tune().results, runs)) + "\n".join([*order, ""]))


def test_what_looks_faster_in_one_launch_only_is_not_recommended() -> None:
    # As where memory of one process lies badly: its rounds agree with each other, and not with the next launch.
    runs = [PlayedTune(gains={}, seed=seed, round_sd=0.002, launch_sd=0.04).measured() for seed in range(6)]
    assert any(promising(run) for run in runs), "the first launch alone would have recommended something"
    assert sum(row["is_recommended"] for run in runs for row in Tune().results(run).tables[0].rows) <= 1


def test_variables_are_those_of_the_nccl_beside_torch_and_without_one_all_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "nvidia/nccl/lib/libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"x\0NCCL_ALGO\0NCCL_ALGOS\xff\0NCCL_P2P_LEVEL\0OMP\0")
    monkeypatch.setattr(tune, "find_spec", lambda name: SimpleNamespace(origin=str(tmp_path / name / "__init__.py")))
    assert VARIABLES.__wrapped__() == {"NCCL_ALGO", "NCCL_P2P_LEVEL"}
    library.unlink()
    monkeypatch.setattr(tune, "nccl_variables", VARIABLES.__wrapped__)
    assert settings_of("NCCL_ALGOS=Ring", WORKLOAD) == [(USUAL, (("NCCL_ALGOS", "Ring"),))]


def test_settings_are_as_approved_without_what_the_workload_has_already() -> None:
    lines = list[str]()
    for text in (
        *USUAL_SETTINGS.values(), "batch_size=half,double,32 precision=bf16 A=1 A=1",
        "precision=fp32 memory_format=contiguous compile=no batch_size=16 static_graph=false",
    ):  # fmt: skip
        lines += [text, *(f"  {one.name or environment}" for one, environment in settings_of(text, WORKLOAD))]
    assert_approved("suite-tune-settings.txt", "\n".join([*lines, ""]))
    plan = PlayedTune(f"--try={USUAL_SETTINGS['cuda']}", gains={}).measured().plan
    assert len({setting_of(study) for study in plan.studies}) == 27, "all can be planned, with the usual ones"
    [study] = PlayedTune("--batch=10", "--try=batch_size=double", gains={}).measured().plan.studies
    assert [arm.batch_size for arm in study.arms] == [10, 20]
