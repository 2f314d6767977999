"""Comparison of two reports of PyTorch's DDP benchmark, like its diff.py but with intervals.

diff.py (github.com/pytorch/pytorch, benchmarks/distributed/ddp/diff.py) pools all steps of all ranks for percentiles.
Pooled steps are not independent. Ranks wait for each other, so for the interval a step counts once, as the mean of its
ranks. Successive steps are correlated, which the interval of a series allows for up to 0.5
(`pytest_ddpscale.judge.stats`). If a file records which steps belong to a round, rounds count instead of steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pytest_ddpscale.compare.ddp_benchmark_file import DdpBenchmark, DdpBenchmarkFile, DdpBenchmarkResult, Said
from pytest_ddpscale.compare.value_change import Estimate, ValueChange, change_between
from pytest_ddpscale.judge.stats import estimate_of
from pytest_ddpscale.plan.planner import FEWEST_ROUNDS

PERCENTS_OF_DIFF = (75, 95)
ABSENT_KEY = "-"


class StepPercentile(NamedTuple):
    """One percentile in both reports.

    Attributes:
        difference: share by which a step takes less time in the test than in the baseline; positive is faster.
    """

    per_cent: int
    a_s_per_iter: float
    b_s_per_iter: float
    a_examples_per_s: float
    b_examples_per_s: float
    difference: float


class ComparedSize(NamedTuple):
    """One number of GPUs under DDP in both reports.

    Attributes:
        gpus: their number.
        percentiles: of pooled steps; differences are of time, positive is faster.
        change: of the mean step time from baseline to test; None without an interval.
        why_not: why there is no interval.
        of: samples of the interval, ``steps`` or ``rounds``.
        numbers: number of samples in baseline and test.
        is_lost: whether only the test lacks an interval.
    """

    gpus: int
    percentiles: tuple[StepPercentile, ...]
    change: ValueChange | None
    why_not: str
    of: str
    numbers: tuple[int, int]
    is_lost: bool = False

    @property
    def result(self) -> str:
        """``faster``, ``slower`` or ``no difference shown`` for the test, or why there is no interval."""
        if self.change is None:
            return self.why_not
        if not self.change.is_shown:
            return "no difference shown"
        return "slower" if self.change.size > 0 else "faster"


class ComparedBenchmark(NamedTuple):
    """One model in both reports; `only_baseline` has numbers of GPUs that the test lacks, and vice versa."""

    name: str
    batch_size: int
    sizes: tuple[ComparedSize, ...]
    only_baseline: tuple[int, ...]
    only_test: tuple[int, ...]


class ComparedReports(NamedTuple):
    """The whole comparison.

    Attributes:
        configuration: key → values of baseline and test; a dash for a missing one, as in diff.py.
        benchmarks: models in both reports.
        only_baseline: benchmarks that the test lacks.
        only_test: benchmarks that the baseline lacks.
        confidence: of each interval, 0 … 1.
    """

    configuration: Mapping[str, tuple[Said, Said]]
    benchmarks: tuple[ComparedBenchmark, ...]
    only_baseline: tuple[str, ...]
    only_test: tuple[str, ...]
    confidence: float

    @property
    def lost(self) -> list[str]:
        """Benchmarks and sizes that have an interval in the baseline but not in the test."""
        return [
            *self.only_baseline,
            *(_of_size(one.name, gpus) for one in self.benchmarks for gpus in one.only_baseline),
            *(_of_size(one.name, size.gpus) for one in self.benchmarks for size in one.sizes if size.is_lost),
        ]

    def worse_by(self, share: float) -> list[str]:
        """Sizes whose step certainly takes longer in the test by more than `share`."""
        return [
            _of_size(benchmark.name, size.gpus)
            for benchmark in self.benchmarks
            for size in benchmark.sizes
            if size.change is not None and size.change.low > share
        ]


def _of_size(name: str, gpus: int) -> str:
    return f"{name} on {gpus} GPUs"


def compare_reports(baseline: DdpBenchmarkFile, test: DdpBenchmarkFile, confidence: float) -> ComparedReports:
    """Every model and number of GPUs that both reports have."""
    of_test = {one.name: one for one in test.benchmarks}
    both = [(one, of_test[one.name]) for one in baseline.benchmarks if one.name in of_test]
    keys = sorted({*baseline.configuration, *test.configuration})
    configuration = {
        key: (baseline.configuration.get(key, ABSENT_KEY), test.configuration.get(key, ABSENT_KEY)) for key in keys
    }
    return ComparedReports(
        configuration,
        tuple(_benchmark(*pair, confidence) for pair in both),
        _missing(baseline.benchmarks, test.benchmarks),
        _missing(test.benchmarks, baseline.benchmarks),
        confidence,
    )


def _missing(of: Sequence[DdpBenchmark], among: Sequence[DdpBenchmark]) -> tuple[str, ...]:
    names = {one.name for one in among}
    return tuple(one.name for one in of if one.name not in names)


def _benchmark(baseline: DdpBenchmark, test: DdpBenchmark, confidence: float) -> ComparedBenchmark:
    a, b = baseline.with_ddp, test.with_ddp
    sizes = tuple(_size(gpus, a[gpus], b[gpus], baseline.batch_size, confidence) for gpus in sorted({*a} & {*b}))
    return ComparedBenchmark(
        baseline.name, baseline.batch_size, sizes, tuple(sorted({*a} - {*b})), tuple(sorted({*b} - {*a}))
    )


def _size(
    gpus: int, baseline: DdpBenchmarkResult, test: DdpBenchmarkResult, batch: int, confidence: float
) -> ComparedSize:
    percentiles = []
    for per_cent in PERCENTS_OF_DIFF:
        a_s, b_s = (float(np.percentile(one.measurements, per_cent)) for one in (baseline, test))
        percentiles.append(StepPercentile(per_cent, a_s, b_s, batch / a_s, batch / b_s, (a_s - b_s) / a_s))
    of = "rounds" if baseline.steps_per_round and test.steps_per_round else "steps"
    numbers = len(baseline.separate_s), len(test.separate_s)
    a, b = _mean_step(baseline, confidence), _mean_step(test, confidence)
    if isinstance(a, str) or isinstance(b, str):
        why = f"baseline: {a}" if isinstance(a, str) else f"test: {b}"
        return ComparedSize(gpus, tuple(percentiles), None, f"no interval: {why}", of, numbers, not isinstance(a, str))
    return ComparedSize(gpus, tuple(percentiles), change_between(a, b, by_factors=True), "", of, numbers)


def _mean_step(result: DdpBenchmarkResult, confidence: float) -> Estimate | str:
    """Geometric mean of the step time with its interval, or why it has none."""
    what = "rounds" if result.steps_per_round else "steps"
    found = estimate_of(result.separate_s, "factors", confidence)
    if found.interval is None:
        return f"{len(result.separate_s)} {what}; expected at least {FEWEST_ROUNDS}"
    return Estimate(found.value, found.interval)
