"""The tables of PyTorch's DDP benchmark, as it prints them, and the cost of DDP and scaling efficiency from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pytest_ddpscale.suites.suite_report import SuiteTable

PERCENTS = (50, 75, 90, 95)
NO_DDP = "no ddp"
_MEDIAN = 50


@dataclass(frozen=True)
class BenchmarkRow:
    """One size in one benchmark.

    Attributes:
        gpus: number that trained together.
        name: as in the benchmark: ``no ddp``, ``1M/2G`` for two GPUs of one machine.
        s_per_iter: percentiles of the step time over all steps of all ranks, by per cent.
    """

    gpus: int
    name: str
    s_per_iter: Mapping[int, float]


def benchmark_lines(model: str, batch_size: int, rows: Sequence[BenchmarkRow]) -> Iterator[str]:
    """One benchmark as text; examples per second are per GPU and truncated, as in the original."""
    yield f"Benchmark: {model} with batch size {batch_size}"
    yield ""
    yield " " * 28 + "    ".join(["sec/iter    ex/sec  "] * len(PERCENTS)).rstrip()
    for row in rows:
        cells = (
            f"  p{p:02d}:  {row.s_per_iter[p]:1.3f}s  {int(batch_size / row.s_per_iter[p]):6d}/s" for p in PERCENTS
        )
        yield f"{row.gpus:4d} GPUs -- {row.name:>8}:{''.join(cells)}"


@dataclass(frozen=True)
class SizeScaling:
    """Scaling efficiency of one size, by median steps.

    Attributes:
        gpus: number that trained together.
        name: of the size.
        efficiency: median step of one GPU without DDP over that of this size; None if one GPU was not measured.
        efficiency_ddp: the same relative to one GPU under DDP.
    """

    gpus: int
    name: str
    efficiency: float | None
    efficiency_ddp: float | None


def scaling_of(rows: Sequence[BenchmarkRow]) -> list[SizeScaling]:
    """Weak scaling: each GPU has the same batch at every size, so efficiency is a ratio of step times."""
    alone = next((row.s_per_iter[_MEDIAN] for row in rows if row.name == NO_DDP), None)
    wrapped = next((row.s_per_iter[_MEDIAN] for row in rows if row.name != NO_DDP and row.gpus == 1), None)

    def share(of: float | None, row: BenchmarkRow) -> float | None:
        return None if of is None else of / row.s_per_iter[_MEDIAN]

    return [
        SizeScaling(row.gpus, row.name, share(alone, row), share(wrapped, row)) for row in rows if row.name != NO_DDP
    ]


def overhead_of_ddp(rows: Sequence[BenchmarkRow]) -> float | None:
    """Share by which DDP lengthens the median step of one GPU; None if either was not measured."""
    one_gpu = next((one for one in scaling_of(rows) if one.gpus == 1), None)
    return None if one_gpu is None or one_gpu.efficiency is None else 1 / one_gpu.efficiency - 1


def overhead_text(rows: Sequence[BenchmarkRow]) -> list[str]:
    """`overhead_of_ddp` in a sentence; empty if unknown."""
    share = overhead_of_ddp(rows)
    return [] if share is None else [f"DDP on one GPU: {100 * share:+.1f} % step time (p50).".replace("-", "−")]


def scaling_table(rows: Sequence[BenchmarkRow]) -> SuiteTable:
    """Table of each size's efficiency, by medians."""

    def text(share: float | None) -> str:
        return "—" if share is None else f"{100 * share:.1f} %"

    cells = [(one.name, text(one.efficiency), text(one.efficiency_ddp)) for one in scaling_of(rows)]
    return SuiteTable(("size", "against no ddp", "against 1M/1G"), cells, "Weak scaling efficiency (p50)")


def benchmark_values(rows: Sequence[BenchmarkRow]) -> dict[str, Any]:
    """Rows, overhead and scaling as JSON types."""
    return {
        "rows": [asdict(row) for row in rows],
        "overhead_of_ddp": overhead_of_ddp(rows),
        "scaling": [asdict(one) for one in scaling_of(rows)],
    }
