"""`ddpscale find-max-batch`, as a person types it; what a gang would say is played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale import cli
from pytest_ddpscale.errors import GangError
from pytest_ddpscale.find_batch import trial
from pytest_ddpscale.find_batch.trial import BatchTrial
from pytest_ddpscale.node.survey import GpusHere
from pytest_ddpscale.plan.study import Plan
from pytest_ddpscale.thresholds.loading import load_thresholds
from tests.builders.sessions import gpu
from tests.suites.conftest import exit_code

GIB = 2**30
FITTING = 40


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Plans whose batches were tried, of which those up to 40 fit; no rank starts."""
    plans: list[Plan] = []

    def play(plan: Plan, *_: Any) -> BatchTrial:
        plans.append(plan)
        batch = plan.studies[0].workload.batch_size
        if batch > FITTING:
            return BatchTrial(batch, False, "OutOfMemoryError on rank 0 in warm-up")
        return BatchTrial(batch, True, "", batch * GIB, 100 * GIB, 100.0 - batch)

    monkeypatch.setattr(trial, "try_batch", play)
    return plans


def run(*arguments: str) -> int:
    return exit_code("find-max-batch", *arguments)


def test_the_workloads_of_the_sku_are_tried_one_after_the_other(
    tried: list[Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "found.json"
    assert run("--gpu-sku=cpu", "--ranks=2", "--json", str(file)) == 0
    assert [plan.studies[0].workload.batch_size for plan in tried] == 2 * [8, 16, 32, 64, 48, 40]
    said = capsys.readouterr().out
    assert "shuffle96-fp32 (shufflenet_v2_x0_5, fp32, 96 px, contiguous) on 2 ranks" in said
    assert "      48  no           -       -              -  OutOfMemoryError on rank 0 in warm-up\n" in said
    assert "The largest batch is 40 images per rank (40.00 GiB, 40 %); the next, 48, does not fit" in said
    assert "The fastest batch was 8" in said
    found = json.loads(file.read_text())
    assert (found["sku"], found["ranks"], found["fraction"], found["steps"]) == ("cpu", 2, 0.9, 12)
    assert [(one["workload"], one["largest"]) for one in found["workloads"]] == [
        ("shuffle96-fp32", 40),
        ("shufflenet-fp32", 40),
    ]


def test_nothing_that_fits_is_an_exit_code_of_its_own(tried: list[Plan], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--gpu-sku=cpu", "--least=48", "--ranks=1") == 1
    assert "No batch fits: with the smallest, 48 images per rank" in capsys.readouterr().out


def test_a_model_that_no_requirement_names(tried: list[Plan]) -> None:
    assert run("--gpu-sku=cpu", "--model=resnet34", "--precision=bf16", "--image-size=96", "--ranks=3", "--most=8") == 0
    [study] = tried[0].studies
    workload = study.workload
    assert (workload.name, workload.precision, workload.family.image_size) == ("resnet34-bf16", "bf16", 96)
    assert {arm.name for arm in study.arms} == {"alone", "ddp@2", "ddp@3", "no_sync@3", "each@3"}


def test_all_gpus_of_the_node_train_at_once(tried: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [gpu(index, "NVIDIA A100-SXM4-80GB") for index in range(4)]
    monkeypatch.setattr(cli, "_gpus_here", lambda: GpusHere(gpus))
    assert run("--gpu-sku=auto", "--workload", "resnet50-fp16", "resnet152-fp16", "--most=8") == 0
    assert [(plan.sku, plan.device_type, plan.world_size) for plan in tried] == [("a100-sxm4-80gb", "cuda", 4)] * 2
    assert run("--gpu-sku=a100", "--ranks=5") == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--least=12"], "--least: found '12'; expected a multiple of 8 up to 65536"),
        (["--most=0"], "--most: found '0'; expected a multiple of 8"),
        (["--least=64", "--most=32"], "--least: found 64, but --most is 32; expected at most 32."),
        (["--steps=4"], "--steps: found '4'; expected at least 8 steps"),
        (["--fraction=90"], "--fraction: found '90'; expected a number from 0.05 to 1"),
        (["--ranks=none"], "--ranks: found 'none'; expected a whole number from 1 to 64"),
        (
            ["--workload", "resnet19"],
            "--workload: found 'resnet19'; expected some of shuffle96-fp32, shufflenet-fp32.",
        ),
        (["--model=resnet18"], "--precision: --model needs it"),
        (["--model=resnet", "--precision=fp32"], "--model: found 'resnet'; expected a classification model"),
        (["--precision=fp32"], "--precision: found 'fp32' without --model"),
        (["--model=resnet18", "--precision=fp32", "--workload", "x"], "--workload: found beside --model"),
        (["--gpu-sku=b2000"], "--gpu-sku: "),
        (["--thresholds=/nowhere.yaml"], "/nowhere.yaml: does not exist"),
    ],
)
def test_a_mistake_is_told_before_anything_is_tried(
    tried: list[Plan], arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*(["--gpu-sku=cpu"] if "sku" not in arguments[0] else []), *arguments) == 4
    assert said in capsys.readouterr().err
    assert tried == []


def test_a_gang_that_fails_is_a_sentence_and_what_was_found_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(plan: Plan, *_: Any) -> BatchTrial:
        raise GangError("r with 8 images per rank", "rank 1 on n1 failed in warm-up: ValueError: no")

    monkeypatch.setattr(trial, "try_batch", fail)
    file, earlier = tmp_path / "found.json", tmp_path / "earlier.json"
    earlier.write_text("yesterday's")
    for at in (file, earlier):
        assert run("--gpu-sku=cpu", "--ranks=1", "--json", str(at)) == 3
        said = capsys.readouterr().err
        assert said == "ddpscale: r with 8 images per rank: rank 1 on n1 failed in warm-up: ValueError: no.\n"
    assert json.loads(file.read_text())["workloads"] == []
    assert earlier.read_text() == "yesterday's"


def test_ctrl_c_is_no_traceback_and_keeps_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt_the_second(plan: Plan, *_: Any) -> BatchTrial:
        if (batch := plan.studies[0].workload.batch_size) > 8:
            raise KeyboardInterrupt
        return BatchTrial(batch, True, "", batch * GIB, 100 * GIB, 92.0)

    monkeypatch.setattr(trial, "try_batch", interrupt_the_second)
    file = tmp_path / "found.json"
    assert run("--gpu-sku=cpu", "--ranks=1", "--json", str(file)) == 130
    assert capsys.readouterr().err == "ddpscale: interrupted.\n"
    [kept] = json.loads(file.read_text())["workloads"]
    assert (kept["largest"], [trial["batch"] for trial in kept["trials"]]) == (None, [8])


class TestOverlays:
    def test_a_new_file_extends_the_thresholds(
        self, tried: list[Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        site, new = tmp_path / "site.yaml", tmp_path / "new.yaml"
        ours = "schema_version: 2\nextends: packaged\nskus:\n  cpu:\n    batch: {shuffle96-fp32: {per_gpu: 8}}\n"
        site.write_text(ours)
        given = "--gpu-sku=cpu", "--workload", "shuffle96-fp32", "--ranks=1"
        assert run(*given, "--thresholds", str(site), "--write", str(new)) == 0
        assert site.read_text() == ours
        assert "extends: site.yaml\n" in new.read_text()
        assert load_thresholds(new).thresholds.skus["cpu"].workloads["shuffle96-fp32"].batch_size == 40
        said = capsys.readouterr().out
        assert new.read_text() in said
        assert f"Wrote {new}." in said
        assert run(*given, "--write", str(tmp_path / "third.yaml")) == 0
        assert "extends: packaged\n" in (tmp_path / "third.yaml").read_text()

    def test_what_does_not_fit_is_not_written(self, tried: list[Plan], tmp_path: Path) -> None:
        overlay = tmp_path / "site.yaml"
        assert run("--gpu-sku=cpu", "--ranks=1", "--least=48", "--write", str(overlay)) == 1
        assert not overlay.exists()

    def test_an_existing_file_is_refused_before_anything_is_tried(
        self, tried: list[Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "site.yaml").write_text("# ours\n")
        assert run("--gpu-sku=cpu", "--ranks=1", "--write", str(tmp_path / "site.yaml")) == 4
        assert f"--write: found {tmp_path / 'site.yaml'}, which exists" in capsys.readouterr().err
        assert (tried, (tmp_path / "site.yaml").read_text()) == ([], "# ours\n")

    @pytest.mark.parametrize("option", ["--write", "--json"])
    def test_a_folder_that_is_not_there_is_told_before_anything_is_tried(
        self, tried: list[Plan], tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("--gpu-sku=cpu", "--ranks=1", option, str(tmp_path / "nowhere" / "file")) == 4
        assert str(tmp_path / "nowhere") in capsys.readouterr().err
        assert tried == []

    def test_another_model_has_no_place_in_one(
        self, tried: list[Plan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        given = "--model=resnet34", "--precision=fp32", "--write", str(tmp_path / "site.yaml")
        assert run("--gpu-sku=cpu", *given) == 4
        assert "--write: found beside --model" in capsys.readouterr().err
