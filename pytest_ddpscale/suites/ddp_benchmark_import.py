"""`ddpscale import pytorch-ddp`: a JSON report of PyTorch's DDP benchmark, reported like a suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_ddpscale.judge.metrics import percentile
from pytest_ddpscale.report.text import count_text, one_line
from pytest_ddpscale.run.ddp_benchmark_file import (
    FILE_NAME,
    SOURCE,
    DdpBenchmark,
    DdpBenchmarkFile,
    ddp_benchmark_json,
    read_ddp_benchmark,
    size_name,
)
from pytest_ddpscale.run.run_directory import RunDirectory
from pytest_ddpscale.run.run_json import RunRecord
from pytest_ddpscale.run.run_record import now_iso
from pytest_ddpscale.suites.ddp_benchmark_table import (
    NO_DDP,
    PERCENTS,
    BenchmarkRow,
    benchmark_lines,
    benchmark_values,
    overhead_text,
    scaling_table,
)
from pytest_ddpscale.suites.pytorch_ddp import PytorchDdp
from pytest_ddpscale.suites.suite_report import SuiteReport, SuiteSection
from pytest_ddpscale.suites.suite_views import print_report, write_suite_reports

# The file names no GPU model.
UNKNOWN_SKU = "unknown"


def import_ddp_benchmark(path: Path, out: Path | None) -> None:
    """Print the file's tables; with `out`, also make a run directory with the reports of a suite.

    Raises:
        ResultFileError: the file is not a valid report.
        RunDirectoryError: `out` cannot be written, or already holds a run.
    """
    file = read_ddp_benchmark(path)
    report = report_of_file(file)
    if out is not None:
        run = RunDirectory.create(out)
        record = _record(file)
        write_suite_reports(run, PytorchDdp.name, report, record)
        run.write_json(run.run_json, record)  # last, because run.json makes a directory a run
    print_report(report)
    if out is not None:
        print(f"report: {out / 'report.html'}")


def report_imported(run: RunDirectory) -> int:
    """Print an imported run and write its reports again. Returns the exit code. Raises BadInput, OSError."""
    report = report_of_file(read_ddp_benchmark(run.path / FILE_NAME))
    write_suite_reports(run, PytorchDdp.name, report, run.read_run())
    print_report(report)
    return 0


def report_of_file(file: DdpBenchmarkFile) -> SuiteReport:
    """The file as a report: configuration, each model's table, DDP's cost on one GPU, efficiency of each size."""
    said = [f"{one_line(key)}: {one_line(str(value))}" for key, value in file.configuration.items()]
    sections, values = [SuiteSection("Configuration", said)], {}
    for benchmark in file.benchmarks:
        rows = list(benchmark_rows(benchmark, file.gpus_per_machine))
        listing = "\n".join(benchmark_lines(benchmark.model, benchmark.batch_size, rows))
        tables = [table for table in (scaling_table(rows),) if table.rows]
        sections.append(SuiteSection(benchmark.name, overhead_text(rows), tables, [listing]))
        values[benchmark.model] = benchmark_values(rows)
    headline = f"PyTorch's DDP benchmark, imported: {count_text(len(file.benchmarks), 'model')}"
    files = {FILE_NAME: ddp_benchmark_json(file.configuration, file.benchmarks)}
    return SuiteReport(headline, sections, (), {"benchmarks": values}, files)


def benchmark_rows(benchmark: DdpBenchmark, gpus_per_machine: int) -> Iterator[BenchmarkRow]:
    """A row for each size, as the benchmark prints it."""
    for number, result in enumerate(benchmark.result):
        gpus = len(result.ranks)
        name = size_name(gpus, gpus_per_machine) if number else NO_DDP
        yield BenchmarkRow(gpus, name, {one: percentile(result.measurements, one) for one in PERCENTS})


def _record(file: DdpBenchmarkFile) -> RunRecord:
    versions = {"torch": file.configuration["pytorch_version"], "cuda": file.configuration["cuda_version"]}
    return RunRecord(
        sku=UNKNOWN_SKU,
        status="imported",
        source=SOURCE,
        imported_from=Path(file.path).name,
        started_at=now_iso(),
        versions={name: one_line(str(version)) for name, version in versions.items() if version is not None},
        notes=("sizes were measured one after another, so ratios of sizes have no interval",),
    )
