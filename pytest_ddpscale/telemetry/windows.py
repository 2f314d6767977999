"""The readings of one GPU so far, and those of one time window. Pure."""

from __future__ import annotations

import math
import statistics
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pytest_ddpscale.run.telemetry import GpuReadings
from pytest_ddpscale.telemetry.nvml import BUFFERS, reasons_of
from pytest_ddpscale.util.digits import percent

# Windows last seconds and are cut right after they end; this leaves room for late queries.
KEEP_S = 900.0
# The fastest known buffer samples every 20 ms; at 16 bytes a sample, a series takes less than 1 MB.
MOST_SAMPLES = 50_000
# A power sample counts as idle if nothing ran for this long before it, as power samples lag by up to a second …
SETTLED_S = 2.0
# … and this long after it, as a utilization sample describes up to a second.
SAMPLE_S = 1.0
# A utilization below the first is wrong if power, as a share of its limit, or SM activity reach the second.
HARDLY_BUSY, AT_WORK = 0.1, 0.5


class TimedValues:
    """Values with their times, in ascending order; the oldest are dropped.

    Args:
        keep_s: how far the series reaches back from its newest value, in seconds.
    """

    def __init__(self, keep_s: float = KEEP_S, most: int = MOST_SAMPLES) -> None:
        self._keep_s, self._most = keep_s, most
        self._times, self._values = array("d"), array("d")

    def __len__(self) -> int:
        return len(self._times)

    @property
    def newest_s(self) -> float | None:
        """Time of the newest value; None without one."""
        return self._times[-1] if self._times else None

    def append(self, time_s: float, value: float) -> None:
        """Add a value unless the series has one of that time or later."""
        if self._times and time_s <= self._times[-1]:
            return
        self._times.append(time_s)
        self._values.append(value)
        # Allow a tenth more than is kept, because dropping moves all remaining values.
        if len(self._times) > 1.1 * self._most or self._times[0] < time_s - 1.1 * self._keep_s:
            count = max(len(self._times) - self._most, bisect_left(self._times, time_s - self._keep_s))
            del self._times[:count]
            del self._values[:count]

    def items(self, start_s: float, end_s: float) -> list[tuple[float, float]]:
        """(time, value) with start < time <= end, since a sample describes the period that ends at its time."""
        first, after = bisect_right(self._times, start_s), bisect_right(self._times, end_s)
        return list(zip(self._times[first:after], self._values[first:after], strict=True))

    def within(self, start_s: float, end_s: float) -> list[float]:
        """The values of `items`."""
        return [value for _, value in self.items(start_s, end_s)]

    def at(self, time_s: float) -> float | None:
        """The value at a time, interpolated linearly; None before the first and after the last value."""
        after = bisect_left(self._times, time_s)
        if after == len(self._times) or (after == 0 and self._times[0] != time_s):
            return None
        if self._times[after] == time_s:
            return self._values[after]
        share = (time_s - self._times[after - 1]) / (self._times[after] - self._times[after - 1])
        return self._values[after - 1] + share * (self._values[after] - self._values[after - 1])

    def around(self, start_s: float, end_s: float) -> list[float] | None:
        """All values from the last one at or before the start to the first at or after the end.

        None if the series does not cover the window.
        """
        before, after = bisect_right(self._times, start_s) - 1, bisect_left(self._times, end_s)
        if before < 0 or after == len(self._times):
            return None
        return list(self._values[before : after + 1])


class Intervals:
    """Values that each describe a time interval; the oldest are dropped."""

    def __init__(self, keep_s: float = KEEP_S) -> None:
        self._keep_s = keep_s
        self._items: deque[tuple[float, float, float]] = deque()

    def append(self, begin_s: float, end_s: float, value: float) -> None:
        """Add the value of an interval later than all before."""
        self._items.append((begin_s, end_s, value))
        while self._items[0][1] < end_s - self._keep_s:
            self._items.popleft()

    def within(self, start_s: float, end_s: float) -> list[tuple[float, float]]:
        """(seconds inside the window, value) of each interval that lies at least half inside the window."""
        overlaps = [(min(end, end_s) - max(begin, start_s), end - begin, value) for begin, end, value in self._items]
        return [(overlap, value) for overlap, length, value in overlaps if overlap > 0 and overlap >= length / 2]


@dataclass
class GpuLog:
    """Readings of one GPU.

    Attributes:
        problem: why the GPU cannot be read at all; empty if it can.
        buffered: samples from the driver's buffers.
        polled: values at the time of a poll.
        counters: totals since the driver was loaded.
        sm_activity: means between two polls.
        limits: the newest value of readings that rarely change.
        reasons: reading → why it is missing.
        lost: reading → the driver's error if the GPU is lost; empty while it is not.
        idle_power_w: power while idle before the first window; None if unknown.
        is_idle_power_known: whether idle power was determined, even if to None.
    """

    problem: str = ""
    buffered: dict[str, TimedValues] = field(default_factory=lambda: defaultdict(TimedValues))
    polled: dict[str, TimedValues] = field(default_factory=lambda: defaultdict(TimedValues))
    counters: dict[str, TimedValues] = field(default_factory=lambda: defaultdict(TimedValues))
    sm_activity: Intervals = field(default_factory=Intervals)
    polls: TimedValues = field(default_factory=TimedValues)
    limits: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    idle_power_w: float | None = None
    is_idle_power_known: bool = False

    def forget(self) -> None:
        """Drop all readings of windows: the clock was set back, and series only grow."""
        for series in (self.buffered, self.polled, self.counters):
            series.clear()
        self.sm_activity, self.polls = Intervals(), TimedValues()

    def samples(self, reading: str, start_s: float, end_s: float) -> list[tuple[float, float]]:
        """(time, value) of a reading's samples in a window: the driver's, or without any the polled ones."""
        return self.buffered[reading].items(start_s, end_s) or self.polled[reading].items(start_s, end_s)


