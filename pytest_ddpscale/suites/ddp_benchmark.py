"""The JSON report that PyTorch's DDP benchmark writes with ``--json``: reading it, printing it, and comparing two.

(github.com/pytorch/pytorch, benchmarks/distributed/ddp/benchmark.py.) An object with the configuration and
``benchmark_results``, which has the results of each model by size: ``ranks`` that trained, and ``measurements``, the
seconds of every step of the first rank, then of the second, and so on. The first result of a model is one GPU without
DDP. Our files have two more keys, which its diff.py ignores: ``gpus_per_machine`` and, in results, ``steps_per_round``.

diff.py pools all steps of all ranks for percentiles. Pooled steps are not independent. Ranks wait for each other, so
for the interval a step counts once, as the mean of its ranks. Successive steps are correlated, which the interval of a
series allows for up to 0.5 (`pytest_ddpscale.judge.stats`). If a file records which steps belong to a round, rounds
count instead of steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct

from pytest_ddpscale.errors import OptionError, ResultFileError
from pytest_ddpscale.judge.stats import Found, estimate_of
from pytest_ddpscale.run.strict_json import Positive, parse_strict_json
from pytest_ddpscale.suites.comparing import CHANGE, RESULT, SuiteDiff, compared
from pytest_ddpscale.suites.results import Column, Results, Row, Rows
from pytest_ddpscale.util.document import Line, Listing, Section
from pytest_ddpscale.util.listing import count_text
from pytest_ddpscale.util.printable import one_line, printable_json
from pytest_ddpscale.util.regular_file import read_regular

SOURCE = "pytorch/pytorch, benchmarks/distributed/ddp"
FILE_NAME = "pytorch-ddp.json"  # in the run directory of a suite
PERCENTS, PERCENTS_OF_DIFF, NO_DDP = (50, 75, 90, 95), (75, 95), "no ddp"
ReportDiff = SuiteDiff
_AT_LEAST_ONE = Meta(min_length=1)
COLUMNS = [
    Column("model", "Model"), Column("size", "Size"), Column("bucket_cap_mb", "bucket_cap_mb", "{:g}"),
    *(Column(f"p{p}_s", f"p{p} s", "{:.3f}") for p in PERCENTS),
    Column("efficiency", "Against no ddp (p50)", "{:.1%}", above="one GPU without DDP was slower, by noise"),
]  # fmt: skip


class DdpBenchmarkResult(Struct, frozen=True, omit_defaults=True):
    """One size.

    Attributes:
        ranks: ranks that trained together.
        measurements: seconds of each step, rank after rank.
        steps_per_round: steps of each rank in each round, in order; only in our files, where sizes take turns. None if
            all steps were made in one go.
    """

    ranks: Annotated[tuple[int, ...], _AT_LEAST_ONE]
    measurements: Annotated[tuple[Annotated[float, Meta(gt=0)], ...], _AT_LEAST_ONE]
    steps_per_round: Annotated[tuple[Positive, ...], _AT_LEAST_ONE] | None = None

    def __post_init__(self) -> None:
        if len(self.measurements) % len(self.ranks):
            raise ValueError(f"{len(self.measurements)} measurements of {len(self.ranks)} ranks; expected a multiple")

    @property
    def separate_s(self) -> list[float]:
        """Mean step time of each round, or of each step if the file has no rounds: seconds, in order.

        The mean of all ranks: under DDP they wait for each other, so their times are one value, not many.
        """
        of_steps = np.reshape(self.measurements, (len(self.ranks), -1)).mean(axis=0)
        ends = np.cumsum(self.steps_per_round or [1] * len(of_steps))
        return [one.mean() for one in np.split(of_steps, ends[:-1])]

    def percentiles_s(self, percents: Iterable[int], name: str = "p{}_s") -> dict[str, float]:
        """Of the steps of all ranks, by name."""
        return {name.format(p): float(np.percentile(self.measurements, p)) for p in percents}


class DdpBenchmark(Struct, frozen=True):
    """One model; `result` by number of GPUs, one GPU without DDP first."""

    model: str
    batch_size: Positive
    result: Annotated[tuple[DdpBenchmarkResult, ...], _AT_LEAST_ONE]

    def __post_init__(self) -> None:
        if (first := len(self.result[0].ranks)) > 1:
            raise ValueError(f"the first result of {self.model} is of {first} ranks; expected one GPU without DDP")

    @property
    def name(self) -> str:
        """The name in PyTorch's benchmark."""
        return f"{self.model} with batch size {self.batch_size}"


