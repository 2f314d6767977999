"""Tables, figures and conclusions of whole runs: those of chapter 12 of Jordi Torres' "Supercomputing for AI".

They take plain numbers from any source, so that the chapter's own numbers can be used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from pytest_ddpscale.plan.metric_catalogue import THROUGHPUT_PER_GPU
from pytest_ddpscale.report.charts import About, Curve, LineAxes, Point, curves
from pytest_ddpscale.report.digits import ABSENT
from pytest_ddpscale.report.scaling import (
    GOOD_EFFICIENCY,
    SATURATED_GAIN,
    MeasuredSize,
    ScalingFact,
    TrainingJob,
    scaling_facts,
    sweet_spots,
)
from pytest_ddpscale.suites.suite_report import SuiteTable, grouped_bars
from pytest_ddpscale.util.digits import percent
from pytest_ddpscale.util.document import Picture

# A sweet spot saves at least this share of the time that the fastest size saves.
MOST_OF_THE_SAVING = 0.8


@dataclass(frozen=True)
class WholeRunSize:
    """One world size on one data set.

    Attributes:
        gpus: ranks, which are CPU processes on a CPU.
        complete_s: from the start of the processes to the end of the last validation.
        samples_per_s: training throughput, mean of the epochs without the first.
        reserved_gb: largest reserved memory of a GPU, in 10⁹ bytes; None on a CPU.
        iterations: of each rank in an epoch; None if unknown.
    """

    gpus: int
    complete_s: float
    samples_per_s: float
    reserved_gb: float | None = None
    iterations: int | None = None


@dataclass(frozen=True)
class WholeRunSeries:
    """All sizes on one data set, ascending.

    Attributes:
        device: name of a rank's device.
        images: training images of the data set; None if unknown.
        rate: unit of throughput.
    """

    name: str
    sizes: Sequence[WholeRunSize]
    device: str = "GPU"
    images: int | None = None
    rate: str = THROUGHPUT_PER_GPU.unit

    def counted(self, gpus: int) -> str:
        """``8 GPUs``."""
        return f"{gpus} {self.device}{'' if gpus == 1 else 's'}"

    @property
    def heading(self) -> str:
        """Heading of the column of sizes."""
        return f"{self.device[0].upper()}{self.device[1:]}s"

    @property
    def shortest_s(self) -> float:
        """The shortest complete time, in seconds."""
        return min(one.train_s for one in self.facts)

    @cached_property
    def facts(self) -> list[ScalingFact]:
        """Scaling facts of each size, with its complete time as `train_s`."""
        measured = [MeasuredSize(one.gpus, one.samples_per_s) for one in self.sizes]
        return scaling_facts(measured, TrainingJob(images=1.0), [one.complete_s for one in self.sizes])

    @property
    def saturation(self) -> int | None:
        """The size from which a doubling saves less than `SATURATED_GAIN` of the complete time; None if none does."""
        return sweet_spots(self.facts, None)["saturation"]

    @property
    def most_efficient(self) -> int | None:
        """The most GPUs with an efficiency of at least `GOOD_EFFICIENCY`, for when GPUs are scarce."""
        return sweet_spots(self.facts, None)["efficiency"]

    @property
    def fastest(self) -> int:
        """The size with the shortest complete time, for when only the deadline counts."""
        return min(self.facts, key=lambda one: (one.train_s, one.gpus)).gpus

    @property
    def sweet_spot(self) -> list[int]:
        """Sizes that are efficient and save most of the time that scaling can save; may be empty."""
        first = self.facts[0].train_s
        saving = first - self.shortest_s
        return [
            one.gpus for one in self.facts[1:]
            if one.efficiency >= GOOD_EFFICIENCY and first - one.train_s >= MOST_OF_THE_SAVING * saving > 0
        ]  # fmt: skip


def result_table(series: WholeRunSeries, title: str) -> SuiteTable:
    """The chapter's tables 12.1 and 12.5."""
    rows = [
        (str(one.gpus), f"{one.complete_s:.4g}", f"{one.samples_per_s:.4g}",
         ABSENT if one.reserved_gb is None else f"{one.reserved_gb:.3g}")
        for one in series.sizes
    ]  # fmt: skip
    return SuiteTable(
        (series.heading, "Complete training time s", f"Throughput {series.rate}", "Memory GB"), rows, title
    )


