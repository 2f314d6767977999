"""Two reports of PyTorch's DDP benchmark: as its diff.py prints them, and with intervals."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.compare.ddp_benchmark_diff import ComparedSize, compare_reports
from pytest_ddpscale.compare.ddp_benchmark_file import ddp_benchmark_of
from pytest_ddpscale.compare.ddp_benchmark_lines import diff_lines
from pytest_ddpscale.util.command_parser import USER_ERROR
from tests.builders.nights import judged_run
from tests.suites.published_ddp_benchmark import bucket_size_1_report, example_report, report, written

Printed = pytest.CaptureFixture[str]
RANKS = 2
# What PyTorch's own diff.py prints of the two reports that tests/suites/published_ddp_benchmark.py makes.
THEIRS = """\
                                 baseline                      test
                     --------------------      --------------------
bucket_size:                           25  vs                     1
cuda_version:                        10.0  vs                  10.0
distributed_backend:                 nccl  vs                  nccl
pytorch_version:          1.4.0a0+05140f0  vs       1.4.0a0+05140f0

Benchmark: resnet50 with batch size 32

                  sec/iter    ex/sec      diff        sec/iter    ex/sec      diff
   1 GPUs:  p75:    0.101s     316/s     -1.0%  p95:    0.101s     316/s     -1.0%
   2 GPUs:  p75:    0.104s     307/s     -1.0%  p95:    0.104s     307/s     -1.0%
   4 GPUs:  p75:    0.105s     304/s     -1.9%  p95:    0.105s     304/s     -1.9%
   8 GPUs:  p75:    0.107s     299/s     -2.9%  p95:    0.107s     299/s     -2.9%
  16 GPUs:  p75:    0.108s     296/s     -3.8%  p95:    0.122s     262/s    -17.3%

Benchmark: resnet101 with batch size 32

                  sec/iter    ex/sec      diff        sec/iter    ex/sec      diff
   1 GPUs:  p75:    0.172s     186/s     -0.6%  p95:    0.172s     186/s     -0.0%