class DdpBenchmarkFile(Struct, frozen=True):
    """A whole report."""

    pytorch_version: str | None
    cuda_version: str | None
    distributed_backend: str | None
    bucket_size: int | float | None
    benchmark_results: Annotated[tuple[DdpBenchmark, ...], _AT_LEAST_ONE]
    gpus_per_machine: Positive = 8  # fixed in PyTorch's benchmark

    @property
    def configuration(self) -> dict[str, str]:
        """All but the results, as it is printed."""
        keys = ("bucket_size", "cuda_version", "distributed_backend", "pytorch_version")
        return {key: one_line(str(getattr(self, key))) for key in keys}

    @property
    def sizes(self) -> dict[str, tuple[DdpBenchmark, DdpBenchmarkResult]]:
        """Results under DDP, by the name of model and size."""
        return {
            f"{of.name} on {len(one.ranks)} GPUs": (of, one)
            for of in self.benchmark_results for one in sorted(of.result[1:], key=lambda one: len(one.ranks))
        }  # fmt: skip


def read_ddp_benchmark(path: Path) -> DdpBenchmarkFile:
    """Read a report. Raises ResultFileError if it is invalid or contradicts itself."""
    try:
        return msgspec.convert(printable_json(parse_strict_json(read_regular(path))), DdpBenchmarkFile)
    except (OSError, ValueError) as error:  # a msgspec.ValidationError is a ValueError
        raise ResultFileError(
            str(path), f"cannot be read as a report ({getattr(error, 'strerror', None) or error})",
            f"a file written by {SOURCE}/benchmark.py --json",
            "Name such a file, or the run directory of `ddpscale suite pytorch-ddp`.",
        ) from None  # fmt: skip


def report_at(path: Path) -> Path | None:
    """The path of the report: the file itself, or the one in a suite's run directory; None if there is none."""
    found = path / FILE_NAME if path.is_dir() else path
    return found if found.is_file() else None