def efficiency_table(series: WholeRunSeries) -> SuiteTable:
    """The chapter's table 12.2."""
    rows = [
        (
            str(one.gpus),
            f"{one.samples_per_s / one.efficiency:.4g}",
            f"{one.samples_per_s:.4g}",
            percent(one.efficiency, 1),
        )
        for one in series.facts
    ]
    columns = (series.heading, f"Ideal throughput {series.rate}", f"Actual throughput {series.rate}", "Efficiency")
    return SuiteTable(columns, rows, f"{series.name}: ideal and actual throughput")


def gain_table(series: WholeRunSeries) -> SuiteTable:
    """The chapter's tables 12.3 and 12.7: gain of each size over the one before, in per cent per doubling."""
    rows = [
        (f"{before.gpus}→{one.gpus}", f"{before.samples_per_s:.4g} → {one.samples_per_s:.4g}",
         f"{one.more_samples_per_s or 0.0:+.4g}", percent(one.gain or 0.0, signed=True))
        for before, one in zip(series.facts, series.facts[1:], strict=False)
    ]  # fmt: skip
    columns = (series.heading, f"Throughput {series.rate}", f"Marginal gain {series.rate}", "Gain per doubling")
    return SuiteTable(columns, rows, f"{series.name}: marginal gain")


def time_table(series: WholeRunSeries) -> SuiteTable:
    """The chapter's table 12.4."""
    first, rows = series.facts[0].train_s, []
    for place, one in enumerate(series.facts):
        before = series.facts[place - 1].train_s
        gain, since_first = (percent(one.train_s / of - 1, 1, signed=True) for of in (before, first))
        saved = f"{one.train_s - before:+.3g} s".replace("-", "−")
        gains = (f"{saved} ({gain})", since_first) if place else (ABSENT, ABSENT)
        rows.append((str(one.gpus), f"{one.train_s:.4g}", *gains))
    columns = (series.heading, "Training time s", "Against the size before", f"Against {series.facts[0].gpus}")
    return SuiteTable(columns, rows, f"{series.name}: reduction of the complete time")


def compared_efficiency_table(all_series: Sequence[WholeRunSeries]) -> SuiteTable:
    """The chapter's table 12.6."""
    by_name = {one.name: {fact.gpus: fact.efficiency for fact in one.facts} for one in all_series}
    sizes = sorted({size for efficiencies in by_name.values() for size in efficiencies})
    rows = [
        (str(size), *(percent(found[size], 1) if size in found else ABSENT for found in by_name.values()))
        for size in sizes
    ]
    return SuiteTable(
        (all_series[0].heading, *(f"{name}: efficiency" for name in by_name)), rows, "Efficiency by data set"
    )


def figures(all_series: Sequence[WholeRunSeries]) -> list[Picture | None]:
    """The chapter's figures 12.4 to 12.7: throughput, speed-up by data set, throughput with efficiency."""
    gpus, drawn = f"world size ({all_series[0].device}s)", list[Picture | None]()
    for one in all_series:
        about = About(f"bars-{one.name}", f"Training throughput on {one.name} by {gpus}")
        sizes, throughput = ([str(size.gpus) for size in one.sizes], [size.samples_per_s for size in one.sizes])
        drawn.append(grouped_bars(about, one.rate, sizes, {one.name: throughput}))
    speedups = [Curve(one.name, [Point(fact.gpus, fact.speedup) for fact in one.facts]) for one in all_series]
    axes = LineAxes(gpus, "speed-up", x_is_log=True, scale="log", ideal=float)
    drawn.append(curves(About("speedup", "Speed-up by data set"), axes, {"": speedups}))
    for one in all_series:
        both = {
            one.rate: [Point(fact.gpus, fact.samples_per_s) for fact in one.facts],
            "efficiency (%)": [Point(fact.gpus, 100 * fact.efficiency) for fact in one.facts],
        }
        about = About(f"both-{one.name}", f"Throughput and efficiency on {one.name}")
        panels = {name: [Curve("value", points)] for name, points in both.items()}
        drawn.append(curves(about, LineAxes(gpus, "", x_is_log=True), panels))
    return drawn


