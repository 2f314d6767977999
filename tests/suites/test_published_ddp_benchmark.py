"""The tables that PyTorch publishes of its DDP benchmark: from the measured columns we compute the others.

Each computed value has to lie within what the rounding of what it is computed from, and of what was printed, allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_ddpscale.cli import main
from pytest_ddpscale.compare.ddp_benchmark_diff import compare_reports
from pytest_ddpscale.compare.ddp_benchmark_file import ddp_benchmark_of
from pytest_ddpscale.suites.ddp_benchmark_import import benchmark_rows
from pytest_ddpscale.suites.ddp_benchmark_table import BenchmarkRow, benchmark_lines, overhead_of_ddp, scaling_of
from tests.suites.published_ddp_benchmark import (
    BATCH,
    DIFF,
    EXAMPLE,
    Printed,
    bucket_size_1_report,
    example_report,
    written,
)

ROUNDING_S, ROUNDING_PERCENT = 0.0005, 0.05
# Cells of the second table whose baseline cannot be the run of the first: docs/evidence/documents.md says why.
OTHER_BASELINE = {
    ("resnet101", "1M/1G", 75), ("resnet101", "1M/1G", 95), ("resnet101", "1M/8G", 75), ("resnet101", "1M/8G", 95),
    ("resnet101", "2M/8G", 75), ("resnet101", "2M/8G", 95), ("resnext50_32x4d", "1M/2G", 75),
    ("resnext50_32x4d", "1M/4G", 75), ("resnext50_32x4d", "2M/8G", 75), ("resnext101_32x8d", "1M/1G", 75),
    ("resnext101_32x8d", "1M/2G", 95), ("resnext101_32x8d", "1M/4G", 95), ("resnext101_32x8d", "1M/8G", 95),
    ("resnext101_32x8d", "2M/8G", 95),
}  # fmt: skip


def rows_of(model: str) -> list[BenchmarkRow]:
    file = ddp_benchmark_of(example_report(), "example")
    (benchmark,) = (one for one in file.benchmarks if one.model == model)
    return list(benchmark_rows(benchmark, file.gpus_per_machine))


def cells() -> Iterator[tuple[str, str, int, Printed]]:
    for table in (EXAMPLE, DIFF):
        for model, rows in table.items():
            for size, row in rows.items():
                for per_cent, printed in row.items():
                    yield model, size, per_cent, printed


def limits_s(printed: Printed) -> tuple[float, float]:
    """Between which the time was, by its rounding and by the examples per second, which are cut off."""
    least = max(printed.s_per_iter - ROUNDING_S, BATCH / (printed.examples_per_s + 1))
    return least, min(printed.s_per_iter + ROUNDING_S, BATCH / printed.examples_per_s)


def test_the_tables_are_whole() -> None:
    assert [len(rows) for rows in EXAMPLE.values()] == [6] * 4
    assert [len(rows) for rows in DIFF.values()] == [5] * 4
    assert len(list(cells())) == 4 * (6 * 4 + 5 * 2)


def test_times_and_examples_per_second_agree_in_every_cell() -> None:
    for model, size, per_cent, printed in cells():
        least, most = limits_s(printed)
        assert least <= most, (model, size, per_cent)


@pytest.mark.parametrize("model", EXAMPLE)
def test_the_table_is_printed_as_published(model: str) -> None:
    lines = list(benchmark_lines(model, BATCH, rows_of(model)))[3:]
    for line, (size, row) in zip(lines, EXAMPLE[model].items(), strict=True):
        assert f" GPUs -- {size:>8}:  p50:" in line
        found = re.findall(r"p(\d\d): +([\d.]+)s +(\d+)/s", line)
        for (per_cent, seconds, rate), (asked, printed) in zip(found, row.items(), strict=True):
            assert (int(per_cent), float(seconds)) == (asked, printed.s_per_iter)
            least, most = printed.s_per_iter - ROUNDING_S, printed.s_per_iter + ROUNDING_S
            assert int(BATCH / most) <= int(rate) <= int(BATCH / least)
            assert int(BATCH / most) <= printed.examples_per_s <= int(BATCH / least)


def test_the_diff_is_the_published_one_where_its_baseline_can_be_the_published_run() -> None:
    compared = compare_reports(
        ddp_benchmark_of(example_report(), "25"), ddp_benchmark_of(bucket_size_1_report(), "1"), 0.95
    )
    deviating = set()
    for benchmark, (model, rows) in zip(compared.benchmarks, DIFF.items(), strict=True):
        for found, (size, row) in zip(benchmark.sizes, rows.items(), strict=True):
            for percentile, (per_cent, printed) in zip(found.percentiles, row.items(), strict=True):
                assert percentile.b_s_per_iter == pytest.approx(printed.s_per_iter)
                base = EXAMPLE[model][size][per_cent]
                (a_least, a_most), (b_least, b_most) = limits_s(base), limits_s(printed)
                low, high = -100 * (b_most / a_least - 1), -100 * (b_least / a_most - 1)
                reach = 100 * ROUNDING_S * 2.1 / base.s_per_iter
                assert low - reach <= 100 * percentile.difference <= high + reach
                if not low - ROUNDING_PERCENT <= printed.diff <= high + ROUNDING_PERCENT:
                    deviating.add((model, size, per_cent))
    assert deviating == OTHER_BASELINE


def test_25_beats_1_in_every_row_as_the_document_concludes() -> None:
    assert all(printed.diff < 0 for rows in DIFF.values() for row in rows.values() for printed in row.values())
    compared = compare_reports(
        ddp_benchmark_of(example_report(), "25"), ddp_benchmark_of(bucket_size_1_report(), "1"), 0.95
    )
    slower = [size.percentiles[0].difference for one in compared.benchmarks for size in one.sizes]
    assert len(slower) == 20
    assert max(slower) < 0, "p75, with the first table for a baseline"


@pytest.mark.parametrize(
    ("model", "overhead", "two_machines"),
    [
        ("resnet50", 0.031, 0.933), ("resnet101", 0.056, 0.905), ("resnext50_32x4d", 0.014, 0.924),
        ("resnext101_32x8d", 0.024, 0.922),
    ],
)  # fmt: skip
def test_overhead_and_efficiency_are_those_that_thresholds_yaml_takes_from_it(
    model: str, overhead: float, two_machines: float
) -> None:
    rows = rows_of(model)
    assert overhead_of_ddp(rows) == pytest.approx(overhead, abs=0.0005)
    by_name = {one.name: one for one in scaling_of(rows)}
    assert by_name["2M/8G"].efficiency == pytest.approx(two_machines, abs=0.0005)
    assert by_name["1M/1G"].efficiency_ddp == 1.0
    efficiencies = [one.efficiency or 0.0 for one in scaling_of(rows)]
    assert efficiencies == sorted(efficiencies, reverse=True), "no size is more efficient than a smaller one"


def test_the_commands_tell_what_the_document_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual, small = written(tmp_path / "25.json", example_report()), written(tmp_path / "1.json", bucket_size_1_report())
    assert main(["import", "pytorch-ddp", usual]) == 0
    told = capsys.readouterr().out
    assert "   1 GPUs --   no ddp:  p50:  0.097s     329/s  p75:  0.097s     329/s  p90:  0.097s     329/s" in told
    assert "DDP on one GPU: +3.1 % step time (p50)." in told
    assert main(["compare", usual, small]) == 0
    told = capsys.readouterr().out
    answer, _, as_published = told.partition("\n\n")
    assert answer == "Of 20 sizes the test is slower in 17, faster in 0; 3 show no difference, 0 have no interval."
    assert as_published.startswith(
        "                                 baseline                      test\n"
        "                     --------------------      --------------------\n"
        "bucket_size:                           25  vs                     1\n"
        "cuda_version:                        10.0  vs                  10.0\n"
        "distributed_backend:                 nccl  vs                  nccl\n"
        "pytorch_version:          1.4.0a0+05140f0  vs       1.4.0a0+05140f0\n\n"
        "Benchmark: resnet50 with batch size 32\n\n"
        "                  sec/iter    ex/sec      diff        sec/iter    ex/sec      diff\n"
        "   1 GPUs:  p75:    0.101s     31"
    )
