"""PyTorch's DDP benchmark: its sizes, its refusal of unlike hosts, and the form of its tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ddpscale.cli import USER_ERROR, main
from pytest_ddpscale.results.run_directory import RunDirectory
from pytest_ddpscale.results.survey_record import Survey
from pytest_ddpscale.suites.ddp_benchmark_table import BenchmarkRow, benchmark_lines
from pytest_ddpscale.suites.pytorch_ddp import PytorchDdp, _arms

SMALL = ("suite", "pytorch-ddp", "--gpu-sku=cpu", "--models=squeezenet1_1", "--batch=2", "--image-size=64",
         "--bucket-sizes=1", "--ddp-block=0.01s", "--ddp-gpus-per-node=2")  # fmt: skip


def test_sizes_are_one_gpu_a_node_and_whole_nodes() -> None:
    names = [arm.name for arm in _arms(8, 2, 32, [1.0])]
    usual = "+broadcast_buffers=False"
    assert names == [
        "alone", f"ddp@1{usual}", f"ddp@2{usual}", f"ddp@4{usual}", f"ddp@8{usual}", f"ddp@16{usual}",
        "ddp@16+bucket_cap_mb=1,broadcast_buffers=False",
    ]  # fmt: skip


def test_a_line_reads_as_in_that_benchmark() -> None:
    row = BenchmarkRow(1, "no ddp", {50: 0.097, 75: 0.097, 90: 0.097, 95: 0.0972})
    line = "   1 GPUs --   no ddp:  p50:  0.097s     329/s  p75:  0.097s     329/s  p90:  0.097s     329/s  p95:  0.097s     329/s"  # noqa: E501 (theirs)
    assert list(benchmark_lines("resnet50", 32, [row]))[-1] == line


def test_hosts_of_another_topology_are_refused() -> None:
    surveys = [
        Survey(host=host, unix_s=0.0, topology=topology) for host, topology in (("a", "X"), ("b", "X"), ("c", "Y"))
    ]
    assert list(PytorchDdp().unfit_of(surveys)) == ["c"]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--models=resnet50,resnet51", "--models: found 'resnet50,resnet51'; expected classification models"),
        ("--bucket-sizes=0", "--bucket-sizes: found '0'; expected sizes in MiB"),
        ("--batch=0", "--batch: found '0'; expected a whole number from 1"),
        ("--gpu-sku=b201", "--gpu-sku"),
    ],
)
def test_a_wrong_value_is_one_sentence(option: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, option]) == USER_ERROR
    told = capsys.readouterr().err
    assert expected in told
    assert len(told.splitlines()) == 1


@pytest.mark.slow
def test_it_is_measured_reported_and_told_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, "--ddp-run-dir=measured"]) == 0
    told = capsys.readouterr().out
    assert "   2 GPUs --    1M/2G:  p50:" in told
    assert "Bucket sizes on 2 GPUs" in told
    run = RunDirectory.open(tmp_path / "measured")
    rows = json.loads(run.suite_json.read_text())["benchmarks"]["squeezenet1_1"]
    assert [row["name"] for row in rows] == ["no ddp", "1M/1G", "1M/2G"]
    assert "<h2>squeezenet1_1</h2>" in (run.path / "report.html").read_text()
    assert main(["report", str(run.path)]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == told.splitlines()[:-1]