def conclusions(series: WholeRunSeries, deadline_s: float | None = None) -> Iterator[str]:
    """The chapter's conclusions, for these numbers."""
    first, last, name = series.facts[0], series.facts[-1], series.name
    if first is last:
        return
    gain, shrinks = last.samples_per_s / first.samples_per_s, first.train_s / last.train_s
    rate = f"grows {gain:.1f}x" if gain >= 1 else f"falls to {percent(gain)}"
    time = f"shrinks {shrinks:.1f}x" if shrinks >= 1 else f"grows {1 / shrinks:.2f}x"
    yield f"{name}: from {first.gpus} to {series.counted(last.gpus)} throughput {rate}, complete time {time}."
    least = percent(SATURATED_GAIN)
    if series.saturation is None:
        yield f"{name}: complete time does not saturate: every doubling saves {least} of it or more."
    else:
        at = series.counted(series.saturation)
        yield f"{name}: complete time saturates at {at}: the next doubling saves less than {least} of it."
    yield f"{name}: shortest complete time: {series.shortest_s:.4g} s on {series.counted(series.fastest)}."
    if deadline_s is not None:
        enough = sweet_spots(series.facts, deadline_s)["deadline"]
        met = f"met from {series.counted(enough)} on" if enough else "met by no measured size"
        yield f"{name}: deadline of {deadline_s:g} s: {met}."
    if series.most_efficient is not None:
        yield f"{name}: largest size of {percent(GOOD_EFFICIENCY)} efficiency: {series.counted(series.most_efficient)}."
    yield (
        f"{name}: sweet spot (at least {percent(GOOD_EFFICIENCY)} efficient, and {percent(MOST_OF_THE_SAVING)} of all "
        f"the time that can be saved): {_sizes_text(series)}."
    )


def bottleneck(all_series: Sequence[WholeRunSeries]) -> Iterator[str]:
    """Efficiency that the smaller of two data sets loses, at the largest size that both have."""
    if len(all_series) < 2:
        return
    small, large = sorted(all_series[:2], key=lambda one: (one.images or 0, one.facts[0].train_s))
    sizes = {one.gpus for one in small.facts[1:]} & {one.gpus for one in large.facts}
    if not sizes:
        return
    at = max(sizes)
    shares = [next(fact.efficiency for fact in one.facts if fact.gpus == at) for one in (small, large)]
    few = next((one.iterations for one in small.sizes if one.gpus == at and one.iterations is not None), None)
    batches = f", in {few} iterations an epoch" if few is not None else ""
    if shares[0] >= shares[1]:
        yield f"{small.name}, the smaller data set, is no less efficient than {large.name} on {small.counted(at)}."
        return
    yield (
        f"{small.name}, the smaller data set, is bound by overhead on {small.counted(at)}{batches}: "
        f"{percent(shares[0], 1)} efficient, {large.name} {percent(shares[1], 1)}. Of the complete time "
        f"{percent(_what_stays(small, at))} does not shrink "
        f"on {small.name} (Amdahl's law), {percent(_what_stays(large, at))} on {large.name}."
    )


def _what_stays(series: WholeRunSeries, gpus: int) -> float:
    """Serial share of the complete time by Karp and Flatt (1990), from its reduction at a size, 0 to 1."""
    first = series.facts[0]
    one = next(fact for fact in series.facts if fact.gpus == gpus)
    ratio, more = one.train_s / first.train_s, gpus / first.gpus
    return min(1.0, max(0.0, (ratio - 1 / more) / (1 - 1 / more)))


def _sizes_text(series: WholeRunSeries) -> str:
    spot = series.sweet_spot
    if not spot:
        return "no measured size"
    return series.counted(spot[0]) if len(spot) == 1 else f"{spot[0]} to {series.counted(spot[-1])}"
