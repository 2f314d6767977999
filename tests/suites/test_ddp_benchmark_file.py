"""A report of PyTorch's DDP benchmark is read whole, or refused in one sentence."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.suites.ddp_benchmark import DdpBenchmarkResult, read_ddp_benchmark, size_name
from pytest_ddpscale.util.command_parser import USER_ERROR
from tests.rows import rows

SAID: dict[str, Any] = {
    "pytorch_version": "2.9.0", "cuda_version": None, "distributed_backend": "nccl", "bucket_size": 25,
    "benchmark_results": [
        {"model": "resnet50", "batch_size": 32, "result": [
            {"ranks": [0], "measurements": [0.1, 0.11]},
            {"ranks": [0], "measurements": [0.1, 0.12]},
            {"ranks": [0, 1], "measurements": [0.1, 0.12, 0.2, 0.14]},
        ]},
    ],
}  # fmt: skip

Change = Callable[[dict[str, Any]], Any]


def changed(change: Change) -> str:
    said = copy.deepcopy(SAID)
    change(said)
    return json.dumps(said)


def results(said: dict[str, Any]) -> Any:
    return said["benchmark_results"][0]["result"]


def test_it_is_read_as_that_benchmark_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(SAID))
    found = read_ddp_benchmark(path)
    assert found.configuration["cuda_version"] is None
    assert found.benchmarks[0].name == "resnet50 with batch size 32"
    assert [len(one.ranks) for one in found.benchmarks[0].with_ddp.values()] == [1, 2]


def test_steps_of_ranks_that_wait_for_each_other_count_once() -> None:
    result = DdpBenchmarkResult((0, 1), (1.0, 2.0, 3.0, 3.0, 2.0, 5.0))
    assert result.separate_s.tolist() == [2.0, 2.0, 4.0]
    assert DdpBenchmarkResult((0, 1), result.measurements, (1, 2)).separate_s.tolist() == [2.0, 3.0]


@rows(("gpus", "per_machine", "name"), [(4, 8, "1M/4G"), (8, 8, "1M/8G"), (24, 8, "3M/8G"), (4, 2, "2M/2G")])
def test_sizes_are_named_by_machines(gpus: int, per_machine: int, name: str) -> None:
    assert size_name(gpus, per_machine) == name


def result(place: int, **changes: Any) -> str:
    return changed(lambda said: results(said)[place].update(changes))


BAD: list[tuple[str, str]] = [
    ("{", "Expecting"),
    ("[1]", "Expected `object`, got `array`"),
    (json.dumps({"benchmarks": []}), "it has no 'pytorch_version'"),
    (changed(lambda said: said.pop("benchmark_results")), "it has no 'benchmark_results'"),
    (changed(lambda said: said.update(benchmark_results=[])), "Expected `array` of length >= 1"),
    (changed(lambda said: said.update(bucket_size=[25])), "got `array`"),
    (result(1, measurements=[]), "Expected `array` of length >= 1"),
    (result(1, measurements=[0.0, 0.1]), "Expected `float` >= 1e-09"),
    (result(1, measurements=[float("nan")]), "NaN is not JSON"),
    (result(1, measurements=["0.1"]), "Expected `float`, got `str`"),
    (result(2, measurements=[0.1] * 3), "3 measurements of 2 ranks"),
    (result(1, ranks=[]), "Expected `array` of length >= 1"),
    (changed(lambda said: results(said).pop(0) and results(said).pop(0)), "is of 2 ranks; expected one GPU without"),
    (changed(lambda said: said["benchmark_results"].append(said["benchmark_results"][0])), "a model is there twice"),
    (changed(lambda said: said["benchmark_results"][0].update(batch_size=0)), "Expected `int` >= 1"),
    (changed(lambda said: said.update(gpus_per_machine="8")), "Expected `int`, got `str` - at `$.gpus_per_machine`"),
    ("[" * 100_000, "nested too deeply"),
    ("\0", "Expecting value"),
]


@rows(("text", "why"), BAD)
@rows("command", [("import", "pytorch-ddp"), ("compare",)])
def test_what_is_no_report_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], text: str, why: str
) -> None:
    path, sound = tmp_path / "bad.json", tmp_path / "sound.json"
    path.write_text(text)
    sound.write_text(json.dumps(SAID))
    assert main([*command, *([str(sound)] if command == ("compare",) else []), str(path)]) == USER_ERROR
    told = capsys.readouterr()
    assert why in told.err
    assert str(path) in told.err
    assert len(told.err.splitlines()) == 1
    assert told.out == ""


def test_a_file_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "pytorch-ddp", str(tmp_path / "none.json")]) == USER_ERROR
    assert "none.json: cannot be read as a report (No such file or directory)" in capsys.readouterr().err
