"""A comparison of two reports of PyTorch's DDP benchmark: as diff.py prints it, with intervals, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_ddpscale.compare.compare_text import table_lines_of
from pytest_ddpscale.compare.ddp_benchmark_diff import (
    PERCENTS_OF_DIFF,
    ComparedBenchmark,
    ComparedReports,
    ComparedSize,
)
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.listing import count_text
from pytest_ddpscale.util.printable import one_line


def diff_lines(found: ComparedReports) -> Iterator[str]:
    """The comparison as diff.py prints it: examples per second per GPU in the test, truncated; positive is faster."""
    yield f"{'':20s} {'baseline':>20s}      {'test':>20s}"
    yield f"{'':20s} {'-' * 20}      {'-' * 20}"
    for key, values in found.configuration.items():
        a, b = (one_line(str(value)) for value in values)
        yield f"{one_line(key) + ':':20s} {a:>20s}  vs  {b:>20s}"
    yield ""
    for one in found.benchmarks:
        yield f"Benchmark: {one.name}"
        yield ""
        yield " " * 10 + f"{'sec/iter':>16s}{'ex/sec':>10s}{'diff':>10s}" * len(PERCENTS_OF_DIFF)
        yield from (_diff_line(size) for size in one.sizes)
        yield ""


def _diff_line(size: ComparedSize) -> str:
    cells = (
        f"  p{p.per_cent:02d}: {p.b_s_per_iter:8.3f}s {int(p.b_examples_per_s):7d}/s "
        f"{-100 * ((p.b_s_per_iter - p.a_s_per_iter) / p.a_s_per_iter):+8.1f}%"  # as in diff.py, also for the sign of 0
        for p in size.percentiles
    )
    return f"{size.gpus:>4d} GPUs:{''.join(cells)}"


def benchmark_comparison_lines(found: ComparedReports) -> Iterator[str]:
    """The answer, diff.py's output, then the comparison with intervals."""
    sizes = [size for one in found.benchmarks for size in one.sizes]
    counted = {word: sum(size.result == word for size in sizes) for word in ("slower", "faster", "no difference shown")}
    without = sum(size.change is None for size in sizes)
    yield (
        f"Of {count_text(len(sizes), 'size')} the test is slower in {counted['slower']}, faster in "
        f"{counted['faster']}; {counted['no difference shown']} show no difference, {without} have no interval."
    )
    yield ""
    yield from diff_lines(found)
    rows = [_row(one, size) for one in found.benchmarks for size in one.sizes]
    if rows:
        yield "Difference of the mean step time (mean over ranks); positive is faster."
        yield from table_lines_of([("BENCHMARK", "GPUS", "OVER", "DIFF", "INTERVAL", "RESULT"), *rows])
        yield (
            f"Each interval at {percent(found.confidence)} confidence, for these two launches only: it does not "
            "include differences between launches."
        )
    yield from _left_out(found)


def _row(benchmark: ComparedBenchmark, size: ComparedSize) -> tuple[str, ...]:
    a, b = size.numbers
    over = f"{a} {size.of}" if a == b else f"{a} and {b} {size.of}"
    if size.change is None:
        return (benchmark.name, str(size.gpus), over, "", "", size.result)
    diff, low, high = -size.change.size, -size.change.high, -size.change.low
    return (benchmark.name, str(size.gpus), over, _share(diff), f"{_share(low)} … {_share(high)}", size.result)


def _share(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")


def _left_out(found: ComparedReports) -> Iterator[str]:
    for letter, names in (("baseline", found.only_baseline), ("test", found.only_test)):
        if names:
            yield f"only in the {letter}: {', '.join(names)}"
    for one in found.benchmarks:
        for letter, sizes in (("baseline", one.only_baseline), ("test", one.only_test)):
            if sizes:
                yield f"only in the {letter}: {one.name} on {', '.join(map(str, sizes))} GPUs"


def benchmark_comparison_json(found: ComparedReports) -> dict[str, Any]:
    """One JSON object; shares are numbers, not per cent, and positive is faster."""
    return {
        "schema_version": 1,
        "kind": "pytorch-ddp",
        "confidence": found.confidence,
        "configuration": {key: list(values) for key, values in found.configuration.items()},
        "benchmarks": [
            {
                "name": one.name,
                "sizes": [_size_json(size) for size in one.sizes],
                "only_baseline": one.only_baseline,
                "only_test": one.only_test,
            }
            for one in found.benchmarks
        ],
        "only_baseline": found.only_baseline,
        "only_test": found.only_test,
    }


def _size_json(size: ComparedSize) -> dict[str, Any]:
    change = size.change
    return {
        "gpus": size.gpus, "percentiles": [one._asdict() for one in size.percentiles], "over": size.of,
        "numbers": list(size.numbers), "result": size.result,
        "difference": None if change is None else -change.size,
        "interval": None if change is None else [-change.high, -change.low],
    }  # fmt: skip