"""


def steps(seed: int, count: int = 10, slower: float = 1.0, correlation: float = 0.0, model: str = "vgg16") -> Any:
    """A report of one model on one and two GPUs, with 1 % of noise a step that both ranks have alike."""
    draw, results = random.Random(seed), []
    for ranks in (1, 1, RANKS):
        noise, times = 0.0, []
        for _ in range(count):
            noise = correlation * noise + 0.01 * draw.gauss(0, 1)
            times.append(0.1 * slower * (1 + noise))
        own = [time * (1 + 1e-4 * draw.gauss(0, 1)) for _ in range(ranks) for time in times]
        results.append({"ranks": list(range(ranks)), "measurements": own})
    made = report({})
    return made | {"benchmark_results": [{"model": model, "batch_size": 32, "result": results}]}


def on_two(a: Any, b: Any) -> ComparedSize:
    found = compare_reports(ddp_benchmark_of(a, "a"), ddp_benchmark_of(b, "b"), 0.95)
    return found.benchmarks[0].sizes[-1]


def test_it_is_printed_as_pytorch_s_diff_prints_it() -> None:
    found = compare_reports(
        ddp_benchmark_of(example_report(), "25"), ddp_benchmark_of(bucket_size_1_report(), "1"), 0.95
    )
    assert "\n".join(diff_lines(found)).startswith(THEIRS.rstrip("\n"))


def test_a_slower_step_is_shown_with_an_interval_that_holds_it() -> None:
    found = on_two(steps(1), steps(2, slower=1.1))
    assert found.result == "slower"
    assert found.change is not None
    assert found.change.low < 0.1 < found.change.high


def test_steps_of_ranks_are_not_taken_for_more_than_there_are() -> None:
    found = on_two(steps(1), steps(2))
    assert (found.of, found.numbers) == ("steps", (10, 10))


def test_where_nothing_differs_hardly_anything_is_shown_though_steps_correlate() -> None:
    found = [on_two(steps(2 * n, correlation=0.5), steps(2 * n + 1, correlation=0.5)).result for n in range(100)]
    assert sum(one in ("slower", "faster") for one in found) <= 2


def test_too_few_steps_are_said_instead_of_an_interval() -> None:
    assert on_two(steps(1, count=5), steps(2)).result == "no interval: baseline: 5 steps; expected at least 8"


def test_steps_that_correlate_much_have_a_wide_interval() -> None:
    found = [on_two(steps(1), steps(2, count=400, correlation=one, slower=1.1)).change for one in (0.0, 0.97)]
    independent, alike = (one.high - one.low for one in found if one is not None)
    assert alike > 2 * independent


def test_the_exit_code_says_whether_anything_is_surely_slower(tmp_path: Path, capsys: Printed) -> None:
    paths = [
        written(tmp_path / name, said)
        for name, said in (("a.json", steps(1, 20)), ("b.json", steps(2, 20, slower=1.1)))
    ]
    assert main(["compare", *paths, "--fail-below", "5%"]) == 1
    assert "FAIL: worse by more than 5 %: 2: vgg16 with batch size 32 on 1 GPUs, vgg16" in capsys.readouterr().out
    assert main(["compare", *paths, "--fail-below", "20%"]) == 0
    assert "Nothing is certainly worse by more than 20 %." in capsys.readouterr().out
    assert main(["compare", *paths, "--fail-below", "10%"]) == 0, "the far end of an interval fails nothing"
    assert main(["compare", *reversed(paths), "--fail-below", "5%"]) == 0, "faster is no loss"
    capsys.readouterr()
    assert main(["compare", *paths, "--format", "json", "--fail-below", "5%"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (len(said["worse"]), said["lost"], said["fails"]) == (2, [], True)
    last = said["benchmarks"][0]["sizes"][-1]
    assert last["interval"][0] < last["difference"] < last["interval"][1] < 0


def test_what_only_one_of_them_has_is_named(tmp_path: Path, capsys: Printed) -> None:
    first, second = example_report(), bucket_size_1_report()
    del first["benchmark_results"][0]["result"][-1]
    del second["benchmark_results"][2]
    second["benchmark_results"].reverse()
    paths = [written(tmp_path / "a.json", first), written(tmp_path / "b.json", second)]
    assert main(["compare", *paths]) == 0
    told = capsys.readouterr().out
    assert "only in the baseline: resnext50_32x4d with batch size 32\n" in told
    assert "only in the test: resnet50 with batch size 32 on 16 GPUs\n" in told
    assert "Of 14 sizes" in told, "in whatever order they stand"


def test_what_the_test_lacks_fails_unless_it_is_allowed(tmp_path: Path, capsys: Printed) -> None:
    whole, fewer = steps(1), steps(2)
    del fewer["benchmark_results"][0]["result"][-1]
    short = steps(3, count=5)
    for said, lost in ((fewer, ["2 GPUs"]), (short, ["1 GPUs", "2 GPUs"])):
        paths = [written(tmp_path / "a.json", whole), written(tmp_path / "b.json", said)]
        assert main(["compare", *paths, "--fail-below", "50%", "--format", "json"]) == 1
        assert json.loads(capsys.readouterr().out)["lost"] == [f"vgg16 with batch size 32 on {one}" for one in lost]
        assert main(["compare", *paths, "--fail-below", "50%", "--allow-missing"]) == 0
        assert main(["compare", *paths]) == 0
        assert main(["compare", *reversed(paths), "--fail-below", "50%"]) == 0, "what was added is not lost"
        capsys.readouterr()


def test_what_cannot_be_compared_is_one_sentence(tmp_path: Path, capsys: Printed) -> None:
    a = written(tmp_path / "a.json", steps(1))
    other = written(tmp_path / "b.json", steps(1, model="resnet50"))
    run = str(judged_run(tmp_path / "run", 0, {"n1": [100.0] * 2}).path)
    for arguments, why in (
        ([a, a], "found one report twice"),
        ([a, other], "no model and batch size in common"),
        ([a, run], f"{run}: is missing or has no report of PyTorch's DDP benchmark; the other"),
        ([run, a], f"{run}: is missing or has no report of PyTorch's DDP benchmark; the other"),
        ([a, str(tmp_path / "none.json")], "none.json: is missing or has no report"),
        ([a], "found 1; expected two runs"),
    ):
        assert main(["compare", *arguments]) == USER_ERROR
        told = capsys.readouterr().err
        assert why in told
        assert len(told.splitlines()) == 1
