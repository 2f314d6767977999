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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta, Struct

from pytest_ddpscale.compare.value_change import Estimate, change_between
from pytest_ddpscale.errors import OptionError, ResultFileError
from pytest_ddpscale.judge.stats import Found, estimate_of
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS
from pytest_ddpscale.run.strict_json import Positive, parse_strict_json
from pytest_ddpscale.suites.results import Column, Results, Row, Rows, cell
from pytest_ddpscale.util.arrays import FloatArray
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Line, Listing, Section, table, text_lines
from pytest_ddpscale.util.listing import count_text
from pytest_ddpscale.util.printable import one_line, printable_json
from pytest_ddpscale.util.regular_file import read_regular

SOURCE = "pytorch/pytorch, benchmarks/distributed/ddp"
FILE_NAME = "pytorch-ddp.json"  # in the run directory of a suite
RESULTS, GPUS_PER_MACHINE = "benchmark_results", "gpus_per_machine"
CONFIGURATION = ("pytorch_version", "cuda_version", "distributed_backend", "bucket_size")
PERCENTS, PERCENTS_OF_DIFF, NO_DDP = (50, 75, 90, 95), (75, 95), "no ddp"
_USUAL_GPUS_PER_MACHINE = 8  # fixed in PyTorch's benchmark
_AT_LEAST_ONE = Meta(min_length=1)
_Step = Annotated[float, Meta(ge=1e-9, le=1e7)]
Said: TypeAlias = str | int | float | bool | None
COLUMNS = [
    Column("model", "Model"), Column("size", "Size"), Column("bucket_cap_mb", "bucket_cap_mb", "{:g}"),
    *(Column(f"p{p}_s", f"p{p} s", "{:.3f}") for p in PERCENTS),
    Column("efficiency", "Against no ddp (p50)", "{:.1%}", above="one GPU without DDP was slower, by noise"),
    Column("efficiency_ddp", "Against 1M/1G (p50)", "{:.1%}", above="one GPU under DDP was slower, by noise"),
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
    measurements: Annotated[tuple[_Step, ...], _AT_LEAST_ONE]
    steps_per_round: Annotated[tuple[Positive, ...], _AT_LEAST_ONE] | None = None

    def __post_init__(self) -> None:
        if len(self.measurements) % len(self.ranks):
            raise ValueError(f"{len(self.measurements)} measurements of {len(self.ranks)} ranks; expected a multiple")

    @property
    def separate_s(self) -> FloatArray:
        """Mean step time of each round, or of each step if the file has no rounds: seconds, in order.

        The mean of all ranks: under DDP they wait for each other, so their times are one value, not many.
        """
        of_steps: FloatArray = np.reshape(self.measurements, (len(self.ranks), -1)).mean(axis=0)
        if self.steps_per_round is None:
            return of_steps
        return np.array([one.mean() for one in np.split(of_steps, np.cumsum(self.steps_per_round)[:-1])])


class DdpBenchmark(Struct, frozen=True):
    """One model; `result` by number of GPUs, one GPU without DDP first."""

    model: str
    batch_size: Positive
    result: Annotated[tuple[DdpBenchmarkResult, ...], _AT_LEAST_ONE]

    def __post_init__(self) -> None:
        first = len(self.result[0].ranks)
        if first != 1:
            raise ValueError(f"the first result of {self.model} is of {first} ranks; expected one GPU without DDP")

    @property
    def name(self) -> str:
        """The name in PyTorch's benchmark."""
        return f"{self.model} with batch size {self.batch_size}"

    @property
    def with_ddp(self) -> dict[str, DdpBenchmarkResult]:
        """Results under DDP, by the name of model and size."""
        ascending = sorted(self.result[1:], key=lambda one: len(one.ranks))
        return {f"{self.name} on {len(one.ranks)} GPUs": one for one in ascending}


class DdpBenchmarkFile(Struct, frozen=True):
    """A whole report; `configuration` has all other keys."""

    path: str
    configuration: Mapping[str, Said]
    benchmarks: Annotated[tuple[DdpBenchmark, ...], _AT_LEAST_ONE]
    gpus_per_machine: Positive = _USUAL_GPUS_PER_MACHINE

    def __post_init__(self) -> None:
        models = [one.model for one in self.benchmarks]
        if len(set(models)) < len(models):
            raise ValueError(f"a model is there twice: {', '.join(models)}")


def read_ddp_benchmark(path: Path) -> DdpBenchmarkFile:
    """Read a report. Raises ResultFileError if it is invalid or contradicts itself."""
    try:
        return ddp_benchmark_of(printable_json(parse_strict_json(read_regular(path))), str(path))
    except (OSError, ValueError) as error:  # a msgspec.ValidationError is a ValueError
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ResultFileError(
            str(path), f"cannot be read as a report ({why})", f"a file written by {SOURCE}/benchmark.py --json",
            "Name such a file, or the run directory of `ddpscale suite pytorch-ddp`.",
        ) from None  # fmt: skip


def ddp_benchmark_of(said: Any, path: str) -> DdpBenchmarkFile:
    """The report in parsed JSON. Raises ValueError."""
    keys = msgspec.convert(said, dict[str, Any])
    missing = [key for key in (*CONFIGURATION, RESULTS) if key not in keys]
    if missing:
        raise ValueError(f"it has no {missing[0]!r}")
    told = {"path": path, "benchmarks": keys.pop(RESULTS), "configuration": keys}
    if GPUS_PER_MACHINE in keys:
        told[GPUS_PER_MACHINE] = keys[GPUS_PER_MACHINE]
    return msgspec.convert(told, DdpBenchmarkFile)


def report_at(path: Path) -> Path | None:
    """The path of the report: the file itself, or the one in a suite's run directory; None if there is none."""
    found = path / FILE_NAME if path.is_dir() else path
    return found if found.is_file() else None


def size_name(gpus: int, gpus_per_machine: int) -> str:
    """``1M/4G`` for four GPUs of one machine, ``2M/8G`` for sixteen of two."""
    machines = max(1, gpus // gpus_per_machine)
    return f"{machines}M/{gpus // machines}G"


def size_rows(model: str, sizes: Sequence[tuple[str, int, Mapping[int, float]]]) -> list[dict[str, Any]]:
    """A row for each size, from its name, GPUs and percentiles of the step time in seconds.

    Weak scaling: each GPU has the same batch at every size, so efficiency is a ratio of median step times.
    """
    alone = next((times[50] for name, _, times in sizes if name == NO_DDP), None)
    wrapped = next((times[50] for name, gpus, times in sizes if name != NO_DDP and gpus == 1), None)
    rows = []
    for name, gpus, times in sizes:
        is_ddp = name != NO_DDP
        rows.append({
            "model": model, "size": name, "gpus": gpus, **{f"p{p}_s": times[p] for p in PERCENTS},
            "efficiency": alone / times[50] if is_ddp and alone else None,
            "efficiency_ddp": wrapped / times[50] if is_ddp and wrapped else None,
        })  # fmt: skip
    return rows


def overheads(rows: Sequence[Row]) -> Iterator[str]:
    """By how much DDP lengthens the median step of one GPU, for each model."""
    for row in rows:
        if row["gpus"] == 1 and row["efficiency"]:
            more = percent(1 / row["efficiency"] - 1, 1, signed=True)
            yield f"{row['model']}: DDP on one GPU: {more} step time (p50)."


def benchmark_lines(model: str, batch_size: int, rows: Sequence[Row]) -> Iterator[str]:
    """One benchmark as it prints it; examples per second are per GPU and truncated."""
    yield f"Benchmark: {model} with batch size {batch_size}"
    yield ""
    yield " " * 28 + "    ".join(["sec/iter    ex/sec  "] * len(PERCENTS)).rstrip()
    for row in rows:
        times = [(p, row[f"p{p}_s"]) for p in PERCENTS]
        cells = (f"  p{p:02d}:  {seconds:1.3f}s  {int(batch_size / seconds):6d}/s" for p, seconds in times)
        yield f"{row['gpus']:4d} GPUs -- {row['size']:>8}:{''.join(cells)}"


def results_of_file(file: DdpBenchmarkFile) -> Results:
    """The file as a report: configuration, each model's table, DDP's cost on one GPU, efficiency of each size."""
    rows, listings = list[Row](), list[str]()
    for benchmark in file.benchmarks:
        sizes = [
            (
                size_name(len(one.ranks), file.gpus_per_machine) if number else NO_DDP, len(one.ranks),
                dict(zip(PERCENTS, np.percentile(one.measurements, PERCENTS).tolist(), strict=True)),
            )
            for number, one in enumerate(benchmark.result)
        ]  # fmt: skip
        of_model = size_rows(benchmark.model, sizes)
        rows += of_model
        listings.append("\n".join(benchmark_lines(benchmark.model, benchmark.batch_size, of_model)))
    said = [f"{one_line(key)}: {one_line(str(value))}" for key, value in file.configuration.items()]
    told = Section("As the benchmark prints it", [*map(Line, said), *map(Listing, listings)])
    told_sizes = Rows("pytorch-ddp", "Weak scaling", COLUMNS, rows, 2, [*overheads(rows)])
    what = "PyTorch's DDP benchmark, imported"
    return Results(what, [count_text(len(file.benchmarks), "model")], [told_sizes], more=[told])


@dataclass(frozen=True)
class ReportDiff:
    """Two reports; `sizes` are those under DDP that both have.

    Attributes:
        configuration: values of each key in the baseline and in the test.
        only_baseline, only_test: names of models and sizes that the other lacks.
        confidence: of the intervals, 0 … 1.
    """

    configuration: dict[str, tuple[Said, Said]]
    sizes: Sequence[dict[str, Any]]
    only_baseline: Sequence[str]
    only_test: Sequence[str]
    confidence: float

    @property
    def lost(self) -> list[str]:
        """Sizes that have an interval in the baseline but not in the test."""
        return [*self.only_baseline, *(row["name"] for row in self.sizes if row["is_lost"])]

    def worse_by(self, share: float) -> list[str]:
        """Sizes whose step certainly takes longer in the test by more than `share`."""
        return [row["name"] for row in self.sizes if row["change"] is not None and row["change"].interval[1] < -share]

    def lines(self) -> Iterator[str]:
        """The answer, diff.py's output, then the comparison with intervals."""
        words = [row["result"] for row in self.sizes]
        slower, faster, none = (words.count(word) for word in ("slower", "faster", "no difference shown"))
        yield (
            f"Of {count_text(len(words), 'size')} the test is slower in {slower}, faster in {faster}; {none} show no "
            f"difference, {len(words) - slower - faster - none} have no interval."
        )
        yield from ("", *self.printed_lines())
        titles = ("SIZE", "OVER", "DIFF", "INTERVAL", "RESULT")
        rows = [
            (row["name"], row["over"], *(cell(row["change"], "{:+.1%}"), _ends(row["change"])), row["result"])
            for row in self.sizes
        ]  # fmt: skip
        said = (
            "Difference of the mean step time (mean over ranks); positive is faster. Intervals have "
            f"{percent(self.confidence)} confidence, for these two launches only: they do not include differences "
            "between launches."
        )
        yield from text_lines(Line(said), table(titles, rows)) if rows else ()
        for which, names in (("baseline", self.only_baseline), ("test", self.only_test)):
            yield from [f"only in the {which}: {', '.join(names)}"] * bool(names)

    def printed_lines(self) -> Iterator[str]:
        """As diff.py prints it: examples per second per GPU in the test, truncated; positive is faster."""
        yield f"{'':20s} {'baseline':>20s}      {'test':>20s}"
        yield f"{'':20s} {'-' * 20}      {'-' * 20}"
        for key, values in self.configuration.items():
            a, b = (one_line(str(value)) for value in values)
            yield f"{one_line(key) + ':':20s} {a:>20s}  vs  {b:>20s}"
        benchmark = ""
        for row in self.sizes:
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

    def json(self) -> dict[str, Any]:
        """One JSON object; shares are numbers, not per cent, and positive is faster."""
        sizes = [row | {"change": None if row["change"] is None else row["change"]._asdict()} for row in self.sizes]
        return {
            "schema_version": 2, "kind": "pytorch-ddp", "confidence": self.confidence,
            "configuration": {key: list(values) for key, values in self.configuration.items()}, "sizes": sizes,
            "only_baseline": self.only_baseline, "only_test": self.only_test,
        }  # fmt: skip


def _ends(change: Found | None) -> str:
    return (
        "" if change is None or change.interval is None else " … ".join(cell(end, "{:+.1%}") for end in change.interval)
    )


def read_diff(paths: Sequence[Path], confidence: float) -> ReportDiff:
    """The comparison of two reports, or of the run directories that have them. Raises BadInput."""
    found_at = [report_at(path) for path in paths]
    for path, report in zip(paths, found_at, strict=True):
        if report is None:
            found = "is missing or has no report of PyTorch's DDP benchmark; the other one has"
            raise OptionError(str(path), found, f"two of its reports, or run directories with {FILE_NAME}")
    baseline, test = (read_ddp_benchmark(report) for report in found_at if report is not None)
    if Path(baseline.path).resolve() == Path(test.path).resolve():
        raise OptionError("RUN_DIR", "found one report twice", "two reports")
    if not {one.name for one in baseline.benchmarks} & {one.name for one in test.benchmarks}:
        raise OptionError("RUN_DIR", "the reports have no model and batch size in common", "reports of the same work")
    return diff_of(baseline, test, confidence)


def diff_of(baseline: DdpBenchmarkFile, test: DdpBenchmarkFile, confidence: float) -> ReportDiff:
    """Every model and number of GPUs that both reports have."""
    keys = sorted({*baseline.configuration, *test.configuration})
    ours, theirs = ({one.name: one for one in file.benchmarks} for file in (baseline, test))
    sizes, only = (
        list[dict[str, Any]](),
        ([name for name in ours if name not in theirs], [name for name in theirs if name not in ours]),
    )
    for name in (name for name in ours if name in theirs):
        a, b = ours[name].with_ddp, theirs[name].with_ddp
        sizes += [_size(ours[name], size, a[size], b[size], confidence) for size in a if size in b]
        for names, one, other in ((only[0], a, b), (only[1], b, a)):
            names += [size for size in one if size not in other]
    configuration = {key: (baseline.configuration.get(key, "-"), test.configuration.get(key, "-")) for key in keys}
    return ReportDiff(configuration, sizes, *only, confidence)


def _size(
    benchmark: DdpBenchmark, name: str, a: DdpBenchmarkResult, b: DdpBenchmarkResult, confidence: float
) -> dict[str, Any]:  # fmt: skip
    of = "rounds" if a.steps_per_round and b.steps_per_round else "steps"
    numbers = [len(a.separate_s), len(b.separate_s)]
    short = next((at for at, number in enumerate(numbers) if number < FEWEST_ROUNDS), None)
    change, is_faster, result = None, False, ""
    if short is not None:
        which, what = (("baseline", a), ("test", b))[short]
        unit = "rounds" if what.steps_per_round else "steps"
        result = f"no interval: {which}: {numbers[short]} {unit}; expected at least {FEWEST_ROUNDS}"
    else:
        means = (estimate_of(one.separate_s, "factors", confidence) for one in (a, b))
        more = change_between(*(Estimate(mean.value, mean.interval or (0, 0)) for mean in means), by_factors=True)
        change, is_faster = Found(-more.size, (-more.high, -more.low)), more.size < 0
        result = ("faster" if is_faster else "slower") if more.is_shown else "no difference shown"
    row = {
        "name": name, "benchmark": benchmark.name, "batch_size": benchmark.batch_size, "gpus": len(a.ranks),
        "over": f"{' and '.join(map(str, dict.fromkeys(numbers)))} {of}", "change": change, "result": result,
        "is_lost": short == 1,
    }  # fmt: skip
    for p in PERCENTS_OF_DIFF:
        row |= {f"p{p}_s_baseline": float(np.percentile(a.measurements, p)),
                f"p{p}_s_test": float(np.percentile(b.measurements, p))}  # fmt: skip
    return row