def size_name(gpus: int, gpus_per_machine: int) -> str:
    """``1M/4G`` for four GPUs of one machine, ``2M/8G`` for sixteen of two."""
    machines = max(1, gpus // gpus_per_machine)
    return f"{machines}M/{gpus // machines}G"


def size_rows(model: str, sizes: Iterable[tuple[str, DdpBenchmarkResult]]) -> list[dict[str, Any]]:
    """A row for each size and its name, one GPU without DDP first if it is there.

    Weak scaling: each GPU has the same batch at every size, so efficiency is a ratio of median step times.
    """
    rows: list[dict[str, Any]] = [
        {"model": model, "size": name, "gpus": len(one.ranks), **one.percentiles_s(PERCENTS), "efficiency": None}
        for name, one in sizes
    ]
    for row in rows[1:] if rows and rows[0]["size"] == NO_DDP else []:
        row["efficiency"] = rows[0]["p50_s"] / row["p50_s"]
    return rows


def printed(file: DdpBenchmarkFile, models: Iterable[Sequence[Row]], more: Iterable[str] = ()) -> Section:
    """Configuration, and each model's rows, as the benchmark prints them."""
    said = [f"{key}: {value}" for key, value in file.configuration.items()]
    batches = {one.model: one.batch_size for one in file.benchmark_results}
    tables = ("\n".join(benchmark_lines(batches[rows[0]["model"]], rows)) for rows in models)
    return Section("As the benchmark prints it", [*map(Line, said), *map(Listing, (*more, *tables))])


def benchmark_lines(batch_size: int, rows: Sequence[Row]) -> Iterator[str]:
    """One benchmark as it prints it; examples per second are per GPU and truncated."""
    yield f"Benchmark: {rows[0]['model']} with batch size {batch_size}"
    yield ""
    yield " " * 28 + "    ".join(["sec/iter    ex/sec  "] * len(PERCENTS)).rstrip()
    for row in rows:
        times = [(p, row[f"p{p}_s"]) for p in PERCENTS]
        cells = (f"  p{p:02d}:  {seconds:1.3f}s  {int(batch_size / seconds):6d}/s" for p, seconds in times)
        yield f"{row['gpus']:4d} GPUs -- {row['size']:>8}:{''.join(cells)}"


def results_of_file(file: DdpBenchmarkFile) -> Results:
    """The file as a report: configuration, each model's table, efficiency of each size."""
    models = [
        size_rows(of.model, [
            (size_name(len(one.ranks), file.gpus_per_machine) if number else NO_DDP, one)
            for number, one in enumerate(of.result)
        ])
        for of in file.benchmark_results
    ]  # fmt: skip
    table = Rows("pytorch-ddp", "Weak scaling", COLUMNS, [row for rows in models for row in rows], 2)
    told = count_text(len(models), "model")
    return Results("PyTorch's DDP benchmark, imported", [told], [table], more=[printed(file, models)])


def read_diff(paths: Sequence[Path], confidence: float) -> SuiteDiff:
    """The comparison of two reports, or of the run directories that have them. Raises BadInput."""
    files = list[DdpBenchmarkFile]()
    for path in paths:
        if (report := report_at(path)) is None:
            found = "is missing or has no report of PyTorch's DDP benchmark; the other one has"
            raise OptionError(str(path), found, f"two of its reports, or run directories with {FILE_NAME}")
        files.append(read_ddp_benchmark(report))
    diff = diff_of(files[0], files[1], confidence)
    if not diff.table.rows:
        raise OptionError("RUN_DIR", "the reports have no model and batch size in common", "reports of the same work")
    return diff


def diff_of(baseline: DdpBenchmarkFile, test: DdpBenchmarkFile, confidence: float) -> SuiteDiff:
    """Every model and number of GPUs that both reports have, by name and number."""
    rows, before, after = list[Row](), baseline.sizes, test.sizes
    for name in (name for name in before if name in after):
        (of, a), (_, b) = before[name], after[name]
        rows.append({
            "name": name, "benchmark": of.name, "batch_size": of.batch_size, "gpus": len(a.ranks),
            **_compared(a, b, confidence), **a.percentiles_s(PERCENTS_OF_DIFF, "p{}_s_baseline"),
            **b.percentiles_s(PERCENTS_OF_DIFF, "p{}_s_test"),
        })  # fmt: skip
    only = {"only_baseline": [name for name in before if name not in after],
            "only_test": [name for name in after if name not in before]}  # fmt: skip
    notes = [
        *_diff_lines(baseline, test, rows), *(f"{key}: {', '.join(names)}" for key, names in only.items() if names),
        "Change of the mean step time (mean over ranks); positive is faster. Intervals are for these two launches "
        "only: they do not include differences between launches.", "",
    ]  # fmt: skip
    columns = (Column("name", "Size"), Column("over", "Over"), CHANGE, RESULT)
    lost = only["only_baseline"] + [row["name"] for row in rows if row["is_lost"]]
    more = {"kind": "pytorch-ddp", "confidence": confidence, **only}
    return SuiteDiff(Rows("comparison", "size", columns, rows), lost, notes, more)


def _compared(a: DdpBenchmarkResult, b: DdpBenchmarkResult, confidence: float) -> dict[str, Any]:
    series = [one.separate_s for one in (a, b)]
    before, after = (estimate_of(one, "factors", confidence) for one in series)
    row: dict[str, Any] = {"change": None, "loss": 0.0, "result": "no interval"}
    if before.interval and after.interval:
        row = compared(before, after, -1, ("slower", "faster"))
        value, (low, high) = row["change"]
        row["change"] = Found(-value, (-high, -low))
    unit = "rounds" if a.steps_per_round and b.steps_per_round else "steps"
    over = f"{' and '.join(dict.fromkeys(str(len(one)) for one in series))} {unit}"
    return {**row, "over": over, "is_lost": before.interval is not None and after.interval is None}


def _diff_lines(baseline: DdpBenchmarkFile, test: DdpBenchmarkFile, rows: Iterable[Row]) -> Iterator[str]:
    """As diff.py prints it: examples per second per GPU in the test, truncated; positive is faster."""
    yield f"{'':20s} {'baseline':>20s}      {'test':>20s}"
    yield f"{'':20s} {'-' * 20}      {'-' * 20}"
    for key, value in baseline.configuration.items():
        yield f"{key + ':':20s} {value:>20s}  vs  {test.configuration[key]:>20s}"
    benchmark = ""
    for row in rows:
        if row["benchmark"] != benchmark:
            benchmark = row["benchmark"]
            head = f"{'sec/iter':>16s}{'ex/sec':>10s}{'diff':>10s}" * len(PERCENTS_OF_DIFF)
            yield from ("", f"Benchmark: {benchmark}", "", " " * 10 + head)
        cells = ""
        for p in PERCENTS_OF_DIFF:
            a, b = (row[f"p{p}_s_{of}"] for of in ("baseline", "test"))
            rate = int(row["batch_size"] / b)  # as in diff.py, also for the sign of 0
            cells += f"  p{p:02d}: {b:8.3f}s {rate:7d}/s {-100 * ((b - a) / a):+8.1f}%"
        yield f"{row['gpus']:>4d} GPUs:{cells}"
    yield ""
