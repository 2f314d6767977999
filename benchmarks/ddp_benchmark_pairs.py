"""How often `ddpscale compare` shows a difference between two reports of PyTorch's DDP benchmark.

    python benchmarks/ddp_benchmark_pairs.py --pairs 400

Every pair is two launches of 10 steps on 2 GPUs, like those of that benchmark, with 1 % of noise per step that both
ranks share. By correlation of successive steps and slowdown of the second launch, the script prints how many pairs show
a difference.
"""

from __future__ import annotations

import argparse
import random

from pytest_ddpscale.compare.ddp_benchmark_diff import ComparedSize, compare_reports
from pytest_ddpscale.run.ddp_benchmark_file import (
    CONFIGURATION,
    DdpBenchmark,
    DdpBenchmarkFile,
    DdpBenchmarkResult,
)

STEPS, RANKS, STEP_S, NOISE, CONFIDENCE = 10, 2, 0.1, 0.01, 0.95


def launch(draw: random.Random, correlation: float, slower: float) -> DdpBenchmarkFile:
    """One report: one GPU without DDP, and two with DDP."""
    noise, steps = draw.gauss(0, NOISE), []
    for _ in range(STEPS):
        steps.append(STEP_S * (1 + slower) * (1 + noise))
        noise = correlation * noise + (1 - correlation**2) ** 0.5 * draw.gauss(0, NOISE)
    results = (DdpBenchmarkResult((0,), tuple(steps)), DdpBenchmarkResult(tuple(range(RANKS)), tuple(steps) * RANKS))
    return DdpBenchmarkFile("", dict.fromkeys(CONFIGURATION), (DdpBenchmark("resnet50", 32, results),))


def pair(seed: int, correlation: float, slower: float) -> ComparedSize:
    """Two launches, compared."""
    draw = random.Random(f"{seed}/{correlation}/{slower}")
    launches = launch(draw, correlation, 0.0), launch(draw, correlation, slower)
    return compare_reports(*launches, CONFIDENCE).benchmarks[0].sizes[0]


def main() -> None:
    """Print a line for each correlation and difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=400)
    pairs = parser.parse_args().pairs
    for slower in (0.0, 0.02, 0.05):
        for correlation in (0.0, 0.3, 0.5, 0.7):
            found = [pair(seed, correlation, slower).result for seed in range(pairs)]
            shown = sum(one in ("slower", "faster") for one in found)
            print(f"slower by {slower:.0%}, correlation {correlation}: {shown} of {pairs} shown")


if __name__ == "__main__":
    main()
