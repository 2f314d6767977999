"""`ddpscale find-max-batch`, as a person types it; what a gang would say is played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.errors import GangError
from pytest_ddpscale.find_batch import trial
from pytest_ddpscale.find_batch.trial import BatchTrial
from pytest_ddpscale.node.survey import GpusHere
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.session import open as opening
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.approved import assert_approved
from tests.builders.sessions import gpu
from tests.suites.conftest import exit_code

GIB = 2**30
FITTING, PACE = 40, "samples_per_s_per_gpu"
WHY = "OutOfMemoryError on rank 0 in warm-up"


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Plans whose batches were tried, of which those up to 40 fit; no rank starts."""
    plans: list[Plan] = []

    def play(plan: Plan, *_: Any) -> BatchTrial:
        plans.append(plan)
        batch = plan.studies[0].workload.batch_size
        if batch > FITTING:
            return BatchTrial(batch, False, WHY)
        return BatchTrial(batch, True, "", batch * GIB, 100 * GIB, 100.0 - batch)

    monkeypatch.setattr(trial, "try_batch", play)
    return plans


def run(*arguments: str) -> int:
    return exit_code("find-max-batch", "--gpu-sku=cpu", "--ranks=2", *arguments)


def test_the_workloads_of_the_sku_are_tried_one_after_the_other(
    tried: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trial, "memory_limit", lambda: (2 * GIB, "that is free on this machine"))
    file = tmp_path / "found.json"
    assert run("--json", str(file)) == 0
    assert [plan.studies[0].workload.batch_size for plan in tried] == 2 * [8, 16, 32, 64, 48, 40]
    found = json.loads(file.read_text())
    assert (found["sku"], found["ranks"], found["fraction"], found["steps"]) == ("cpu", 2, 0.9, 12)
    assert [one["workload"] for one in found["workloads"]] == ["shuffle96-fp32", "shufflenet-fp32"]
    one = found["workloads"][1]
    assert (one["arms"], one["largest"], one["fastest"]) == (["alone", "ddp@2", "each@2", "no_sync@2"], 40, 8)
    assert one["trials"][-2:] == [
        {"batch": 48, "fits": False, "why_not": WHY} | dict.fromkeys(("peak_bytes", "limit_bytes", PACE)),
        {"batch": 40, "fits": True, "why_not": "", "peak_bytes": 40 * GIB, "limit_bytes": 100 * GIB, PACE: 60.0},
    ]
    assert run("--workload", "shufflenet-fp32", "--least=40", "--most=40") == 0
    assert run("--workload", "shufflenet-fp32", "--least=48") == 1, "nothing fits"
    assert_approved("find-max-batch.txt", capsys.readouterr().out)


def test_a_model_that_no_requirement_names(tried: list[Plan]) -> None:
    assert run("--model=resnet34", "--precision=bf16", "--image-size=96", "--ranks=3", "--most=8") == 0
    [study] = tried[0].studies
    workload = study.workload
    assert (workload.name, workload.precision, workload.family.image_size) == ("resnet34-bf16", "bf16", 96)
    assert {arm.name for arm in study.arms} == {"alone", "ddp@2", "ddp@3", "no_sync@3", "each@3"}