def mean(values: Sequence[float]) -> float | None:
    """Mean of samples; None without one."""
    return statistics.fmean(values) if values else None


def weighted_mean(items: Sequence[tuple[float, float]]) -> float | None:
    """Mean of (weight, value) pairs; None without one."""
    if not items:
        return None
    return math.fsum(weight * value for weight, value in items) / math.fsum(weight for weight, _ in items)


def shares_of_reasons(masks: Sequence[float]) -> dict[str, float] | None:
    """Reason → share of the masks that contain it; None without masks, which differs from no reason."""
    if not masks:
        return None
    named = [reasons_of(int(mask)) for mask in masks]
    reasons = sorted({reason for names in named for reason in names})
    return {reason: sum(reason in names for names in named) / len(named) for reason in reasons}


def _lowest(values: Sequence[float]) -> int | None:
    return int(min(values)) if values else None


def idle_power_w(log: GpuLog, before_s: float) -> float | None:
    """Median power, in watts, of samples before a time during which the GPU was idle.

    None if the GPU was never idle, or if utilization or power cannot be read.
    """
    idle = []
    for time_s, value in log.samples("power_w", -math.inf, before_s):
        busy = log.samples("utilization", time_s - SETTLED_S, min(time_s + SAMPLE_S, before_s))
        if busy and all(share == 0 for _, share in busy):
            idle.append(value)
    return statistics.median(idle) if idle else None


# What is polled, and how the values of a window become its reading.
STATES: dict[str, Callable[[Sequence[float]], Any]] = {
    "temperature_c": mean,
    "pcie_generation": _lowest,
    "pcie_width": _lowest,
    "throttle_reasons": shares_of_reasons,
}
# Counters of errors, whose growth is counted from poll to poll; that of energy is needed between any two times.
ERRORS = ("ecc_corrected", "ecc_uncorrected")
# Readings that rarely change.
LIMITS = ("power_limit_w", "sm_clock_max_mhz")


def cut(log: GpuLog, start_s: float, end_s: float) -> GpuReadings:
    """The readings of one GPU in start < time <= end.

    The first call also determines the GPU's idle power, from samples before the window.
    """
    if not log.is_idle_power_known:
        log.idle_power_w, log.is_idle_power_known = idle_power_w(log, start_s), True
    found: dict[str, Any] = {"idle_power_w": log.idle_power_w}
    unreadable: dict[str, str] = {}
    if log.idle_power_w is None:
        unreadable["idle_power_w"] = "the GPU was never idle before the first window"
    for reading, value in _of_window(log, start_s, end_s):
        found[reading] = value
        if value is None:
            behind = log.reasons.get(f"{reading} samples", "no sample in the window")
            unreadable[reading] = log.reasons.get(reading, behind)
    if why := _why_not_idle(found, end_s - start_s):
        found["utilization"], unreadable["utilization"] = None, why
    return GpuReadings(
        started_unix_s=start_s,
        ended_unix_s=end_s,
        polls=len(log.polls.within(start_s, end_s)),
        lost=min(log.lost.values(), default=""),
        **({} if log.problem else found),
        unreadable={"device": log.problem} if log.problem else unreadable,
    )


def _why_not_idle(found: Mapping[str, Any], seconds: float) -> str:
    """Why a low utilization is wrong: some drivers say 0 % of a GPU at full load. Empty if nothing contradicts it."""
    busy, power, joules, limit_w = (found[name] for name in ("utilization", "power_w", "energy_j", "power_limit_w"))
    if busy is None or busy >= HARDLY_BUSY:
        return ""
    watts = joules / seconds if joules is not None else power or 0.0
    if limit_w and watts >= AT_WORK * limit_w:
        return f"{percent(busy)} busy, although it drew {watts:.0f} W of {limit_w:.0f} W"
    sms = found["sm_activity"]
    if sms and sms >= AT_WORK:
        return f"{percent(busy)} busy, although {percent(sms)} of its SMs worked"
    return ""


def _of_window(log: GpuLog, start_s: float, end_s: float) -> Iterator[tuple[str, Any]]:
    """Each reading and its value."""
    for reading in BUFFERS:
        yield reading, mean([value for _, value in log.samples(reading, start_s, end_s)])
    for reading, of_polls in STATES.items():
        yield reading, of_polls(log.polled[reading].within(start_s, end_s))
    for reading in LIMITS:
        yield reading, log.limits.get(reading)
    for reading in ERRORS:
        yield reading, _new(log.counters[reading], start_s, end_s)
    yield "sm_activity", weighted_mean(log.sm_activity.within(start_s, end_s))
    yield "energy_j", _growth(log.counters["energy_j"], start_s, end_s)


def _new(counter: TimedValues, start_s: float, end_s: float) -> int | None:
    """Growth from the poll before the window to the poll after it, so that nothing is missed."""
    totals = counter.around(start_s, end_s)
    return None if totals is None or not _is_ascending(totals) else round(totals[-1] - totals[0])


def _growth(counter: TimedValues, start_s: float, end_s: float) -> float | None:
    """Growth within the window, interpolated linearly between polls."""
    totals, first, last = counter.around(start_s, end_s), counter.at(start_s), counter.at(end_s)
    if totals is None or first is None or last is None or not _is_ascending(totals):
        return None
    return last - first


def _is_ascending(totals: Sequence[float]) -> bool:
    """Whether a counter never decreased; one that was reset in the window is unusable."""
    return all(later >= earlier for earlier, later in pairwise(totals))
