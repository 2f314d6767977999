"""The tables of PyTorch's DDP benchmark, as it prints them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

PERCENTS = (50, 75, 90, 95)


@dataclass(frozen=True)
class BenchmarkRow:
    """One size in one benchmark.

    Attributes:
        gpus: how many trained together.
        name: as that benchmark has it: ``no ddp``, ``1M/2G`` for two GPUs of one machine.
        s_per_iter: percentiles of the step time over all steps of all ranks, by per cent.
    """

    gpus: int
    name: str
    s_per_iter: Mapping[int, float]


def benchmark_lines(model: str, batch_size: int, rows: Sequence[BenchmarkRow]) -> Iterator[str]:
    """One benchmark; examples per second are of one GPU, and cut off as there."""
    yield f"Benchmark: {model} with batch size {batch_size}"
    yield ""
    yield " " * 28 + "    ".join(["sec/iter    ex/sec  "] * len(PERCENTS)).rstrip()
    for row in rows:
        cells = (
            f"  p{p:02d}:  {row.s_per_iter[p]:1.3f}s  {int(batch_size / row.s_per_iter[p]):6d}/s" for p in PERCENTS
        )
        yield f"{row.gpus:4d} GPUs -- {row.name:>8}:{''.join(cells)}"
