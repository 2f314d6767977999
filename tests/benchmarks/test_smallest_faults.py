"""The table of the smallest faults has the nearest row of each group, by the numbers that follow from it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_ddpscale.thresholds.loading import load_thresholds
from pytest_ddpscale.util.packaged import packaged
from tests.benchmarks.scripts import benchmark

smallest = benchmark("smallest_faults")
SITE = """
schema_version: 2
extends: packaged
sources: {ours: our runs}
skus:
  b200:
    change: [{generation_ratio: 1, of: resnet50-fp16, versus: h200, severity: off, who: A. Name, why: a test}]
    peers: {computing: 4 %, host: off}
    requirements:
      - {matmul_tflops: 1300, probe: matmul-bf16-10240, published: ours, margin: 5 %, severity: fail}
      - {matmul_tflops: 1300, probe: matmul-fp16-10240, sound: 1625, provisional: a guess}
      - {matmul_tflops: 70, probe: matmul-fp32, provisional: a guess}
      - {step_time_p95: {8: 400}, of: resnet152-fp16, published: ours, margin: 10 %}
      - {throughput_per_gpu: {1: 3000, 2: 2900}, of: [resnet50-nchw-fp16, resnet152-fp16], sound: 4000,
         provisional: a guess}
"""


def printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["smallest_faults.py", *arguments])
    code = smallest.main()
    return code, *capsys.readouterr()


def test_the_nearest_row_of_a_group_is_shown_with_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(SITE, encoding="utf-8")
    code, table, _ = printed(monkeypatch, capsys, "b200", "--thresholds", str(site))
    nearest = dict(line.strip("| ").split(" | ") for line in table.splitlines())
    assert code == 0
    assert nearest["matmul"] == "rejects 5 %"
    assert nearest["training speed, several GPUs"] == "rejects 10 %"
    assert nearest["training speed, one GPU"] == "warns 25 %", "the packaged rows are replaced"


def test_each_requirement_on_speed_is_in_a_group() -> None:
    left = set[str]()
    for sku in load_thresholds(packaged("thresholds.yaml")).thresholds.skus.values():
        left |= {one.metric for one in sku.requirements if one.definition.tells_speed and not smallest.group_of(one)}
    assert left <= {"throughput_per_gpu", "images_per_joule"}, "between nodes, and energy"


def test_a_rejecting_row_that_nobody_knows_the_fault_of_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(
        SITE.replace("probe: matmul-fp32, provisional", "probe: matmul-fp32, severity: fail, provisional"), "utf-8"
    )
    code, _, errors = printed(monkeypatch, capsys, "b200", "--thresholds", str(site))
    assert code == 1
    assert "no sound value, but it rejects: matmul_tflops of matmul-fp32 at world size 1" in errors


def test_an_unknown_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        printed(monkeypatch, capsys, "b20")
    assert "no SKU 'b20'" in capsys.readouterr().err
