"""Readings of one GPU so far, by field name of the telemetry record."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass, field

# Windows last seconds and are cut right after they end; this leaves room for late queries.
KEEP_S = 900.0
# The fastest known buffer samples every 20 ms; at 16 bytes a sample, a series takes less than 1 MB.
MOST_SAMPLES = 50_000


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

    uuid: str
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

    def samples(self, reading: str, start_s: float, end_s: float) -> tuple[list[tuple[float, float]], str]:
        """(time, value) of a reading's samples in a window, and where they come from: ``buffer`` or ``poll``."""
        buffered = self.buffered[reading].items(start_s, end_s)
        return (buffered, "buffer") if buffered else (self.polled[reading].items(start_s, end_s), "poll")
