"""Reports of PyTorch's DDP benchmark: read whole or refused, printed and compared as that benchmark publishes it.

Each computed value of the published tables has to lie within what the rounding of what it is computed from, and of what
was printed, allows.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.suites.ddp_benchmark import DdpBenchmarkFile, DdpBenchmarkResult, read_diff, results_of_file
from pytest_ddpscale.suites.results import Results
from pytest_ddpscale.util.command_parser import USER_ERROR
from tests.builders.nights import judged_run
from tests.rows import rows
from tests.suites.published_ddp_benchmark import (
    BATCH,
    DIFF,
    EXAMPLE,
    Printed,
    bucket_size_1_report,
    report,
    written,
)

Capture = pytest.CaptureFixture[str]
ROUNDING_S, ROUNDING_PERCENT = 0.0005, 0.05
# Cells of the second table whose baseline cannot be the run of the first: docs/evidence/documents.md says why.
OTHER_BASELINE = {
    "resnet101": ["1M/1G 75", "1M/1G 95", "1M/8G 75", "1M/8G 95", "2M/8G 75", "2M/8G 95"],
    "resnext50_32x4d": ["1M/2G 75", "1M/4G 75", "2M/8G 75"],
    "resnext101_32x8d": ["1M/1G 75", "1M/2G 95", "1M/4G 95", "1M/8G 95", "2M/8G 95"],
}
SAID = report({"resnet50": {size: [Printed(0.1, 320)] * 4 for size in ("no ddp", "1M/1G", "1M/2G")}})


def spoilt(change: Callable[[dict[str, Any], list[dict[str, Any]]], Any]) -> str:
    """A report in which something was changed, given all of it and the first model's results."""
    said = copy.deepcopy(SAID)
    change(said, said["benchmark_results"][0]["result"])
    return json.dumps(said)


BAD: list[tuple[str, str]] = [
    ("{", "Expecting"),
    (spoilt(lambda said, _: said.pop("pytorch_version")), "missing required field `pytorch_version`"),
    (spoilt(lambda said, _: said.update(benchmark_results=[])), "Expected `array` of length >= 1"),
    (spoilt(lambda said, _: said.update(gpus_per_machine="8")), "Expected `int`, got `str` - at `$.gpus_per_machine`"),
    (spoilt(lambda said, _: said["benchmark_results"][0].update(batch_size=0)), "Expected `int` >= 1"),
    (spoilt(lambda _, sizes: sizes[1].update(measurements=[])), "Expected `array` of length >= 1"),
    (spoilt(lambda _, sizes: sizes[1].update(measurements=[0.0])), "Expected `float` > 0"),
    (spoilt(lambda _, sizes: sizes[1].update(measurements=[float("nan")])), "NaN is not JSON"),
    (spoilt(lambda _, sizes: sizes[2].update(measurements=[0.1] * 3)), "measurements that are no multiple of ranks"),
    (spoilt(lambda _, sizes: sizes.reverse()), "a first result of several ranks; expected one GPU without"),
]


@rows(("text", "why"), BAD)
@rows("command", [("import", "pytorch-ddp"), ("compare",)])
def test_what_is_no_report_is_one_sentence(
    tmp_path: Path, capsys: Capture, command: tuple[str, ...], text: str, why: str
) -> None:
    path, sound = tmp_path / "bad.json", written(tmp_path / "sound.json", SAID)
    path.write_text(text)
    assert main([*command, *[sound] * (command == ("compare",)), str(path)]) == USER_ERROR
    told = capsys.readouterr()
    assert why in told.err
    assert str(path) in told.err
    assert (len(told.err.splitlines()), told.out) == (1, "")


def test_steps_of_ranks_that_wait_for_each_other_count_once() -> None:
    result = DdpBenchmarkResult((0, 1), (1.0, 2.0, 3.0, 3.0, 2.0, 5.0))
    assert result.separate_s == [2.0, 2.0, 4.0]
    assert DdpBenchmarkResult((0, 1), result.measurements, (1, 2)).separate_s == [2.0, 3.0]


def told_of(said: Any) -> Results:
    return results_of_file(msgspec.convert(said, DdpBenchmarkFile))


def limits_s(printed: Printed) -> tuple[float, float]:
    """Between which the time was, by its rounding and by the examples per second, which are cut off."""
    least = max(printed.s_per_iter - ROUNDING_S, BATCH / (printed.examples_per_s + 1))
    most = min(printed.s_per_iter + ROUNDING_S, BATCH / printed.examples_per_s)
    assert least <= most, "time and examples per second agree"
    return least, most


@pytest.mark.parametrize(("model", "overhead", "two_machines"), [
    ("resnet50", 0.031, 0.933), ("resnet101", 0.056, 0.905), ("resnext50_32x4d", 0.014, 0.924),
    ("resnext101_32x8d", 0.024, 0.922),
])  # fmt: skip
def test_the_table_is_printed_as_published_with_the_efficiencies_that_thresholds_yaml_takes_from_it(
    model: str, overhead: float, two_machines: float
) -> None:
    found = told_of(report(EXAMPLE))
    said = "\n".join(found.lines()).split(f"Benchmark: {model} with batch size {BATCH}\n")[1].splitlines()[2:8]
    for line, (size, row) in zip(said, EXAMPLE[model].items(), strict=True):
        assert f" GPUs -- {size:>8}:  p50:" in line
        of_line = re.findall(r"p(\d\d): +([\d.]+)s +(\d+)/s", line)
        for (per_cent, seconds, rate), asked, printed in zip(of_line, (50, 75, 90, 95), row, strict=True):
            assert (int(per_cent), float(seconds)) == (asked, printed.s_per_iter)
            least, most = limits_s(printed)
            assert int(BATCH / (most + ROUNDING_S)) <= int(rate) <= int(BATCH / (least - ROUNDING_S))
    efficiencies = [row["efficiency"] for row in found.tables[0].rows if row["model"] == model][1:]
    assert (1 / efficiencies[0] - 1, efficiencies[-1]) == pytest.approx((overhead, two_machines), abs=0.0005)
    assert efficiencies == sorted(efficiencies, reverse=True), "no size is more efficient than a smaller one"


