"""The table of the smallest faults has each row of a file once, with the numbers that follow from it."""

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


def test_a_row_has_a_line_with_what_follows_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(SITE, encoding="utf-8")
    code, table, _ = printed(monkeypatch, capsys, "b200", "--thresholds", str(site))
    lines = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    of = {(cells[1], cells[5].rstrip(" |")): cells for cells in lines if len(cells) > 2}
    assert code == 0
    assert of["matmul-bf16-10240", "rejects, published"][2:5] == ["≥ 1235 TFLOPS", "1300", "5 %"]
    assert of["matmul-fp16-10240", "warns"][2:5] == ["≥ 1300 TFLOPS", "1625", "20 %"]
    assert of["matmul-fp32", "warns"][2:5] == ["≥ 70 TFLOPS", "–", "not known"]
    assert of["step_time_p95: resnet152-fp16; 8", "rejects, published"][2:5] == ["≤ 440 ms", "400", "10 % more"]
    nearest = {cells[0].removeprefix("| "): cells[1].rstrip(" |") for cells in lines if len(cells) == 2}
    assert nearest["matmul"] == "rejects 5 %"
    assert nearest["training speed, several GPUs"] == "rejects 10 %"
    assert nearest["training speed, one GPU"] == "warns 25 %", "the packaged row is replaced"
    speed = "throughput_per_gpu: resnet50-nchw-fp16, resnet152-fp16"
    assert of[speed, "warns"][2:5] == ["≥ 3000 img/s", "4000", "25 %"]
    assert of[f"{speed}; 2", "warns"][2:5] == ["≥ 2900 img/s", "4000", "28 %"], "of several GPUs in another group"
    peers = {cells[0].removeprefix("| "): cells[2:5] for cells in lines if cells[0].startswith("| peers")}
    assert peers["peers: computing"] == ["≤ 1.04 ×", "1", "4 % more time, from 5 GPUs; 8 % more time of 4"]
    assert peers["peers: memory"] == ["≤ 1.1 ×", "1", "9.1 %, from 5 GPUs; 17 % of 4"], "of the packaged file"
    assert peers["peers: host"][0] == "off"


def test_every_requirement_of_every_gpu_is_in_a_row_once() -> None:
    for name, sku in load_thresholds(packaged("thresholds.yaml")).thresholds.skus.items():
        rows = [one for _, row in smallest.rows_of(sku, with_others=True) for one in row]
        compared = [one for one in sku.requirements if one.definition.reads_own_pace or one.definition.compares_places]
        assert len(rows) + len(compared) + len(sku.checks) == len(sku.requirements), name
        assert len(set(rows)) == len(rows)


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