def test_all_gpus_of_the_node_train_at_once(
    tried: list[Plan], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus = [gpu(index, "NVIDIA A100-SXM4-80GB") for index in range(4)]
    monkeypatch.setattr(opening, "gpus_here", lambda: GpusHere(gpus))
    on_a100 = "find-max-batch", "--most=8", "--workload", "resnet50-fp16", "resnet152-fp16"
    assert exit_code(*on_a100) == 0
    assert [(plan.sku, plan.device_type, plan.world_size) for plan in tried] == [("a100-sxm4-80gb", "cuda", 4)] * 2
    assert "(resnet50, fp16, 224 px, channels_last) on 4 ranks, arms alone, " in (said := capsys.readouterr().out)
    assert ": within 90 % of the memory of each GPU\n" in said
    assert exit_code(*on_a100, "--gpu-sku=a100", "--ranks=5") == 4


@pytest.mark.parametrize(("arguments", "said"), [
    (["--least=12"], "--least: found '12'; expected a multiple of 8"),
    (["--most=0"], "--most: found '0'; expected a whole number from 8"),
    (["--least=64", "--most=32"], "--least: found 64; expected at most 32, as --most says."),
    (["--steps=4"], "--steps: found '4'; expected a whole number from 8"),
    (["--fraction=90"], "--fraction: found '90'; expected a share such as 5% or 0.05, from 5% to 100%"),
    (["--ranks=none"], "--ranks: found 'none'; expected a whole number from 1"),
    (["--workload", "resnet19"], "--workload: found 'resnet19'; expected some of shuffle96-fp32, shufflenet-fp32."),
    (["--model=resnet18"], "--model: found resnet18, --precision none, --workload none; expected a model and its"),
    (["--model=resnet", "--precision=fp32"], "--model: found 'resnet'; expected a classification model"),
    (["--precision=fp32"], "--model: found none, --precision fp32"),
    (["--model=resnet18", "--precision=fp32", "--workload", "x"], "--precision fp32, --workload x; expected"),
    (["--gpu-sku=b2000"], "--gpu-sku: "),
    (["--thresholds=/nowhere.yaml"], "/nowhere.yaml: does not exist"),
    (["--write", "site.yaml"], "--write: found site.yaml, which exists"),
    (["--write", "nowhere/file"], "--write: found nowhere/file, whose folder cannot be written"),
    (["--json", "nowhere/file"], "nowhere/file"),
    (["--model=resnet34", "--precision=fp32", "--write", "new.yaml"], "--write: found beside --model"),
])  # fmt: skip
def test_a_mistake_is_told_before_anything_is_tried(
    tried: list[Plan], arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("site.yaml").write_text("# ours\n")
    assert run(*arguments) == 4
    assert said in capsys.readouterr().err
    assert (tried, Path("site.yaml").read_text(), len([*tmp_path.iterdir()])) == ([], "# ours\n", 1)


@pytest.mark.parametrize(("end", "code", "said"), [
    (GangError("r with 16 images per rank", "rank 1 failed"), 3, "r with 16 images per rank: rank 1 failed."),
    (KeyboardInterrupt(), 130, "interrupted."),
])  # fmt: skip
def test_what_ends_a_search_is_a_sentence_and_keeps_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: BaseException, code: int,
    said: str,
) -> None:  # fmt: skip
    def play(plan: Plan, *_: Any) -> BatchTrial:
        if (batch := plan.studies[0].workload.batch_size) > fitting:
            raise end
        return BatchTrial(batch, True, "", batch * GIB, 100 * GIB, 92.0)

    monkeypatch.setattr(trial, "try_batch", play)
    file = tmp_path / "found.json"
    file.write_text("yesterday's")
    for fitting in (0, 8):
        assert run("--json", str(file)) == code
        assert capsys.readouterr().err == f"ddpscale: {said}\n"
        assert fitting or file.read_text() == "yesterday's"
    [kept] = json.loads(file.read_text())["workloads"]
    assert (kept["largest"], [trial["batch"] for trial in kept["trials"]]) == (None, [8])


def test_a_new_file_extends_the_thresholds(
    tried: list[Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, new, third = (tmp_path / f"{name}.yaml" for name in ("site", "new", "third"))
    ours = "schema_version: 2\nextends: packaged\nskus:\n  cpu:\n    batch: {shuffle96-fp32: {per_gpu: 8}}\n"
    site.write_text(ours)
    assert run("--workload", "shuffle96-fp32", "--thresholds", str(site), "--write", str(new)) == 0
    assert site.read_text() == ours
    assert "extends: site.yaml\n" in new.read_text()
    assert load_thresholds(new).thresholds.skus["cpu"].workloads["shuffle96-fp32"].batch_size == 40
    assert f"{new.read_text()}\nWrote {new}. Next: pytest --gpu-sku=cpu" in capsys.readouterr().out
    assert run("--least=48", "--write", str(third)) == 1
    assert not third.exists()
    assert run("--write", str(third)) == 0
    assert "extends: packaged\n" in third.read_text()
