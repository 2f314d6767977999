"""Two reports of PyTorch's DDP benchmark beside each other, as its diff.py does, and with an interval.

(github.com/pytorch/pytorch, benchmarks/distributed/ddp/diff.py.) Its percentiles are of all steps of all ranks, pooled.
Those are no independent values: ranks wait for each other, so a step counts once here, as the mean of its ranks; and
successive steps are alike, which the interval of a series of rounds allows for up to a correlation of 0.5
(`pytest_ddpscale.verdict.estimating`). Where a file says which steps were made in one round, rounds count instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pytest_ddpscale.compare.step_percentiles import StepPercentile, step_percentile
from pytest_ddpscale.metrics.step_times import percentile
from pytest_ddpscale.plan.per_round import Sample
from pytest_ddpscale.results.ddp_benchmark_file import DdpBenchmark, DdpBenchmarkFile, DdpBenchmarkResult, Said
from pytest_ddpscale.stats.value_change import ComparedValue, ValueChange, change_between
from pytest_ddpscale.verdict.estimating import estimate_of

PERCENTS_OF_DIFF = (75, 95)
ABSENT_KEY = "-"


class ComparedSize(NamedTuple):
    """One number of GPUs under DDP in both reports.

    Attributes:
        percentiles: of pooled steps; a difference is of time, positive is faster.
        change: of the mean step time from baseline to test; None without an interval.
        why_not: why there is none.
        of: what the interval is taken over, ``steps`` or ``rounds``.
        numbers: how many of them there are in baseline and test.
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
        """``faster``, ``slower`` or ``no difference shown``, of the test; why there is no interval."""
        if self.change is None:
            return self.why_not
        if not self.change.is_shown:
            return "no difference shown"
        return "slower" if self.change.size > 0 else "faster"


class ComparedBenchmark(NamedTuple):
    """One model that both reports have; `only_baseline` has numbers of GPUs that the test lacks, and the reverse."""

    name: str
    batch_size: int
    sizes: tuple[ComparedSize, ...]
    only_baseline: tuple[int, ...]
    only_test: tuple[int, ...]


class ComparedReports(NamedTuple):
    """All of it.

    Attributes:
        configuration: key → what baseline and test say; a dash where one says nothing, as diff.py has it.
        only_baseline: benchmarks that the test lacks.
        only_test: likewise.
        confidence: of each interval, 0 … 1.
    """

    configuration: Mapping[str, tuple[Said, Said]]
    benchmarks: tuple[ComparedBenchmark, ...]
    only_baseline: tuple[str, ...]
    only_test: tuple[str, ...]
    confidence: float

    @property
    def lost(self) -> list[str]:
        """What the baseline has with an interval, and the test lacks, or has without one."""
        return [
            *self.only_baseline,
            *(_of_size(one.name, gpus) for one in self.benchmarks for gpus in one.only_baseline),
            *(_of_size(one.name, size.gpus) for one in self.benchmarks for size in one.sizes if size.is_lost),
        ]

    def worse_by(self, share: float) -> list[str]:
        """What certainly takes longer in the test by more than that share."""
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
    percentiles = tuple(
        step_percentile(per_cent, percentile(baseline.measurements, per_cent), percentile(test.measurements, per_cent),
                        batch)
        for per_cent in PERCENTS_OF_DIFF
    )  # fmt: skip
    of = "rounds" if baseline.steps_per_round and test.steps_per_round else "steps"
    numbers = len(baseline.separate_s), len(test.separate_s)
    a, b = _mean_step(baseline, confidence), _mean_step(test, confidence)
    if isinstance(a, str) or isinstance(b, str):
        why = f"baseline: {a}" if isinstance(a, str) else f"test: {b}"
        return ComparedSize(gpus, percentiles, None, f"no interval: {why}", of, numbers, not isinstance(a, str))
    return ComparedSize(gpus, percentiles, change_between(a, b, by_factors=True), "", of, numbers)


def _mean_step(result: DdpBenchmarkResult, confidence: float) -> ComparedValue | str:
    """Geometric mean with its interval, or why it has none."""
    what = "rounds" if result.steps_per_round else "steps"
    found = estimate_of([Sample(one) for one in result.separate_s.tolist()], "factors", confidence)
    if found.estimate is None:
        return found.too_few.replace("rounds", what)
    if found.exceeds:
        return f"successive {what} correlate by {found.correlation:.2f}, and an interval allows for 0.5"
    return ComparedValue(found.value, *found.estimate.interval)
