"""`ddpscale import pytorch-ddp`: a JSON report of PyTorch's DDP benchmark, printed like a suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pytest_ddpscale.compare.ddp_benchmark_file import (
    DdpBenchmark,
    DdpBenchmarkFile,
    read_ddp_benchmark,
    size_name,
)
from pytest_ddpscale.suites.ddp_benchmark_table import (
    NO_DDP,
    PERCENTS,
    BenchmarkRow,
    benchmark_lines,
    overhead_text,
    scaling_table,
)
from pytest_ddpscale.suites.suite_report import SuiteReport, SuiteSection
from pytest_ddpscale.suites.suite_views import print_report
from pytest_ddpscale.util.listing import count_text
from pytest_ddpscale.util.printable import one_line


def print_ddp_benchmark(path: Path) -> None:
    """Print the file's tables. Raises ResultFileError if it is not a valid report."""
    print_report(report_of_file(read_ddp_benchmark(path)))


def report_of_file(file: DdpBenchmarkFile) -> SuiteReport:
    """The file as a report: configuration, each model's table, DDP's cost on one GPU, efficiency of each size."""
    said = [f"{one_line(key)}: {one_line(str(value))}" for key, value in file.configuration.items()]
    sections = [SuiteSection("Configuration", said)]
    for benchmark in file.benchmarks:
        rows = list(benchmark_rows(benchmark, file.gpus_per_machine))
        listing = "\n".join(benchmark_lines(benchmark.model, benchmark.batch_size, rows))
        tables = [table for table in (scaling_table(rows),) if table.rows]
        sections.append(SuiteSection(benchmark.name, overhead_text(rows), tables, [listing]))
    return SuiteReport(f"PyTorch's DDP benchmark, imported: {count_text(len(file.benchmarks), 'model')}", sections)


def benchmark_rows(benchmark: DdpBenchmark, gpus_per_machine: int) -> Iterator[BenchmarkRow]:
    """A row for each size, as the benchmark prints it."""
    for number, result in enumerate(benchmark.result):
        gpus = len(result.ranks)
        name = size_name(gpus, gpus_per_machine) if number else NO_DDP
        yield BenchmarkRow(gpus, name, {one: float(np.percentile(result.measurements, one)) for one in PERCENTS})
