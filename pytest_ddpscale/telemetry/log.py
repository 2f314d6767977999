"""What was read of one GPU so far, by the name of the field of a telemetry record that it is for."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from pytest_ddpscale.telemetry.timed_values import Intervals, TimedValues


@dataclass
class GpuLog:
    """Readings of one GPU.

    Attributes:
        uuid: ``GPU-…``.
        problem: why the GPU is not read at all; empty if it is.
        buffered: samples that the driver kept.
        polled: values of the moment of a poll.
        counters: running totals since the driver was loaded.
        intervals: means between two polls.
        polls: times of the polls.
        limits: what hardly changes: the newest value.
        reasons: reading → why it is not there.
        lost: reading → what the driver says of a GPU that is lost; empty while it is not.
        idle_power_w: power before the first window, while idle; None if it is unknown.
        is_idle_power_known: whether it was looked for.
    """

    uuid: str
    problem: str = ""
    buffered: dict[str, TimedValues] = field(default_factory=lambda: defaultdict(TimedValues))
    polled: dict[str, TimedValues] = field(default_factory=lambda: defaultdict(TimedValues))
    counters: dict[str, TimedValues] = field(default_factory=lambda: defaultdict(TimedValues))
    intervals: dict[str, Intervals] = field(default_factory=lambda: defaultdict(Intervals))
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