def test_the_diff_is_the_published_one_where_its_baseline_can_be_the_published_run(tmp_path: Path) -> None:
    a, b = tmp_path / "25.json", tmp_path / "1.json"
    written(a, report(EXAMPLE))
    written(b, bucket_size_1_report())
    said = [line for line in read_diff([a, b], 0.95).told if " GPUs:" in line]
    deviating: dict[str, list[str]] = {}
    of_diff = ((model, size, row) for model, sizes in DIFF.items() for size, row in sizes.items())
    for (model, size, row), line in zip(of_diff, said, strict=True):
        of_line = re.findall(r"p(\d\d): +([\d.]+)s +\d+/s +([+-][\d.]+)%", line)
        for printed, base, (per_cent, seconds, share) in zip(row, EXAMPLE[model][size][1::2], of_line, strict=True):
            assert printed.s_per_iter == float(seconds)
            assert printed.diff < 0, "25 beats 1 in every row, as the document concludes"
            (a_least, a_most), (b_least, b_most) = limits_s(base), limits_s(printed)
            low, high = -100 * (b_most / a_least - 1), -100 * (b_least / a_most - 1)
            reach = 100 * ROUNDING_S * 2.1 / base.s_per_iter + ROUNDING_PERCENT
            assert low - reach <= float(share) <= high + reach
            if not low - ROUNDING_PERCENT <= printed.diff <= high + ROUNDING_PERCENT:
                deviating.setdefault(model, []).append(f"{size} {per_cent}")
    assert deviating == OTHER_BASELINE


# What PyTorch's own diff.py prints of the two reports that published_ddp_benchmark.py makes.
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
"""


def test_the_commands_tell_what_the_document_tells(tmp_path: Path, capsys: Capture) -> None:
    usual, small = written(tmp_path / "25.json", report(EXAMPLE)), written(tmp_path / "1.json", bucket_size_1_report())
    assert main(["import", "pytorch-ddp", usual]) == 0
    line = "   1 GPUs --   no ddp:  p50:  0.097s     329/s  p75:  0.097s     329/s  p90:  0.097s     329/s  p95:  0.097s     329/s"  # noqa: E501 (theirs)
    assert line in capsys.readouterr().out
    assert main(["compare", usual, small]) == 0
    answer, _, as_published = capsys.readouterr().out.partition("\n\n")
    assert answer == "Of 24 numbers in both: 17 higher, 7 no difference shown"
    assert as_published.startswith(THEIRS)


def steps(slower: float = 1.0, model: str = "vgg16") -> Any:
    """A report of one model, on one GPU and on two, whose steps differ by 1 %."""
    times = [0.1 * slower * (1 + 0.01 * (number * 7 % 5 - 2)) for number in range(20)]
    results = [{"ranks": [*range(ranks)], "measurements": times * ranks} for ranks in (1, 1, 2)]
    return SAID | {"benchmark_results": [{"model": model, "batch_size": 32, "result": results}]}


def test_slower_files_and_steps_too_few_for_an_interval_fail(tmp_path: Path, capsys: Capture) -> None:
    short = steps()
    short["benchmark_results"][0]["result"][-1]["measurements"] = [0.1] * 10  # five of each rank have no interval
    less = steps()
    less["benchmark_results"][0]["result"].pop()
    said = {"a": steps(), "b": steps(1.1), "short": short, "less": less}
    a, b, c, d = (written(tmp_path / f"{name}.json", one) for name, one in said.items())
    assert main(["compare", b, a, "--fail-below", "5%"]) == 0, "faster is no loss"
    capsys.readouterr()
    worse = [f"vgg16, 32, {size}: Mean s" for size in ("no ddp", "1M/1G", "1M/2G")]
    for one, other, named in (
        (a, b, {"worse": worse, "lost": []}), (a, c, {"worse": [], "lost": worse[-1:]}),
        (c, d, {"worse": [], "lost": ["vgg16, 32, 1M/2G"]}),
    ):  # fmt: skip
        assert main(["compare", one, other, "--format", "json", "--fail-below", "5%"]) == 1
        found = json.loads(capsys.readouterr().out)
        assert (named | {"fails": True, "kind": "pytorch-ddp"}).items() <= found.items()


def test_what_cannot_be_compared_is_one_sentence(tmp_path: Path, capsys: Capture) -> None:
    a, run = written(tmp_path / "a.json", steps()), str(judged_run(tmp_path / "run", 0, {"n1": [100.0] * 2}).path)
    other = written(tmp_path / "b.json", steps(model="resnet50"))
    for arguments, why in (
        (["compare", a, other], "found no number that has an interval in both; expected two runs of one suite"),
        (["compare", a, a], f"found {a} twice; expected two reports"),
        (["compare", a, run], f"{run}: cannot be read"), (["compare", run, a], f"{run}: cannot be read"),
        (["compare", a], "found 1; expected two runs"),
        (["import", "pytorch-ddp", "none.json"], "none.json: cannot be read as a report (No such file or directory)"),
    ):  # fmt: skip
        assert main(arguments) == USER_ERROR
        told = capsys.readouterr().err
        assert why in told
        assert len(told.splitlines()) == 1
